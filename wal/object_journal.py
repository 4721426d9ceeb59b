"""Journal of a WAL: uploads queued blocks in order, and calls `done` when they are durable.

It is the shell of `wal_core`, which collects queued blocks into groups. This module uploads each group as one object,
and calls the waiting callbacks. An upload is repeated with the same bytes and name until the store answers. Queued
blocks are also in a memtable; while both memtables are full, the broker stops reading its sockets. A late upload is
*hedged*: a second upload of the same object starts in parallel, and the store lets one of the two create the object.

The WAL ends when it is closed, when the store denies access, or after an unexpected exception. Then `done` is called
with `UNREACHABLE` for all queued and later blocks, and their ledgers' writers change ensembles. A queued block may or
may not be in an object then. A failed upload must end the WAL, because it would block all later uploads.

Order of calls: `append`, `control`, `barrier` and `seal` on the loop; `end`, if necessary; `stop`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from quire.bookie.journal_core import Control, ControlKind
from quire.objects.store import ObjectStore
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, NotFound, QuireError, Unavailable
from quire.runtime.metrics import Histogram
from quire.runtime.tasks import Tasks
from quire.wal import wal_object
from quire.wal.patience import UNANSWERED, as_quire_error, until_answered
from quire.wal.settings import WalSettings
from quire.wal.wal_core import Group, WalCore
from quire.wal.wal_object import HEADER_BYTES, Header, Tombstone, data_name
from quire.wire.block import Buffer
from quire.wire.bookie import AddDone, Status

log = logging.getLogger(__name__)

OK: Final = (Status.OK,)

HEDGE_FACTOR: Final = 3
"""Multiple of the 95th percentile of recent upload durations after which an upload counts as late."""
HEDGE_LEAST_S: Final = 0.05
HEDGE_AT_FIRST_S: Final = 1.0
"""Seconds after which an upload counts as late, until there are enough samples."""
RECENT: Final = 64
ENOUGH: Final = 16


class ObjectJournal:
    """Implementation of `quire.bookie.neighbours.Journaling`, and the only writer of one WAL.

    `trim_seq` returns the record's current trim point. `on_end` is called once, unless the caller ends the journal.
    """

    def __init__(
        self,
        objects: ObjectStore,
        wal: str,
        settings: WalSettings,
        clock: Clock,
        trim_seq: Callable[[], int],
        on_end: Callable[[QuireError], None],
    ) -> None:
        self._objects = objects
        self._wal = wal
        self._clock = clock
        self._trim_seq = trim_seq
        self._on_end: Callable[[QuireError], None] | None = on_end
        self._tasks = Tasks(f"wal {wal[:8]}")
        self._timer: asyncio.TimerHandle | None = None
        self._core = WalCore(
            self,
            batch_s=settings.wal_batch_ms / 1000,
            batch_bytes=settings.wal_batch_bytes,
            uploads_max=settings.wal_uploads_max,
        )
        self._took_s: deque[float] = deque(maxlen=RECENT)
        self.upload_s = Histogram()
        """Seconds from the first attempt of an upload to the store's answer."""
        self.objects_written = self.bytes_written = self.uploads_hedged = 0

    @property
    def failure(self) -> QuireError | None:
        """The error that ended the journal; None while it is open."""
        return self._core.failure

    @property
    def durable_seq(self) -> int:
        """Sequence number up to which all objects are durable; -1 before the first."""
        return self._core.durable_seq

    # -- the hot path ------------------------------------------------------------------------------------
    def append(
        self, parts: Sequence[Buffer], size_bytes: int, done: AddDone, statuses: Sequence[Status]
    ) -> None:
        """Queue blocks that must be in one object; call `done(statuses)` on the event loop when all are durable.

        `done` is never called before this method returns. The caller must not change the blocks.
        """
        if self.failure is not None:
            _refuse(done, statuses)
            return
        self._core.queued(parts, size_bytes, (done, statuses), self._clock.monotonic())

    def control(self, control: Control, done: AddDone) -> None:
        """Queue a change of a ledger's state; call `done(OK)` when it and everything queued before are durable.

        Only tombstones are written: a WAL is never reopened, so fences and LACs are needed only while its writer runs.
        """
        if control.kind is not ControlKind.TOMBSTONE or self.failure is not None:
            self.barrier(done, OK)
            return
        tombstone = Tombstone(control.ledger_id, control.value)
        self._core.deleted(tombstone, (done, OK), self._clock.monotonic())

    def barrier(self, done: AddDone, statuses: Sequence[Status]) -> None:
        """Call `done(statuses)` when everything queued before is durable."""
        if self.failure is not None:
            _refuse(done, statuses)
        elif not self._core.barrier((done, statuses)):
            asyncio.get_running_loop().call_soon(done, statuses)

    def seal(self) -> int:
        """Upload queued blocks without waiting for more. Return the sequence number of the last object, or -1.

        The next block begins a new object.
        """
        return self._core.seal()

    # -- life --------------------------------------------------------------------------------------------
    def end(self, why: QuireError) -> None:
        """End the journal without calling `on_end`. No block is acknowledged from now on."""
        self._on_end = None
        self._core.end(why)

    async def stop(self) -> None:
        """Cancel pending uploads. A caller that needs durability must wait for a `barrier` first."""
        self.end(Unavailable(f"WAL {self._wal} has ended: its process is stopping"))
        await self._tasks.stop()

    def metrics(self) -> dict[str, Any]:
        """Return metrics since the start of the WAL."""
        return {
            "quire_wal_upload_latency_seconds": self.upload_s,
            "quire_wal_objects_written_total": self.objects_written,
            "quire_wal_bytes_written_total": self.bytes_written,
            "quire_wal_uploads_hedged_total": self.uploads_hedged,
        }

    # -- effects -----------------------------------------------------------------------------------------
    def arm(self, delay_s: float) -> None:
        """See `WalEffects`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._due)

    def _due(self) -> None:
        with self._ending_by_exceptions():
            self._core.due(self._clock.monotonic())

    def upload(self, group: Group, confirmed_seq: int) -> None:
        """See `WalEffects`."""
        self._tasks.start(self._upload(group, self._trim_seq(), confirmed_seq), f"upload object {group.seq}")

    def durable(self, groups: Sequence[Group]) -> None:
        """See `WalEffects`."""
        for group in groups:
            for done, statuses in group.waiters:
                try:
                    done(statuses)
                except Exception:
                    log.exception("a callback of object %d failed", group.seq)

    def ended(self, why: QuireError, groups: Sequence[Group]) -> None:
        """See `WalEffects`."""
        if self._timer is not None:
            self._timer.cancel()
        for group in groups:
            for done, statuses in group.waiters:
                _refuse(done, statuses)
        if self._on_end is not None:
            self._on_end(why)

    @contextmanager
    def _ending_by_exceptions(self) -> Iterator[None]:
        """End the WAL if the body of the `with` statement raises an exception."""
        try:
            yield
        except Exception as error:
            self._core.end(as_quire_error(error, f"the writing of WAL {self._wal}"))

    # -- one upload --------------------------------------------------------------------------------------
    async def _upload(self, group: Group, trim_seq: int, confirmed_seq: int) -> None:
        """Upload the group until the store answers, and pass the result to the core."""
        seq, name = group.seq, data_name(self._wal, group.seq)
        with self._ending_by_exceptions():
            parts = wal_object.encode_data(
                self._wal,
                seq,
                trim_seq,
                confirmed_seq,
                self._clock.now_ms(),
                group.blocks,
                group.tombstones,
            )
            began_s = self._clock.monotonic()
            found = await self._put_or_find(name, parts)
            self.upload_s.observe(self._clock.monotonic() - began_s)
            self.objects_written += 1
            self.bytes_written += sum(map(len, parts))
            if found is None:
                self._core.uploaded(seq)
            else:
                self._core.taken(seq, wal_object.read_header(parts[0], name), found)

    async def _put_or_find(self, name: str, parts: Sequence[Buffer]) -> Header | None:
        """Create the object and return None; if the name is taken, return the header of the existing object.

        Raises `ConfigurationError`, `CorruptionError`.
        """
        while True:
            try:
                await until_answered(lambda: self._put(name, parts), f"upload of {name}")
                return None
            except AlreadyExists:
                pass
            try:
                head = await until_answered(
                    lambda: self._objects.get_range(name, 0, HEADER_BYTES), f"read of the header of {name}"
                )
                return wal_object.read_header(head, name)
            except NotFound:
                continue  # the WAL was closed, and the collector copied the object into a set

    async def _put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Upload once, with a second upload in parallel if the first is late; succeed if either one does.

        An error that is a definite answer of the store is raised at once. Other errors are raised only after both
        uploads have failed.
        """
        began_s = self._clock.monotonic()
        attempts = [self._attempt(name, parts)]
        await asyncio.wait(attempts, timeout=self._late_s())
        if not attempts[0].done():
            self.uploads_hedged += 1
            attempts.append(self._attempt(name, parts))
        while attempts:
            await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            ended = next(each for each in attempts if each.done())
            attempts.remove(ended)
            error = ended.result()
            if error is None:
                self._took_s.append(self._clock.monotonic() - began_s)
                return
            if not attempts or not isinstance(error, UNANSWERED):
                raise error

    def _attempt(self, name: str, parts: Sequence[Buffer]) -> asyncio.Task[Exception | None]:
        async def put() -> Exception | None:
            try:
                await self._objects.put_whole(name, parts)
            except Exception as error:
                return error
            return None

        return self._tasks.start(put(), f"put {name}")

    def _late_s(self) -> float:
        if len(self._took_s) < ENOUGH:
            return HEDGE_AT_FIRST_S
        return max(HEDGE_FACTOR * sorted(self._took_s)[len(self._took_s) * 95 // 100], HEDGE_LEAST_S)


def _refuse(done: AddDone, statuses: Sequence[Status]) -> None:
    unknown = [Status.UNREACHABLE if status is Status.OK else status for status in statuses]
    asyncio.get_running_loop().call_soon(done, unknown)
