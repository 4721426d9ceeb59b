"""The journal of a WAL: what is queued here is in objects, in order, when its `done` is called.

The decisions are in `wal_core`; this one gathers what is queued, uploads groups and tells who waits. An upload is tried
until it has an answer, with the same bytes under the same name, for as long as that takes: what waits is in a memtable,
too, and when those are full sockets are not read. One that is late is *hedged*: the same upload once more, beside it;
the store lets one of the two make the object.

When the WAL ends, because somebody has closed it or the store bars us, everything queued and everything that comes
later is answered `UNREACHABLE`: its writers go on elsewhere. Whether it is in an object nobody knows here.

Order of life: `append` and the rest on the loop; `end`, if need be; `stop`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from quire.bookie.journal_core import Control, ControlKind
from quire.objects.store import ObjectStore
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, NotFound, QuireError, Unavailable
from quire.runtime.metrics import Histogram
from quire.runtime.tasks import Tasks
from quire.wal import wal_object
from quire.wal.patience import UNANSWERED, until_answered
from quire.wal.settings import WalSettings
from quire.wal.wal_core import Group, WalCore
from quire.wal.wal_object import HEADER_BYTES, Header, Tombstone, data_name
from quire.wire.block import Buffer
from quire.wire.bookie import AddDone, Status

log = logging.getLogger(__name__)

OK: Final = (Status.OK,)

HEDGE_FACTOR: Final = 3
"""An upload is late when it takes so many times as long as 95 of 100 lately took."""
HEDGE_LEAST_S: Final = 0.05
HEDGE_AT_FIRST_S: Final = 1.0
"""Late is what takes this long, until enough uploads have told how long they take."""
RECENT: Final = 64
ENOUGH: Final = 16


class ObjectJournal:
    """See `quire.bookie.neighbours.Journaling`. One WAL's, which has no other writer.

    `trim_seq` is the record's, as known now. `on_end` is called once, when the WAL ends by itself.
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
        """From the begin of an upload to its answer, whatever it took."""
        self.objects_written = self.bytes_written = self.uploads_hedged = 0

    @property
    def failure(self) -> QuireError | None:
        """Why nothing is acknowledged any more."""
        return self._core.failure

    @property
    def durable_seq(self) -> int:
        """Up to it all objects are there; -1 when there is none."""
        return self._core.durable_seq

    # -- the hot path ------------------------------------------------------------------------------------
    def append(
        self, parts: Sequence[Buffer], size_bytes: int, done: AddDone, statuses: Sequence[Status]
    ) -> None:
        """Queue blocks that belong together; `done(statuses)` on the loop when all are durable.

        Never called back before this returns. The blocks are not to be changed any more.
        """
        if self.failure is not None:
            _refuse(done, statuses)
            return
        self._core.queued(parts, size_bytes, (done, statuses), self._clock.monotonic())

    def control(self, control: Control, done: AddDone) -> None:
        """Queue a change of a ledger; `done(OK)` when it, and everything appended before, is durable.

        Only tombstones are written: a WAL is never opened again, so a fence or a LAC holds as long as its writer lives.
        """
        if control.kind is not ControlKind.TOMBSTONE or self.failure is not None:
            self.barrier(done, OK)
            return
        tombstone = Tombstone(control.ledger_id, control.value)
        self._core.deleted(tombstone, (done, OK), self._clock.monotonic())

    def barrier(self, done: AddDone, statuses: Sequence[Status]) -> None:
        """`done(statuses)` when everything appended before is durable."""
        if self.failure is not None:
            _refuse(done, statuses)
        elif not self._core.barrier((done, statuses)):
            asyncio.get_running_loop().call_soon(done, statuses)

    def seal(self) -> int:
        """Let the next block begin a new object; the sequence number of the last one before it, or -1.

        What was queued is uploaded without waiting for more.
        """
        return self._core.seal()

    # -- life --------------------------------------------------------------------------------------------
    def end(self, why: QuireError) -> None:
        """Acknowledge nothing any more: others may have taken over. `on_end` is not called for that."""
        self._on_end = None
        self._core.end(why)

    async def stop(self) -> None:
        """End what is left: whoever wants it durable has waited for a `barrier`."""
        self.end(Unavailable(f"WAL {self._wal} is not written any more: its process stops"))
        await self._tasks.stop()

    def metrics(self) -> dict[str, Any]:
        """What it tells Prometheus, since the WAL began."""
        return {
            "quire_wal_upload_latency_seconds": self.upload_s,
            "quire_wal_objects_written_total": self.objects_written,
            "quire_wal_bytes_written_total": self.bytes_written,
            "quire_wal_uploads_hedged_total": self.uploads_hedged,
        }

    # -- what the core asks ------------------------------------------------------------------------------
    def arm(self, delay_s: float) -> None:
        """See `WalEffects`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(
            delay_s, lambda: self._core.due(self._clock.monotonic())
        )

    def upload(self, group: Group, confirmed_seq: int) -> None:
        """See `WalEffects`."""
        parts = wal_object.encode_data(
            self._wal,
            group.seq,
            self._trim_seq(),
            confirmed_seq,
            self._clock.now_ms(),
            group.blocks,
            group.tombstones,
        )
        self._tasks.start(self._upload(group.seq, parts), f"upload object {group.seq}")

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

    # -- one upload --------------------------------------------------------------------------------------
    async def _upload(self, seq: int, parts: Sequence[Buffer]) -> None:
        """Try until there is an answer, and tell the core."""
        name = data_name(self._wal, seq)
        began_s = self._clock.monotonic()
        try:
            found = await self._put_or_find(name, parts)
        except QuireError as why:
            self._core.end(why)
            return
        self.upload_s.observe(self._clock.monotonic() - began_s)
        self.objects_written += 1
        self.bytes_written += sum(map(len, parts))
        if found is None:
            self._core.uploaded(seq)
        else:
            self._core.taken(seq, wal_object.read_header(parts[0], name), found)

    async def _put_or_find(self, name: str, parts: Sequence[Buffer]) -> Header | None:
        """Make the object, or find which one has its name. Raises `ConfigurationError`, `CorruptionError`."""
        while True:
            try:
                await until_answered(lambda: self._put(name, parts), f"upload of {name}")
                return None
            except AlreadyExists:
                pass
            try:
                head = await until_answered(
                    lambda: self._objects.get_range(name, 0, HEADER_BYTES), f"look at {name}"
                )
                return wal_object.read_header(head, name)
            except NotFound:
                continue  # whoever closed the WAL has put it into a set

    async def _put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Upload once, and once more beside it when that is late. Raises what the last to answer raises."""
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

    def _attempt(self, name: str, parts: Sequence[Buffer]) -> asyncio.Task[QuireError | None]:
        async def put() -> QuireError | None:
            try:
                await self._objects.put_whole(name, parts)
            except QuireError as error:
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
