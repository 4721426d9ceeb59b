"""What happens next with each segment of a broker: the driver of the archive.

    segment                                            next action
    active, or sealed without entries                  NOTHING   (the topic drops an empty segment by itself)
    sealed a moment ago                                NOTHING   (a burst of publishing has the disk to itself)
    sealed, no object recorded                         UPLOAD    once it is flushed: upload, verify, record
    object recorded, on the bookies, lag not over      NOTHING
    object recorded, on the bookies, lag over          RELEASE   prove the object once more, record that readers
                                                                 must not go to the bookies any more
    object recorded, not on the bookies                DELETE    delete the bookies' copy (again after a restart)

Each step rests on what the one before wrote into the metadata store by version, so a crash between any two of them
repeats a step at most: a second upload makes a second object (the first is nobody's, see `scrub`), a second
deletion finds nothing. The bookies' copy goes only after the record says that readers use the archive, and the
record says so only after the object was read back in full, and again after the lag: what rots meanwhile, or was
written to a disk that lies, is found while there is another copy. `repair` uploads such a segment again, by hand: a
store that lost everything at once is rather one that is not mounted.

While space is short on bookies, nothing waits: neither the upload after the sealing, nor the release after the upload.

`next_action` is the table. `Offloader` performs it, a few segments at a time, and waits longer after each failure of
a segment; it logs the first failure of an incident and its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from quire.metadata.records import ArchivePointer, SegmentRecord
from quire.runtime.clock import Clock
from quire.runtime.errors import CorruptionError, Fenced, NotFound, QuireError, VersionConflict
from quire.runtime.tasks import Tasks
from quire.tiering.archive import Archive, SegmentReader
from quire.tiering.progress import Progress

INTERVAL_S: Final = 10.0
"""How often all segments are looked at, beside `wake`."""

CONCURRENCY: Final = 2
"""Segments at once: each holds some 20 MiB on its way and reads the bookies' disks."""

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 300.0
TOPICS_PER_TURN: Final = 100

PROVEN_MS: Final = 60_000
"""An object that was read back in full so recently is only looked at before the bookies' copy goes."""

log = logging.getLogger(__name__)


class Action(Enum):
    NOTHING = "nothing"
    UPLOAD = "upload"
    RELEASE = "release"
    DELETE = "delete"


def next_action(
    segment: SegmentRecord, *, now_ms: int, lag_ms: int, copy_is_gone: bool, delay_ms: int = 0
) -> Action:
    """See the table. `copy_is_gone`: this process has seen the bookies' copy deleted."""
    if not segment.is_sealed or segment.last_entry < 0:
        return Action.NOTHING
    if segment.archive is None:
        return Action.UPLOAD if now_ms - segment.sealed_ms >= delay_ms else Action.NOTHING
    if segment.on_bookies:
        return Action.RELEASE if now_ms - segment.archive.archived_ms >= lag_ms else Action.NOTHING
    return Action.NOTHING if copy_is_gone else Action.DELETE


class OffloadTopic(NamedTuple):
    """A topic that this broker owns, and its segments, oldest first."""

    name: str
    segments: Sequence[SegmentRecord]


class Archived(NamedTuple):
    """A segment that has an object."""

    topic: str
    segment: SegmentRecord


class OffloadTarget(Protocol):
    """What the driver needs of the broker. The two `record_` calls change the list by version.

    They raise `NotFound` when the segment was trimmed and `Fenced` or `VersionConflict` when the topic is another
    broker's by now; the segment is let alone then.
    """

    def topics(self) -> Iterable[OffloadTopic]:
        """Each as it is when its turn comes: the driver pauses between them, for a broker may have ten thousand."""
        ...

    async def is_flushed(self, ledger_id: int) -> bool: ...

    async def open_reader(self, ledger_id: int) -> SegmentReader:
        """Of the bookies' copy."""
        ...

    async def open_combined(self, topic: str, ledger_id: int) -> SegmentReader:
        """Of the bookies' copy and of the object, each block from where it is whole, as the topic's readers get it."""
        ...

    async def record_archived(self, topic: str, ledger_id: int, pointer: ArchivePointer) -> None: ...

    async def record_released(self, topic: str, ledger_id: int) -> None:
        """Record `on_bookies=False`."""
        ...

    async def delete_copy(self, topic: str, ledger_id: int) -> None:
        """Delete the ledger from the bookies; done as well when it is gone already."""
        ...


@dataclass
class OffloadReport:
    """What one round did. `as_dict` is what REST and the command line show."""

    archived: int = 0
    archived_bytes: int = 0
    released: int = 0
    """Segments whose copy on the bookies was deleted, because the archive has them."""
    waiting: int = 0
    """Sealed segments that are not flushed yet, or whose last failure was a moment ago."""
    failed: int = 0
    errors: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class RepairReport:
    """What a repair looked at and did. `damaged` are those that stay so, `errors` what it could not look at: lines."""

    segments: int = 0
    repaired: int = 0
    damaged: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Incident:
    """A segment's failures in a row."""

    error: str
    failures: int
    retry_at: float


class _Job(NamedTuple):
    action: Action
    topic: str
    segment: SegmentRecord

    def __str__(self) -> str:
        return f"{self.action.value} segment {self.segment.ledger_id} of {self.topic}"


class Offloader:
    """One per broker."""

    def __init__(
        self,
        archive: Archive,
        target: OffloadTarget,
        clock: Clock,
        *,
        lag_ms: int,
        delay_ms: int = 0,
        is_short_of_space: Callable[[], bool] = lambda: False,
    ) -> None:
        self._archive = archive
        self._target = target
        self._clock = clock
        self._lag_ms = lag_ms
        self._delay_ms = delay_ms
        self._is_short_of_space = is_short_of_space
        self._tasks = Tasks("archive")
        self._wake = asyncio.Event()
        self._round = asyncio.Lock()
        self._running: dict[str, _Job] = {}
        self._incidents: dict[tuple[str, int], _Incident] = {}
        self._copies_gone: set[int] = set()
        self._listeners: list[Callable[[Sequence[Archived]], None]] = []
        self.totals = OffloadReport()
        """Since the start; `waiting` is that of the last round."""

    def start(self) -> None:
        """Work in the background, every `INTERVAL_S` and when woken."""
        self._tasks.start(self._run(), "offload")

    def on_archived(self, listener: Callable[[Sequence[Archived]], None]) -> None:
        """Call `listener` in every round with all segments that are archived and not released by the bookies yet.

        All, not the new ones: who misses some, or is killed, hears of them again while the archive's lag lasts, at
        whichever broker has the topic then.
        """
        self._listeners.append(listener)

    def wake(self) -> None:
        """A segment was sealed or flushed."""
        self._wake.set()

    async def stop(self) -> None:
        """End at once; an upload on its way is thrown away."""
        await self._tasks.stop()

    async def run_once(self, progress: Progress | None = None) -> OffloadReport:
        """Archive every sealed segment now, flushed or not, whatever failed before, without delay.

        Answers when it is done.
        """
        return await self._do_round(by_hand=True, progress=progress)

    def failures(self, topic: str) -> dict[int, str]:
        """Why the next actions of a topic's segments failed the last time, by ledger."""
        return {key[1]: incident.error for key, incident in self._incidents.items() if key[0] == topic}

    @property
    def failing(self) -> int:
        """Segments whose last action failed."""
        return len(self._incidents)

    def status(self) -> dict[str, Any]:
        """What is under way and what fails, for people."""
        return {
            "running": [str(job) for job in self._running.values()],
            "failing": [incident.error for incident in self._incidents.values()],
            "archived": self.totals.archived,
            "archived_bytes": self.totals.archived_bytes,
            "released": self.totals.released,
            "waiting": self.totals.waiting,
        }

    # -- rounds ----------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            await self._do_round(by_hand=False)
            try:
                async with asyncio.timeout(INTERVAL_S):  # `wait_for` may swallow a cancellation
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _do_round(self, *, by_hand: bool, progress: Progress | None = None) -> OffloadReport:
        progress = progress or Progress("run")
        async with self._round:
            report = OffloadReport()
            jobs = deque(await self._due(0 if by_hand else self._delay_ms))
            progress.of = len(jobs)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(CONCURRENCY, len(jobs))):
                    group.create_task(self._work(jobs, report, by_hand, progress))
            self._add_up(report)
            return report

    async def _due(self, delay_ms: int) -> list[_Job]:
        now_ms = self._clock.now_ms()
        is_short = self._is_short_of_space()
        lag_ms, delay_ms = (0, 0) if is_short else (self._lag_ms, delay_ms)
        jobs = []
        archived: list[Archived] = []
        seen: set[tuple[str, int]] = set()
        for number, topic in enumerate(self._target.topics()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            seen.update((topic.name, segment.ledger_id) for segment in topic.segments)
            for segment in topic.segments:
                if segment.archive is not None and segment.on_bookies:
                    archived.append(Archived(topic.name, segment))
                gone = segment.ledger_id in self._copies_gone
                action = next_action(
                    segment, now_ms=now_ms, lag_ms=lag_ms, copy_is_gone=gone, delay_ms=delay_ms
                )
                if action is not Action.NOTHING:
                    jobs.append(_Job(action, topic.name, segment))
        self._forget_all_but(seen)
        for listener in self._listeners:
            listener(archived)
        return jobs

    def _forget_all_but(self, seen: set[tuple[str, int]]) -> None:
        """What is remembered of segments that were trimmed, or whose topic went to another broker."""
        if self._copies_gone:
            self._copies_gone &= {ledger_id for _, ledger_id in seen}
        for key in self._incidents.keys() - seen:
            del self._incidents[key]

    async def _work(
        self, jobs: deque[_Job], report: OffloadReport, by_hand: bool, progress: Progress
    ) -> None:
        while jobs:
            job = jobs.popleft()
            incident = self._incidents.get((job.topic, job.segment.ledger_id))
            if incident is not None and not by_hand and self._clock.monotonic() < incident.retry_at:
                report.waiting += 1
                continue
            async with self._watched(job, report):
                await self._perform(job, report, by_hand)
            progress.done += 1

    def _add_up(self, report: OffloadReport) -> None:
        self.totals.archived += report.archived
        self.totals.archived_bytes += report.archived_bytes
        self.totals.released += report.released
        self.totals.failed += report.failed
        self.totals.waiting = report.waiting

    # -- steps -----------------------------------------------------------------------------------------
    async def _perform(self, job: _Job, report: OffloadReport, by_hand: bool) -> None:
        match job.action:
            case Action.UPLOAD if not by_hand and not await self._is_flushed(job.segment.ledger_id):
                report.waiting += 1
            case Action.UPLOAD:
                await self._upload(job, report)
            case Action.RELEASE:
                await self._release(job)
                await self._delete(job, report)
            case Action.DELETE:
                await self._delete(job, report)
            case Action.NOTHING:
                pass

    async def _upload(self, job: _Job, report: OffloadReport, *, combined: bool = False) -> None:
        ledger_id = job.segment.ledger_id
        reader = await (
            self._target.open_combined(job.topic, ledger_id)
            if combined
            else self._target.open_reader(ledger_id)
        )
        pointer = await self._archive.offload(job.topic, job.segment, reader)
        try:
            await self._target.record_archived(job.topic, job.segment.ledger_id, pointer)
        except NotFound:
            await self._archive.delete(pointer)  # trimmed meanwhile: proven that nobody names the object
            return
        report.archived += 1
        report.archived_bytes += pointer.bytes
        log.info("archived segment %d of %s: %s", job.segment.ledger_id, job.topic, pointer.name)

    async def _release(self, job: _Job) -> None:
        pointer = job.segment.archive
        assert pointer is not None
        try:
            await self._prove(pointer)
        except (NotFound, CorruptionError) as error:
            what = f"segment {job.segment.ledger_id} of {job.topic}"
            damage = self._archive.note_damage(pointer, what, error)
            raise CorruptionError(f"{damage}; the bookies' copy is kept") from error
        await self._target.record_released(job.topic, job.segment.ledger_id)

    async def _prove(self, pointer: ArchivePointer) -> None:
        if self._clock.now_ms() - pointer.archived_ms >= PROVEN_MS:
            await self._archive.prove(pointer)
        elif not await self._archive.is_there(pointer):
            raise CorruptionError(f"object {pointer.name} is not in {pointer.store} as recorded")

    async def repair(self, topic: str, segment: SegmentRecord) -> bool:
        """Prove a segment's object; if it is damaged, upload it again. Whether that was done.

        What it is made of are the bookies' copy and what is whole of the object. Raises `CorruptionError` when that is
        not all of it; and as a round does.
        """
        pointer = segment.archive
        assert pointer is not None
        try:
            await self._archive.prove(pointer)
        except (NotFound, CorruptionError) as error:
            damage = self._archive.note_damage(pointer, f"segment {segment.ledger_id} of {topic}", error)
        else:
            return False
        async with self._round:  # nothing is released meanwhile
            try:
                await self._upload(_Job(Action.UPLOAD, topic, segment), OffloadReport(), combined=True)
            except (NotFound, CorruptionError) as error:
                raise CorruptionError(f"{damage}; it cannot be uploaded again: {error}") from error
        try:
            await self._archive.delete(pointer)
        except QuireError as error:
            log.warning("object %s was uploaded again, and is left to a scrub: %s", pointer.name, error)
        return True

    async def repair_label(self, topic: str, segment: SegmentRecord) -> bool:
        """Put a segment's label anew if it is damaged or was never put. Whether that was done. Raises as a put does."""
        pointer = segment.archive
        assert pointer is not None
        try:
            await self._archive.prove_label(topic, segment.ledger_id, pointer)
        except (NotFound, CorruptionError):
            await self._archive.relabel(topic, segment, pointer)
            return True
        return False

    async def _delete(self, job: _Job, report: OffloadReport) -> None:
        await self._target.delete_copy(job.topic, job.segment.ledger_id)
        self._copies_gone.add(job.segment.ledger_id)
        if job.action is Action.RELEASE:
            report.released += 1

    async def _is_flushed(self, ledger_id: int) -> bool:
        try:
            return await self._target.is_flushed(ledger_id)
        except NotFound:
            return False  # trimmed meanwhile

    # -- incidents -------------------------------------------------------------------------------------
    @asynccontextmanager
    async def _watched(self, job: _Job, report: OffloadReport) -> AsyncIterator[None]:
        """Show the job as running; a failure of it is an incident, not the end of the driver."""
        key = (job.topic, job.segment.ledger_id)
        self._running[str(job)] = job
        try:
            yield
        except (Fenced, VersionConflict, NotFound):
            self._incidents.pop(key, None)  # not ours any more, or trimmed
        except Exception as error:
            report.failed += 1
            report.errors.append(f"{job}: {error}")
            self._failed(key, f"{job}: {error}")
            if not isinstance(error, QuireError):
                log.exception("a mistake of ours, while it was to %s", job)
        else:
            if self._incidents.pop(key, None) is not None:
                log.info("%s: works again", job)
        finally:
            del self._running[str(job)]

    def _failed(self, key: tuple[str, int], error: str) -> None:
        before = self._incidents.get(key)
        failures = before.failures + 1 if before is not None else 1
        delay = min(BACKOFF_FIRST_S * 2 ** (failures - 1), BACKOFF_MAX_S)
        self._incidents[key] = _Incident(error, failures, self._clock.monotonic() + delay)
        if before is None:
            log.warning("cannot %s; trying again", error)
