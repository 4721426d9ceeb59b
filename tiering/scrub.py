"""Scrub of the archive: compares the objects in the store with the records in the metadata store.

    damaged     a record names the object, but it is missing, has another length, or fails a check
    unlabelled  the label is missing or contradicts the record, so a rescue could not assign the object to a topic
                (`segment_label`)
    foreign     no record names the object, and its name or its label contains another cluster's id
    orphan      no record names the object, and it is older than the grace period: an upload that was not recorded, a
                trimmed segment whose deletion failed, or the sidecar of such an object

The objects are listed *before* the records are read. The object of an upload in progress is recorded within the grace
period, so it is not mistaken for an orphan. The records of all topics are read (`recorded_segments`), because a broker
does not know the topics of other brokers.

Orphans are deleted only on an operator's order, and only if the metadata are verified to be complete and current
(`quire.identity.guard`). If there are foreign objects, nothing is deleted, because objects without a cluster's id may
belong to the other cluster as well. Immediately before each deletion both stores are verified again, and the record of
the topic in the object's label is read again. An object without a label was never recorded, because the label is
written first. For such objects, the records of all topics are read again once, before the first deletion.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quire.metadata.records import ArchivePointer
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectInfo
from quire.runtime.clock import Clock
from quire.runtime.errors import CorruptionError, NotFound, QuireError, Unavailable, WrongCluster
from quire.tiering import segment_label
from quire.tiering.archive import PREFIX, Archive, find_cluster, object_of, sidecar_of
from quire.tiering.inventory import all_topics, find_topic
from quire.tiering.progress import Progress
from quire.wire.publish_time import PublishTimes

GRACE_MS: Final = 24 * 3_600_000
"""Grace period in ms of an object without a record: far longer than uploading and recording a segment takes."""


class Recorded(NamedTuple):
    """Archived segment, from its topic's record."""

    topic: str
    ledger_id: int
    pointer: ArchivePointer
    is_measured: bool = True
    """False if an older version archived the segment without recording its publish times."""

    @property
    def what(self) -> str:
        return f"segment {self.ledger_id} of {self.topic}"


RecordTimes = Callable[[Recorded, PublishTimes], Awaitable[None]]
"""Callback that records a segment's publish times, if this process may change its topic's record. Raises no errors."""

_Wrong = tuple[Recorded, QuireError]
"""Recorded object, and the error that was found in it."""


@dataclass
class ScrubReport:
    """Result of a scrub. `damaged`, `unlabelled`, `foreign` and `orphans` are lines for operators, one per object."""

    segments: int = 0
    bytes: int = 0
    objects: int = 0
    sidecars: int = 0
    """Number of sidecars, which are not read, because they can be derived again (`quire archive sidecars list`)."""
    orphan_bytes: int = 0
    deleted: int = 0
    unfinished_uploads: int = 0
    """Number of aborted uploads that were older than the grace period; 0 unless the operator asked for deletion."""
    unreachable: int = 0
    """Number of objects whose store did not answer; their state is unknown."""
    damaged: list[str] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    unproven: str = ""
    """Reason why the orphans may be segments of the cluster, and are kept; "" if the metadata are verified."""


async def recorded_segments(store: MetadataStore) -> list[Recorded]:
    """Return every archived segment of every topic. Reads all topics' records, so only operators' commands use it."""
    return [
        Recorded(topic.record.name, segment.ledger_id, segment.archive, segment.publish_max_ms > 0)
        async for topic in all_topics(store)
        for segment in topic.segments
        if segment.archive is not None
    ]


async def scrub(
    archive: Archive,
    clock: Clock,
    *,
    grace_ms: int = GRACE_MS,
    delete_orphans: bool = False,
    progress: Progress | None = None,
    record_times: RecordTimes | None = None,
) -> ScrubReport:
    """Read every recorded object in full, and list the objects that no record names.

    For each segment whose record has no publish times, `record_times` is called. Raises `Unavailable` if listing
    fails, and with `delete_orphans` `WrongCluster` if the metadata cannot be verified.
    """
    report, metadata = ScrubReport(), archive.place.metadata
    listed = await archive.store.list(PREFIX)
    report.objects = sum(object_of(info.name) == info.name for info in listed)
    report.sidecars = sum(sidecar_of(object_of(info.name)) == info.name for info in listed)
    await _confirm(archive, report, delete_orphans)
    recorded = await recorded_segments(metadata)
    progress = progress or Progress("verify")
    progress.of = len(recorded)
    damaged: list[_Wrong] = []
    unlabelled: list[_Wrong] = []
    for one in recorded:
        report.segments += 1
        report.bytes += one.pointer.bytes
        try:
            await _prove(archive, one, damaged, unlabelled, record_times)
        except Unavailable:
            report.unreachable += 1
        progress.done += 1
    named = (
        {one.pointer.name for one in await recorded_segments(metadata)} if damaged or unlabelled else set()
    )
    for one, error in damaged:
        if one.pointer.name in named:  # else the segment was trimmed or uploaded again during the scrub
            report.damaged.append(archive.note_damage(one.pointer, one.what, error))
    report.unlabelled = [f"{one.what}: {error}" for one, error in unlabelled if one.pointer.name in named]
    foreign = await _foreign(archive, listed, recorded)
    report.foreign = [f"{name} belongs to cluster {cluster}" for name, cluster in foreign.items()]
    before_ms = clock.now_ms() - grace_ms
    orphans = [info for info in _orphans(listed, recorded, before_ms) if object_of(info.name) not in foreign]
    report.orphans = [f"{info.name} ({info.bytes} bytes)" for info in orphans]
    report.orphan_bytes = sum(info.bytes for info in orphans)
    await _confirm(archive, report, delete_orphans)
    if delete_orphans:
        await _delete(archive, _orphans(orphans, await recorded_segments(metadata), before_ms), report)
        report.unfinished_uploads = await archive.store.sweep(before_ms)
    return report


async def _confirm(archive: Archive, report: ScrubReport, delete_orphans: bool) -> None:
    """Verify that objects without a record are orphans; else set `report.unproven`.

    With `delete_orphans`, raise `WrongCluster` instead.
    """
    try:
        await archive.place.confirm_absence(f"{report.objects} objects of segments" if report.objects else "")
        if report.foreign:
            raise WrongCluster(
                f"this process belongs to cluster {archive.place.cluster}, but {archive.store.url} also has objects of "
                f"another one: {report.foreign[0]}; nothing is deleted. Move them into that cluster's archive"
            )
    except WrongCluster as error:
        if delete_orphans:
            raise
        report.unproven = str(error)


async def _foreign(
    archive: Archive, listed: Sequence[ObjectInfo], recorded: Sequence[Recorded]
) -> dict[str, str]:
    """Return the objects of other clusters that no record names: cluster id by object name. Raises `Unavailable`."""
    names = {object_of(info.name) for info in listed} - {one.pointer.name for one in recorded}
    found = {name: await find_cluster(archive.store, name) for name in sorted(names)}
    return {name: cluster for name, cluster in found.items() if cluster not in ("", archive.place.cluster)}


async def _delete(archive: Archive, orphans: Sequence[ObjectInfo], report: ScrubReport) -> None:
    """Delete orphans, each label after its object, because the label names the topic whose record is checked."""
    by_object: dict[str, list[str]] = {}
    for info in orphans:
        by_object.setdefault(object_of(info.name), []).append(info.name)
    for name, parts in by_object.items():
        await archive.place.confirm()
        if await _is_named(archive, name):
            continue
        label = segment_label.label_of(name)
        for part in sorted(parts, key=lambda part: part == label):
            await archive.store.delete(part)
            report.deleted += 1


async def _is_named(archive: Archive, name: str) -> bool:
    """Return whether the object may belong to another cluster, or is named by its topic's record now."""
    try:
        label = await segment_label.read(archive.store, segment_label.label_of(name))
    except (NotFound, CorruptionError):
        return False
    if label.cluster not in ("", archive.place.cluster):
        return True
    topic = await find_topic(archive.place.metadata, label.topic)
    segments = topic.segments if topic is not None else ()
    return any(segment.archive is not None and segment.archive.name == name for segment in segments)


async def _prove(
    archive: Archive,
    one: Recorded,
    damaged: list[_Wrong],
    unlabelled: list[_Wrong],
    record_times: RecordTimes | None,
) -> None:
    """Check one object and its label; add faults to the lists. Raises `Unavailable` if its state is unknown."""
    found = damaged
    times = None if one.is_measured or record_times is None else PublishTimes()
    try:
        await archive.verify(one.pointer, times)
        if times and record_times is not None:
            await record_times(one, times)
        found = unlabelled
        await archive.prove_label(one.topic, one.ledger_id, one.pointer)
    except (NotFound, CorruptionError) as error:
        found.append((one, error))


def _orphans(listed: Sequence[ObjectInfo], recorded: Sequence[Recorded], before_ms: int) -> list[ObjectInfo]:
    """Return the listed objects that were modified before `before_ms` and that no record names.

    Names are compared without stores, because an object's name is unique over all stores.
    """
    named = {one.pointer.name for one in recorded}
    return [info for info in listed if object_of(info.name) not in named and info.modified_ms < before_ms]
