"""Offloader: uploads a broker's segments to the archive, and then deletes the bookies' copies.

    segment                                            next action
    active, or sealed without entries                  NOTHING   (the topic's owner removes an empty segment)
    sealed less than `delay_ms` ago                    NOTHING   (uploads do not slow a burst of publishing)
    sealed, no object recorded                         UPLOAD    once it is flushed: upload, verify, record
    object recorded, on the bookies, within the lag    NOTHING   (the lag is `lag_ms` from the upload on)
    object recorded, on the bookies, after the lag     RELEASE   read the object again, then record that readers must
                                                                 not use the bookies' copy
    object recorded, not on the bookies                DELETE    delete the bookies' copy (again after a restart)

Each step depends on the previous step's compare-and-set in the metadata store, so a crash repeats at most one step.
A second upload creates a second object (the first is an orphan, see `scrub`); a second deletion has no effect.

The bookies' copy is deleted only after the segment's record directs readers to the archive. The record is changed only
after the object was read back in full twice, after the upload and after the lag. Thus, damage is found while another
copy exists. Only an operator's `repair` uploads a damaged segment again, because a store that has lost all objects at
once is probably not mounted.

Before a round deletes anything, it verifies that the metadata store and the archive belong to the cluster
(`Place.confirm`). If they do not, the bookies' copies are kept. Deletions come last in a round, and their number is
limited.

While bookies are short of space, segments are uploaded without `delay_ms`, and released without the lag.

`next_action` implements the table. `Offloader` performs the actions, a few segments at a time, with exponential
back-off after failures of a segment. It logs the first of consecutive failures, and the success after them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol, Self

from msgspec import Struct

from quire.metadata.records import ArchivePointer, SegmentRecord
from quire.runtime.clock import Clock
from quire.runtime.errors import CorruptionError, Fenced, NotFound, QuireError, VersionConflict
from quire.runtime.tasks import Tasks
from quire.tiering.archive import Archive, SegmentReader
from quire.tiering.progress import Progress

INTERVAL_S: Final = 10.0
"""Interval in seconds between rounds over all segments; `wake` starts the next round earlier."""

CONCURRENCY: Final = 2
"""Number of segments that are uploaded in parallel. Each upload needs some 20 MiB of memory, and reads from the
bookies' disks.
"""

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 300.0
TOPICS_PER_TURN: Final = 100

PROVEN_S: Final = 60.0
"""Seconds after a full read of an object during which a release checks only the object's length."""

DELETIONS_PER_ROUND: Final = 1_000
"""Maximum number of deletions in one round.

After a restart, the deletions of all released segments are due again, and would delay uploads.
"""

log = logging.getLogger(__name__)


class Action(Enum):
    NOTHING = "nothing"
    UPLOAD = "upload"
    RELEASE = "release"
    DELETE = "delete"


def next_action(
    segment: SegmentRecord, *, now_ms: int, lag_ms: int, copy_is_gone: bool, delay_ms: int = 0
) -> Action:
    """Return a segment's next action, from the module's table.

    `copy_is_gone` means that this process has deleted the bookies' copy. A recorded time in the future, from a clock
    that was ahead, causes no wait.
    """
    if not segment.is_sealed or segment.last_entry < 0:
        return Action.NOTHING
    if segment.archive is None:
        return Action.NOTHING if 0 <= now_ms - segment.sealed_ms < delay_ms else Action.UPLOAD
    if segment.on_bookies:
        return Action.NOTHING if 0 <= now_ms - segment.archive.archived_ms < lag_ms else Action.RELEASE
    return Action.NOTHING if copy_is_gone else Action.DELETE


class OffloadTopic(NamedTuple):
    """Topic that this broker owns, and its segments, oldest first."""

    name: str
    segments: Sequence[SegmentRecord]
    lag_ms: int | None = None
    """Lag of the topic's policies; None: the lag of the driver."""


class Archived(NamedTuple):
    """Archived segment of a topic; `segment.archive` is the pointer to its object."""

    topic: str
    segment: SegmentRecord


class OffloadTarget(Protocol):
    """Interface to the broker. The two `record_` methods change the topic's segment list by compare-and-set.

    They raise `NotFound` if the segment was trimmed, and `Fenced` or `VersionConflict` if another broker owns the topic
    now; then the segment is skipped.
    """

    def topics(self) -> Iterable[OffloadTopic]:
        """Yield this broker's topics in their current state.

        The caller yields to the event loop between topics, because there may be ten thousand.
        """
        ...

    def generation(self, topic: str) -> int:
        """Return the topic's generation. Raises `Fenced` if another broker owns the topic now."""
        ...

    async def is_flushed(self, ledger_id: int) -> bool: ...

    async def open_reader(self, ledger_id: int) -> SegmentReader:
        """Open a reader of the bookies' copy."""
        ...

    async def open_combined(self, topic: str, ledger_id: int) -> SegmentReader:
        """Open a reader that takes each block from an undamaged copy: the bookies' or the object's."""
        ...

    async def record_archived(self, topic: str, segment: SegmentRecord) -> None:
        """Record the pointer and the publish times of `segment`."""
        ...

    async def record_released(self, topic: str, ledger_id: int) -> None:
        """Record that readers must not use the bookies' copy (`on_bookies=False`)."""
        ...

    async def delete_copy(self, topic: str, ledger_id: int) -> None:
        """Delete the ledger from the bookies; do nothing if it does not exist."""
        ...


class Report(Struct):
    """Base class of reports, which are summed over brokers, and shown by REST and the command line."""

    def add(self, other: Self) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class OffloadReport(Report):
    """Result of one round."""

    archived: int = 0
    archived_bytes: int = 0
    released: int = 0
    """Number of archived segments whose copy on the bookies was deleted."""
    waiting: int = 0
    """Number of sealed segments that are not flushed yet, or that wait after a failure."""
    failed: int = 0
    errors: list[str] = []

    def add_round(self, report: OffloadReport) -> None:
        """Add the result of a round to these totals; take `waiting` from the round, and drop its errors."""
        self.archived += report.archived
        self.archived_bytes += report.archived_bytes
        self.released += report.released
        self.failed += report.failed
        self.waiting = report.waiting


class OffloadStatus(Report):
    """Work in progress, and totals since the start of the broker."""

    running: list[str]
    failing: list[str]
    """Error of each segment whose last action failed."""
    archived: int
    archived_bytes: int
    released: int
    waiting: int


class RepairReport(Report):
    """Result of a repair. `damaged` lists objects that stay damaged, `errors` lists unreadable objects."""

    segments: int = 0
    repaired: int = 0
    damaged: list[str] = []
    errors: list[str] = []


@dataclass
class _Incident:
    """Consecutive failures of a segment."""

    error: str
    failures: int
    retry_at: float


class _Job(NamedTuple):
    action: Action
    topic: str
    segment: SegmentRecord

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.segment.ledger_id

    def __str__(self) -> str:
        return f"{self.action.value} segment {self.segment.ledger_id} of {self.topic}"


class Attempts:
    """Running jobs, and consecutive failures of each segment; each failure doubles the delay of the next attempt."""

    def __init__(self, clock: Clock) -> None:
        self.running: dict[str, _Job] = {}
        self._clock = clock
        self._incidents: dict[tuple[str, int], _Incident] = {}

    def failures(self, topic: str) -> dict[int, str]:
        """Return the last error of each failing segment of a topic, by ledger."""
        return {key[1]: incident.error for key, incident in self._incidents.items() if key[0] == topic}

    @property
    def failing(self) -> int:
        """Number of segments whose last action failed."""
        return len(self._incidents)

    @property
    def errors(self) -> list[str]:
        return [incident.error for incident in self._incidents.values()]

    def must_wait(self, job: _Job) -> bool:
        """Return whether the delay after the segment's last failure has not passed yet."""
        incident = self._incidents.get(job.key)
        return incident is not None and self._clock.monotonic() < incident.retry_at

    def forget_all_but(self, seen: set[tuple[str, int]]) -> None:
        for key in self._incidents.keys() - seen:
            del self._incidents[key]

    @asynccontextmanager
    async def watched(self, job: _Job, report: OffloadReport) -> AsyncIterator[None]:
        """List the job as running, and convert its errors into incidents."""
        key = job.key
        self.running[str(job)] = job
        try:
            yield
        except (Fenced, VersionConflict, NotFound):
            self._incidents.pop(key, None)  # another broker owns the topic, or the segment was trimmed
        except Exception as error:
            report.failed += 1
            report.errors.append(f"{job}: {error}")
            self._failed(key, f"{job}: {error}")
            if not isinstance(error, QuireError):
                log.exception("cannot %s: internal error", job)
        else:
            if self._incidents.pop(key, None) is not None:
                log.info("%s: succeeded after earlier failures", job)
        finally:
            del self.running[str(job)]

    def _failed(self, key: tuple[str, int], error: str) -> None:
        before = self._incidents.get(key)
        failures = before.failures + 1 if before is not None else 1
        delay = min(BACKOFF_FIRST_S * 2 ** (failures - 1), BACKOFF_MAX_S)
        self._incidents[key] = _Incident(error, failures, self._clock.monotonic() + delay)
        if before is None:
            log.warning("cannot %s; trying again", error)


class Offloader:
    """Driver of the actions in the module's table; there is one per broker."""

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
        self.lag_ms = lag_ms
        self.delay_ms = delay_ms
        self._is_short_of_space = is_short_of_space
        self._tasks = Tasks("archive")
        self._wake = asyncio.Event()
        self._round = asyncio.Lock()
        self._copies_gone: set[int] = set()
        self._uploaded_s: dict[int, float] = {}
        self._place_error = ""
        self._listeners: list[Callable[[Sequence[Archived]], None]] = []
        self.attempts = Attempts(clock)
        self.totals = OffloadReport()
        """Totals since the start; `waiting` is the value of the last round."""

    def start(self) -> None:
        """Run rounds in the background, every `INTERVAL_S` and after `wake`."""
        self._tasks.start(self._run(), "offload")

    def on_archived(self, listener: Callable[[Sequence[Archived]], None]) -> None:
        """Call `listener` in every round with all archived segments that are not released yet.

        The broker that owns the topic passes a segment in every round until the lag is over, so a restarted listener
        receives the segment again.
        """
        self._listeners.append(listener)

    def wake(self) -> None:
        """Start a round soon, because a segment was sealed or flushed."""
        self._wake.set()

    async def stop(self) -> None:
        """Stop without waiting; uploads in progress are cancelled."""
        await self._tasks.stop()

    async def run_once(self, progress: Progress | None = None) -> OffloadReport:
        """Archive all sealed segments now, flushed or not, even those that wait after a failure; return the result."""
        return await self._do_round(by_hand=True, progress=progress)

    async def upload(self, topic: str, find: Callable[[], Iterable[SegmentRecord]]) -> OffloadReport:
        """Archive now, flushed or not, the sealed segments of a topic that `find` returns after the current round."""
        async with self._round:
            report = OffloadReport(waiting=self.totals.waiting)
            jobs = deque(_Job(Action.UPLOAD, topic, segment) for segment in find())
            await self._perform_all(jobs, report, by_hand=True, progress=Progress("run"))
            self.totals.add_round(report)
            return report

    def status(self) -> OffloadStatus:
        """Return running jobs and failures, for operators."""
        failing = self.attempts.errors
        return OffloadStatus(
            running=[str(job) for job in self.attempts.running.values()],
            failing=[self._place_error, *failing] if self._place_error else failing,
            archived=self.totals.archived,
            archived_bytes=self.totals.archived_bytes,
            released=self.totals.released,
            waiting=self.totals.waiting,
        )

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
            due = await self._due(0 if by_hand else self.delay_ms)
            jobs = deque(await self._in_order(due, report, by_hand))
            await self._perform_all(jobs, report, by_hand=by_hand, progress=progress)
            self.totals.add_round(report)
            return report

    async def _perform_all(
        self, jobs: deque[_Job], report: OffloadReport, *, by_hand: bool, progress: Progress
    ) -> None:
        progress.of = len(jobs)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(CONCURRENCY, len(jobs))):
                group.create_task(self._work(jobs, report, by_hand, progress))

    async def _in_order(self, due: list[_Job], report: OffloadReport, by_hand: bool) -> list[_Job]:
        """Return uploads, then releases, then deletions; return only uploads if the stores cannot be verified now."""
        jobs = {action: [job for job in due if job.action is action] for action in Action}
        releases, deletions = jobs[Action.RELEASE], jobs[Action.DELETE]
        error = await self._prove_place() if releases or deletions else ""
        if error != self._place_error:
            self._place_error = error
            log.log(
                logging.ERROR if error else logging.INFO,
                "%s",
                error or "verified archive and metadata store again",
            )
        if error:
            report.failed += len(releases) + len(deletions)
            report.errors.append(error)
            return jobs[Action.UPLOAD]
        if len(deletions) > DELETIONS_PER_ROUND and not by_hand:
            deletions = deletions[:DELETIONS_PER_ROUND]
            self._wake.set()
        return [*jobs[Action.UPLOAD], *releases, *deletions]

    async def _prove_place(self) -> str:
        """Verify that metadata store and archive belong to the cluster. Return the error's text, or "" if they do."""
        try:
            await self._archive.place.confirm()
        except QuireError as error:
            return f"the bookies' copies of archived segments are kept: {error}"
        return ""

    async def _due(self, delay_ms: int) -> list[_Job]:
        now_ms = self._clock.now_ms()
        is_short = self._is_short_of_space()
        delay_ms = 0 if is_short else delay_ms
        jobs = []
        archived: list[Archived] = []
        seen: set[tuple[str, int]] = set()
        for number, topic in enumerate(self._target.topics()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            seen.update((topic.name, segment.ledger_id) for segment in topic.segments)
            own_lag_ms = self.lag_ms if topic.lag_ms is None else topic.lag_ms
            lag_ms = 0 if is_short else own_lag_ms
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
        """Forget segments that were trimmed, or whose topic moved to another broker."""
        if self._copies_gone or self._uploaded_s:
            ledgers = {ledger_id for _, ledger_id in seen}
            self._copies_gone &= ledgers
            self._uploaded_s = {each: at for each, at in self._uploaded_s.items() if each in ledgers}
        self.attempts.forget_all_but(seen)

    async def _work(
        self, jobs: deque[_Job], report: OffloadReport, by_hand: bool, progress: Progress
    ) -> None:
        while jobs:
            job = jobs.popleft()
            if not by_hand and self.attempts.must_wait(job):
                report.waiting += 1
                continue
            async with self.attempts.watched(job, report):
                await self._perform(job, report, by_hand)
            progress.done += 1

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
        generation = self._target.generation(job.topic)
        archived = await self._archive.offload(job.topic, job.segment, reader, generation)
        pointer = archived.archive
        assert pointer is not None
        self._uploaded_s[ledger_id] = self._clock.monotonic()
        try:
            await self._target.record_archived(job.topic, archived)
        except NotFound:
            await self._archive.delete([pointer])  # the segment was trimmed, and no record names the object
            return
        report.archived += 1
        report.archived_bytes += pointer.bytes
        log.info("archived segment %d of %s: %s", job.segment.ledger_id, job.topic, pointer.name)

    async def _release(self, job: _Job) -> None:
        pointer = job.segment.archive
        assert pointer is not None
        try:
            await self._prove(job.segment.ledger_id, pointer)
        except (NotFound, CorruptionError) as error:
            what = f"segment {job.segment.ledger_id} of {job.topic}"
            damage = self._archive.note_damage(pointer, what, error)
            raise CorruptionError(f"{damage}; the bookies' copy is kept") from error
        await self._target.record_released(job.topic, job.segment.ledger_id)

    async def _prove(self, ledger_id: int, pointer: ArchivePointer) -> None:
        uploaded_s = self._uploaded_s.pop(ledger_id, -math.inf)
        if self._clock.monotonic() - uploaded_s >= PROVEN_S:
            await self._archive.prove(pointer)
        elif not await self._archive.is_there(pointer):
            raise CorruptionError(
                f"object {pointer.name} is missing in {pointer.store}, or has another length"
            )

    async def repair(self, topic: str, segment: SegmentRecord) -> bool:
        """Check a segment's object, and upload it again if it is damaged; return whether it was uploaded.

        The upload's source is the bookies' copy together with the undamaged blocks of the object. Raises
        `CorruptionError` if the source is incomplete, and the errors of a round.
        """
        pointer = segment.archive
        assert pointer is not None
        try:
            await self._archive.prove(pointer)
        except (NotFound, CorruptionError) as error:
            damage = self._archive.note_damage(pointer, f"segment {segment.ledger_id} of {topic}", error)
        else:
            return False
        async with self._round:  # prevents releases during the repair
            try:
                await self._upload(_Job(Action.UPLOAD, topic, segment), OffloadReport(), combined=True)
            except (NotFound, CorruptionError) as error:
                raise CorruptionError(f"{damage}; it cannot be uploaded again: {error}") from error
        try:
            await self._archive.delete([pointer])
        except QuireError as error:
            log.warning(
                "cannot delete the damaged object %s after its repair, a scrub will delete it: %s",
                pointer.name,
                error,
            )
        return True

    async def repair_label(self, topic: str, segment: SegmentRecord) -> bool:
        """Write a segment's label again if it is damaged or missing; return whether it was written.

        Raises the store's errors.
        """
        pointer = segment.archive
        assert pointer is not None
        try:
            await self._archive.prove_label(topic, segment.ledger_id, pointer)
        except (NotFound, CorruptionError):
            await self._archive.relabel(topic, segment, pointer, self._target.generation(topic))
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
            return False  # the segment was trimmed
