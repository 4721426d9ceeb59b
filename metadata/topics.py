"""A topic's record and its list of segments, changed only by version.

The node of a topic holds its newest segments and names *manifests*, immutable nodes that hold the older ones, oldest
first; so the node stays small however long the topic grows, and each roll rewrites only the newest part. Every
change is one transaction: the topic's node by version, the manifests that it makes, those that it drops. A changed
manifest is a new manifest under a new name.

Nothing here tries again after a `VersionConflict`: a conflict means that someone else owns the topic now, and the
incarnation that hears it must stop. After `OutcomeUnknown`, load again and compare.

A `Topic` is a snapshot: each change returns the next one.

A change that must hold together with another one is given a `Commit`, which carries out its steps and others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final
from uuid import uuid4

import msgspec

from quire.metadata import paths
from quire.metadata.records import ManifestRecord, SegmentRecord, TopicRecord, decode, encode
from quire.metadata.store import Check, Create, Delete, MetadataStore, Put, Step
from quire.runtime.errors import CorruptionError, NotFound, Unavailable

Commit = Callable[[Sequence[Step]], Awaitable[None]]
"""Carries out all steps or none, as `MetadataStore.transact` does."""

SEGMENTS_INLINE_MAX: Final = 100
"""Segments in the topic's own node: about 30 KiB of JSON, far below ZooKeeper's 1 MiB."""

SEGMENTS_PER_MANIFEST: Final = 50


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it was read: its node's path and version, its record, and the manifests' contents in order."""

    path: str
    version: int
    record: TopicRecord
    older: tuple[tuple[SegmentRecord, ...], ...] = ()

    @property
    def segments(self) -> tuple[SegmentRecord, ...]:
        """All segments, oldest first."""
        return tuple(chain(*self.older, self.record.segments))

    def segment(self, ledger_id: int) -> SegmentRecord:
        """Raises `NotFound`."""
        for segment in self.segments:
            if segment.ledger_id == ledger_id:
                return segment
        raise NotFound(f"topic {self.record.name} has no segment {ledger_id}")


async def load(store: MetadataStore, path: str) -> Topic:
    """The topic at `path`, with all its segments. Raises `NotFound`, `CorruptionError`."""
    while True:
        node = await store.get(path)
        record = decode(TopicRecord, node.value, path)
        try:
            older = [await _load_manifest(store, manifest) for manifest in record.manifests]
        except NotFound as missing:
            if (await store.get(path)).version == node.version:
                raise CorruptionError(
                    f"topic {record.name} names a manifest that is missing: {missing}"
                ) from None
            continue  # the list moved on while it was being read
        return Topic(path, node.version, record, tuple(older))


async def create(
    store: MetadataStore, path: str, record: TopicRecord, atomically_with: Step | None = None
) -> Topic:
    """In one transaction with `atomically_with`. Raises `AlreadyExists`; what refuses `atomically_with`."""
    assert not record.manifests
    made = Create(path, encode(record))
    await store.transact([made] if atomically_with is None else [atomically_with, made])
    return Topic(path, 0, record)


async def delete(store: MetadataStore, topic: Topic, atomically_with: Sequence[Step] = ()) -> None:
    """Delete the record and its manifests; the ledgers must be gone before. In one transaction with `atomically_with`.

    Raises `VersionConflict`, `NotFound`.
    """
    manifests = [Delete(manifest) for manifest in topic.record.manifests]
    await store.transact([Delete(topic.path, topic.version), *manifests, *atomically_with])


def being_deleted(name: object) -> Unavailable:
    """For who meets a topic whose record is marked `deleting`, and cannot have it, or its name, before that is done."""
    return Unavailable(f"{name} is being deleted; try again in a moment")


async def while_there(store: MetadataStore, path: str) -> tuple[Step, ...]:
    """What a transaction begins with that may not outlive the topic at `path`: nothing for a topic without a record.

    So what is kept beside the record can be removed before it: once it is marked, nobody puts anything there. Raises
    `Unavailable` while the topic is being deleted.
    """
    try:
        node = await store.get(path)
    except NotFound:
        return ()
    record = decode(TopicRecord, node.value, path)
    if record.deleting:
        raise being_deleted(record.name)
    return (Check(path, node.version),)


async def update(store: MetadataStore, topic: Topic, record: TopicRecord) -> Topic:
    """Replace everything but the segments, which are taken from `topic`."""
    return await _save(store, topic, record, topic.older, topic.record.segments)


async def replace_segment(
    store: MetadataStore, topic: Topic, segment: SegmentRecord, commit: Commit | None = None
) -> Topic:
    """Put `segment` where the one with its ledger id is. Raises `NotFound` when there is none."""
    return await change_segment(store, topic, segment.ledger_id, lambda _: segment, commit)


async def change_segment(
    store: MetadataStore,
    topic: Topic,
    ledger_id: int,
    change: Callable[[SegmentRecord], SegmentRecord],
    commit: Commit | None = None,
) -> Topic:
    """Replace one segment by `change` of it. Raises `NotFound` when there is none."""
    topic.segment(ledger_id)

    def changed(part: tuple[SegmentRecord, ...]) -> tuple[SegmentRecord, ...]:
        return tuple(change(known) if known.ledger_id == ledger_id else known for known in part)

    older = tuple(changed(part) for part in topic.older)
    return await _save(store, topic, topic.record, older, changed(topic.record.segments), commit)


async def roll(
    store: MetadataStore,
    topic: Topic,
    sealed: SegmentRecord | None,
    opened: SegmentRecord,
    commit: Commit | None = None,
) -> Topic:
    """In one transaction write the last segment's totals, if it is given, and add `opened` after it.

    A last segment that is empty (`last_entry` -1) is dropped from the list: each restart would leave one.
    """
    inline = topic.record.segments
    if sealed is not None:
        assert inline[-1].ledger_id == sealed.ledger_id
        inline = (*inline[:-1], sealed) if sealed.last_entry >= 0 else inline[:-1]
    assert all(known.ledger_id < opened.ledger_id for known in inline)
    inline = (*inline, opened)
    older = topic.older
    if len(inline) > SEGMENTS_INLINE_MAX:
        older = (*older, inline[:SEGMENTS_PER_MANIFEST])
        inline = inline[SEGMENTS_PER_MANIFEST:]
    return await _save(store, topic, topic.record, older, inline, commit)


async def drop_last(store: MetadataStore, topic: Topic, commit: Commit | None = None) -> Topic:
    """Take the last segment, which is empty, off the list. Its ledger id is remembered, for positions name it."""
    inline = topic.record.segments
    record = msgspec.structs.replace(topic.record, last_dropped=inline[-1].ledger_id)
    return await _save(store, topic, record, topic.older, inline[:-1], commit)


async def trim_front(store: MetadataStore, topic: Topic, first_kept_ledger: int) -> Topic:
    """Drop the segments before `first_kept_ledger`. Raises `NotFound` when the topic has no such segment."""
    topic.segment(first_kept_ledger)
    gone: set[int] = set()
    for segment in topic.segments:
        if segment.ledger_id == first_kept_ledger:
            break
        gone.add(segment.ledger_id)

    def kept(part: Iterable[SegmentRecord]) -> tuple[SegmentRecord, ...]:
        return tuple(segment for segment in part if segment.ledger_id not in gone)

    older = tuple(filter(None, map(kept, topic.older)))
    return await _save(store, topic, topic.record, older, kept(topic.record.segments))


async def _load_manifest(store: MetadataStore, path: str) -> tuple[SegmentRecord, ...]:
    return decode(ManifestRecord, (await store.get(path)).value, path).segments


async def _save(
    store: MetadataStore,
    topic: Topic,
    record: TopicRecord,
    older: tuple[tuple[SegmentRecord, ...], ...],
    inline: tuple[SegmentRecord, ...],
    commit: Commit | None = None,
) -> Topic:
    """One transaction from `topic` to the new lists; an unchanged manifest keeps its name."""
    known = dict(zip(topic.older, topic.record.manifests, strict=True))
    names = [known.get(part) or paths.manifest(topic.path, uuid4().hex) for part in older]
    record = msgspec.structs.replace(record, segments=inline, manifests=tuple(names))
    steps: list[Step] = [Put(topic.path, encode(record), topic.version)]
    steps += [
        Create(name, encode(ManifestRecord(segments=part)))
        for name, part in zip(names, older, strict=True)
        if part not in known
    ]
    steps += [Delete(name) for name in topic.record.manifests if name not in names]
    await (commit or store.transact)(steps)
    return replace(topic, version=topic.version + 1, record=record, older=older)
