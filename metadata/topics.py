"""A topic's record and its list of segments, changed only by compare-and-set.

The node of a topic contains its newest segments and the paths of *manifests*, immutable nodes with the older segments,
oldest first. So the node stays small however long the topic grows, and each roll rewrites only the newest part. Every
change is one transaction: a put of the topic's node, new manifests, and deleted ones. To change a manifest, a new
manifest with a new name replaces it.

No function here retries after a `VersionConflict`, which means that another process owns the topic now and this one
must stop. After `OutcomeUnknown`, load the topic again and compare.

A `Topic` is a snapshot: each change returns the next one.

A caller that needs a change to be atomic with another one passes a `Commit`, which executes the steps of both.
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
"""Function that executes all steps or none, like `MetadataStore.transact`."""

SEGMENTS_INLINE_MAX: Final = 100
"""Maximum number of segments in the topic's own node: about 30 KiB of JSON, far below ZooKeeper's 1 MiB."""

SEGMENTS_PER_MANIFEST: Final = 50
"""Number of segments in a manifest; small, because a change of one segment rewrites its whole manifest."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Snapshot of a topic: its node's path and version, its record, and the manifests' contents in order."""

    path: str
    version: int
    record: TopicRecord
    older: tuple[tuple[SegmentRecord, ...], ...] = ()

    @property
    def segments(self) -> tuple[SegmentRecord, ...]:
        """All segments, oldest first."""
        return tuple(chain(*self.older, self.record.segments))

    def segment(self, ledger_id: int) -> SegmentRecord:
        """Return the segment with this ledger id. Raises `NotFound`."""
        for segment in self.segments:
            if segment.ledger_id == ledger_id:
                return segment
        raise NotFound(f"topic {self.record.name} has no segment {ledger_id}")


async def load(store: MetadataStore, path: str) -> Topic:
    """Load the topic at `path`, with all its segments. Raises `NotFound`, `CorruptionError`."""
    while True:
        node = await store.get(path)
        record = decode(TopicRecord, node.value, path)
        try:
            older = [await _load_manifest(store, manifest) for manifest in record.manifests]
        except NotFound as missing:
            if (await store.get(path)).version == node.version:
                raise CorruptionError(
                    f"topic {record.name} lists a manifest that does not exist: {missing}"
                ) from None
            continue  # the list was changed during the read
        return Topic(path, node.version, record, tuple(older))


async def create(
    store: MetadataStore, path: str, record: TopicRecord, atomically_with: Step | None = None
) -> Topic:
    """Create a topic, in one transaction with `atomically_with`. Raises `AlreadyExists`, and that step's errors."""
    assert not record.manifests
    made = Create(path, encode(record))
    await store.transact([made] if atomically_with is None else [atomically_with, made])
    return Topic(path, 0, record)


async def delete(store: MetadataStore, topic: Topic, atomically_with: Sequence[Step] = ()) -> None:
    """Delete a topic's record and manifests, in one transaction with `atomically_with`.

    The caller has deleted the topic's ledgers before. Raises `VersionConflict`, `NotFound`.
    """
    manifests = [Delete(manifest) for manifest in topic.record.manifests]
    await store.transact([Delete(topic.path, topic.version), *manifests, *atomically_with])


def being_deleted(name: object) -> Unavailable:
    """Return the error for a topic that is marked `deleting`: neither the topic nor its name can be used yet."""
    return Unavailable(f"{name} is being deleted; try again in a moment")


async def while_there(store: MetadataStore, path: str) -> tuple[Step, ...]:
    """Return steps that make a transaction fail if the topic at `path` is deleted meanwhile; () if it has no record.

    Transactions that write a topic's other nodes (policies, schemas) include these steps. So a deletion can remove
    those nodes before the topic's record: once the record is marked `deleting`, no transaction adds one. Raises
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
    """Replace the record except its segments, which are taken from `topic`."""
    return await _save(store, topic, record, topic.older, topic.record.segments)


async def replace_segment(
    store: MetadataStore, topic: Topic, segment: SegmentRecord, commit: Commit | None = None
) -> Topic:
    """Replace the segment that has the ledger id of `segment`. Raises `NotFound` if the topic has no such segment."""
    return await change_segment(store, topic, segment.ledger_id, lambda _: segment, commit)


async def change_segment(
    store: MetadataStore,
    topic: Topic,
    ledger_id: int,
    change: Callable[[SegmentRecord], SegmentRecord],
    commit: Commit | None = None,
) -> Topic:
    """Replace the segment `ledger_id` by `change(segment)`. Raises `NotFound` if the topic has no such segment."""
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
    """Record the last segment's totals, if `sealed` is given, and add `opened` after it, in one transaction.

    If `sealed` is empty (`last_entry` -1), it is removed from the list. Otherwise, each restart would leave an empty
    segment.
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
    """Remove the last segment, which is empty. Its ledger id is recorded, because positions may refer to it."""
    inline = topic.record.segments
    record = msgspec.structs.replace(topic.record, last_dropped=inline[-1].ledger_id)
    return await _save(store, topic, record, topic.older, inline[:-1], commit)


async def trim_front(store: MetadataStore, topic: Topic, first_kept_ledger: int) -> Topic:
    """Remove the segments before `first_kept_ledger`. Raises `NotFound` if the topic has no such segment."""
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
    """Save the new segment lists in one transaction. The manifests of older segments that did not change are kept."""
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
