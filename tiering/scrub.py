"""Does the object store hold what the metadata store says, and nothing else?

    damaged     a record names the object, and it is missing, of another length, or does not prove
    unlabelled  its label is missing or says something else: should the metadata store be lost, nobody could tell whose
                the object is (`segment_label`)
    orphan      no record names the object, and it is older than the grace: an upload that never was recorded, or
                a segment that was trimmed while its deletion failed; or the sidecar of such an object

The objects are listed *before* the records are read, and the records are read again before anything is deleted: an
object that is being uploaded right now is recorded later than it is listed, and within the grace. Deletion is on
demand only. The records are those of the whole store (`recorded_segments`), never those of one broker, whose
ignorance of a topic must not cost the topic its history. For the same reason an archive URL belongs to one cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from quire.metadata.records import ArchivePointer
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectInfo
from quire.runtime.clock import Clock
from quire.runtime.errors import CorruptionError, NotFound, QuireError, Unavailable
from quire.tiering.archive import PREFIX, Archive, object_of, sidecar_of
from quire.tiering.inventory import all_topics
from quire.tiering.progress import Progress

GRACE_MS: Final = 24 * 3_600_000
"""An object without a record is left alone this long: far longer than any upload and its recording take."""


class Recorded(NamedTuple):
    """A segment that has an object, as the metadata store tells it."""

    topic: str
    ledger_id: int
    pointer: ArchivePointer

    @property
    def what(self) -> str:
        return f"segment {self.ledger_id} of {self.topic}"


_Wrong = tuple[Recorded, QuireError]
"""An object, and what is wrong with it."""

Records = Callable[[], Awaitable[Sequence[Recorded]]]


@dataclass
class ScrubReport:
    """What was looked at and found. `damaged`, `unlabelled` and `orphans` are lines for people, an object in each."""

    segments: int = 0
    bytes: int = 0
    objects: int = 0
    sidecars: int = 0
    """Listed, not looked into: they are derived (`quire archive sidecars list`)."""
    orphan_bytes: int = 0
    deleted: int = 0
    unfinished_uploads: int = 0
    """Swept away: uploads that never ended, older than the grace. Only where deletion was asked for."""
    unreachable: int = 0
    """Objects whose store did not answer: nothing is known of them."""
    damaged: list[str] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def recorded_segments(store: MetadataStore) -> list[Recorded]:
    """Every archived segment of every topic. Reads the whole tree of topics: for an operator's command."""
    return [
        Recorded(topic.record.name, segment.ledger_id, segment.archive)
        async for topic in all_topics(store)
        for segment in topic.segments
        if segment.archive is not None
    ]


async def scrub(
    archive: Archive,
    records: Records,
    clock: Clock,
    *,
    grace_ms: int = GRACE_MS,
    delete_orphans: bool = False,
    progress: Progress | None = None,
) -> ScrubReport:
    """Read every recorded object in full, and list what is nobody's. Raises `Unavailable` when it cannot list."""
    report = ScrubReport()
    listed = await archive.store.list(PREFIX)
    report.objects = sum(object_of(info.name) == info.name for info in listed)
    report.sidecars = sum(sidecar_of(object_of(info.name)) == info.name for info in listed)
    recorded = await records()
    progress = progress or Progress("verify")
    progress.of = len(recorded)
    damaged: list[_Wrong] = []
    unlabelled: list[_Wrong] = []
    for one in recorded:
        report.segments += 1
        report.bytes += one.pointer.bytes
        try:
            await _prove(archive, one, damaged, unlabelled)
        except Unavailable:
            report.unreachable += 1
        progress.done += 1
    named = {one.pointer.name for one in await records()} if damaged or unlabelled else set()
    for one, error in damaged:
        if one.pointer.name in named:  # else it was trimmed meanwhile, or uploaded again
            report.damaged.append(archive.note_damage(one.pointer, one.what, error))
    report.unlabelled = [f"{one.what}: {error}" for one, error in unlabelled if one.pointer.name in named]
    before_ms = clock.now_ms() - grace_ms
    orphans = _orphans(listed, recorded, before_ms)
    report.orphans = [f"{info.name} ({info.bytes} bytes)" for info in orphans]
    report.orphan_bytes = sum(info.bytes for info in orphans)
    if delete_orphans:
        for info in _orphans(orphans, await records(), before_ms):
            await archive.store.delete(info.name)
            report.deleted += 1
        report.unfinished_uploads = await archive.store.sweep(before_ms)
    return report


async def _prove(archive: Archive, one: Recorded, damaged: list[_Wrong], unlabelled: list[_Wrong]) -> None:
    """Raises `Unavailable`: then nothing is known of it."""
    found = damaged
    try:
        await archive.verify(one.pointer)
        found = unlabelled
        await archive.prove_label(one.topic, one.ledger_id, one.pointer)
    except (NotFound, CorruptionError) as error:
        found.append((one, error))


def _orphans(listed: Sequence[ObjectInfo], recorded: Sequence[Recorded], before_ms: int) -> list[ObjectInfo]:
    """Names are unique over all stores, so a name alone says whose an object, and its sidecar, is."""
    named = {one.pointer.name for one in recorded}
    return [info for info in listed if object_of(info.name) not in named and info.modified_ms < before_ms]
