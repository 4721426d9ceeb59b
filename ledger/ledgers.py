"""The door of the room: create, recover, open and delete ledgers.

A ledger costs one metadata operation to create, one to close, one to take over, two to delete. Its record, the
intent, is written before anything is sent to a bookie, so whatever a bookie holds has (or had) a record. Who keeps a
list of ledgers can have its own steps *beside* a ledger's creation or end: one transaction for both.

Ids are unique and grow: the version of one node counts ranges of a hundred, and a process takes the next range by a
put. Two processes that take turns with one topic hold different ranges; `Above` makes the id greater than
that of the topic's last ledger, at the price of the rest of a range.

A ledger of a state log has *high priority*: bookies whose disk is full take its blocks as long as they have a reserve.
Others can be created there, too, and stay empty until there is room (`why_full`).

A ledger that is created with fewer bookies than the write quorum, but no fewer than the ack quorum, starts narrow.

Deleting is `deletion`: a bookie that does not answer keeps the record there. `delete` again, or leave it to repair.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from quire.ledger import flushed, loss, placement, recovery, states
from quire.ledger.directory import BookieDirectory
from quire.ledger.leaving import DELAY_S, Leaving
from quire.ledger.loss import Elsewhere, Loss, Span, nowhere
from quire.ledger.parts import LedgerContext
from quire.ledger.reader import LedgerReader
from quire.ledger.replicas import DamageListener
from quire.ledger.reported import Reported
from quire.ledger.settings import LedgerSettings
from quire.ledger.writer import LedgerWriter, WriterListener
from quire.metadata import paths
from quire.metadata.records import (
    BookieRecord,
    LedgerRecord,
    LedgerState,
    PersistencePolicy,
    Storage,
    decode,
    encode,
)
from quire.metadata.store import Create, MetadataStore, Step
from quire.runtime.clock import Clock
from quire.runtime.errors import (
    AlreadyExists,
    LostForGood,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    VersionConflict,
)

__all__ = ["LedgerReader", "LedgerWriter", "Ledgers", "WriterListener"]

_log = logging.getLogger(__name__)

IDS_PER_RANGE: Final = 100
_NO_SPAN: Final = Span()


class Above(NamedTuple):
    """The id of a new ledger is to be greater than this."""

    floor: int


ANY_ID: Final = Above(-1)
BY_SETTINGS: Final = PersistencePolicy()


class Ledgers:
    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieDirectory,
        clock: Clock,
        rng: Random,
        settings: LedgerSettings,
        *,
        rack: str = "",
        quarantine_s: float = placement.QUARANTINE_S,
        lost_after_s: float = DELAY_S,
    ) -> None:
        """`rack` is this process's own: replicas there are read first. `lost_after_s`: see `leaving`."""
        self.store = store
        self.clock = clock
        self._ids = _Ids(store)
        self._writers: dict[int, LedgerWriter] = {}
        self._parts = LedgerContext(store, bookies, clock, rng, settings, rack, quarantine_s)
        self.at_end_of_turn = self._parts.outbox.at_end
        """Put off until a turn of the loop is over. Blocks leave then; writing to ledgers there takes no other turn."""
        self._leaving = Leaving(bookies, clock, lost_after_s)
        self._reported = Reported(store, self._parts.tasks, self._writers)
        self.ack_quorum = settings.ack_quorum
        """Of ledgers whose creator says nothing else."""

    def available(self) -> Sequence[BookieRecord]:
        """Bookies that are up, as this process sees it."""
        return self._parts.bookies.available()

    def why_full(self, persistence: PersistencePolicy = BY_SETTINGS) -> str:
        """Why nothing of ordinary priority can be written now: too many disks are full; empty when it is not that."""
        if (persistence.storage or self._parts.bookies.storage) is Storage.OBJECTS:
            return ""
        available = self.available()
        writable = sum(not record.read_only for record in available)
        return placement.why_full(available) if writable < (persistence.ack_quorum or self.ack_quorum) else ""

    @property
    def is_short_of_space(self) -> bool:
        """A bookie that is up has little room left: what need not be on bookies should go soon."""
        return any(record.short_of_space for record in self.available())

    def follow_damage(self) -> None:
        """From now on `to_leave` tells of reported damage, and of bookies that were given up, too."""
        self._reported.start()

    def to_leave(self) -> set[int]:
        """Open ledgers of this process that should end, so that repair can copy them; see `leaving`."""
        damaged = self._reported.copies()
        return self._leaving.look(self._writers, self._parts.loads, damaged, self._reported.given_up)

    @property
    def bytes_lagging(self) -> int:
        """Confirmed bytes that are kept for bookies behind their quorum."""
        return self._parts.lag.bytes

    def on_damage(self, listener: DamageListener) -> None:
        """Call `listener` whenever a reader meets a copy that is damaged or missing."""
        self._parts.replicas.on_damage = listener

    async def create(
        self,
        purpose: str,
        listener: WriterListener,
        persistence: PersistencePolicy = BY_SETTINGS,
        *,
        ledger_id: int | Above = ANY_ID,
        generation: int = 0,
        atomically_with: Sequence[Step] = (),
    ) -> LedgerWriter:
        """A new ledger, open, with a reserved id, or one that nobody has. `purpose` and `generation` say whose it is.

        Raises `Unavailable` when fewer bookies than the ack quorum are up, or the metadata store does not answer
        (then a record without blocks may be left behind). With steps `atomically_with`, what refuses one of them and
        `OutcomeUnknown` are raised as they are, and there is a record only if the steps were done, too.
        """
        width, quorum, bookies = self._parts.place(persistence)
        if isinstance(ledger_id, Above):
            ledger_id = await self.reserve(ledger_id.floor)
        record = states.opened(ledger_id, width, quorum, bookies, purpose, self.clock.now_ms())
        record = replace(record, generation=generation)
        await self._write_intent(record, atomically_with)
        writer = LedgerWriter(self._parts, record, 0, listener, self._forget)
        self._writers[ledger_id] = writer
        return writer

    async def reserve(self, above: int) -> int:
        """An id for `create` that nobody else gets, greater than `above`. Raises `Unavailable`."""
        return await self._ids.next(above)

    async def recover(self, ledger_id: int) -> LedgerRecord:
        """Fence, recover and close; a closed ledger is returned as it is.

        Raises `NotFound`, `Unavailable` (try again), `LostForGood` (damage stands in the way; only an operator's
        `give_up` closes before it).
        """
        return await recovery.recover(self._parts, ledger_id)

    async def look_for_loss(
        self, ledger_id: int, span: Span = _NO_SPAN, elsewhere: Elsewhere = nowhere
    ) -> Loss:
        """Read the whole ledger and name what is lost for good. Raises `NotFound`, `Unavailable`."""
        return await loss.look(self._parts, ledger_id, span, elsewhere)

    async def give_up(self, ledger_id: int, span: Span = _NO_SPAN, elsewhere: Elsewhere = nowhere) -> Loss:
        """On an operator's word: close the ledger, and go on without what is lost for good; see `loss`."""
        return await loss.give_up(self._parts, ledger_id, span, elsewhere)

    def found_elsewhere(self, ledger_id: int) -> None:
        """What bookies have lost of the ledger was read from the archive: it is no loss."""
        self._parts.replicas.found_elsewhere(ledger_id)

    def metrics(self) -> dict[str, Any]:
        available = self.available()
        return {
            "quire_ledger_bookies_available": len(available),
            "quire_ledger_bookies_writable": sum(not one.read_only for one in available),
            "quire_ledger_lost_ledgers": len(self.lost()),
            "quire_ledger_lagging_bytes": self.bytes_lagging,
            "quire_ledger_read_latency_seconds": self._parts.replicas.read_s,
        }

    def lost(self) -> dict[int, LostForGood]:
        """Ledgers of which this process has met an entry that is lost for good, lately."""
        return self._parts.replicas.lost()

    async def open(self, ledger_id: int, confirmed: Callable[[], int] | None = None) -> LedgerReader:
        """A reader; does not fence. `confirmed` tells the last confirmed entry of an open ledger.

        Of a ledger that this process writes, its writer tells. Raises `NotFound`.
        """
        record = await self.info(ledger_id)
        if record.state is LedgerState.DELETING:
            raise NotFound(f"ledger {ledger_id} is being deleted")
        writer = self._writers.get(ledger_id)
        if confirmed is None and writer is not None:
            confirmed = _last_confirmed_of(writer)
        return LedgerReader(self.store, self._parts.replicas, record, confirmed)

    def reader(self, closed: LedgerRecord) -> LedgerReader:
        """A reader of a ledger whose closed record was just answered."""
        assert closed.state is LedgerState.CLOSED
        return LedgerReader(self.store, self._parts.replicas, closed, None)

    async def delete(self, ledger_id: int) -> None:
        """DELETING, tombstones, record removed; nothing when there is no such ledger (any more).

        Raises `Unavailable` while a bookie does not answer: the record stays, call again.
        """
        self._parts.replicas.ended(ledger_id)
        await self._parts.delete(ledger_id)

    async def info(self, ledger_id: int) -> LedgerRecord:
        """The ledger's record. Raises `NotFound`."""
        path = paths.ledger(ledger_id)
        return decode(LedgerRecord, (await self.store.get(path)).value, path)

    async def wals_of(self, ledger_ids: Sequence[int]) -> dict[int, str]:
        """The last write-ahead log on object storage of each of these ledgers that has one. Raises `Unavailable`."""
        found = {}
        for ledger_id in ledger_ids:
            try:
                record = await self.info(ledger_id)
            except NotFound:
                continue
            if states.storage(record) is Storage.OBJECTS:
                found[ledger_id] = states.ensemble(record.fragments[-1])[0].uuid
        return found

    async def is_flushed(self, ledger_id: int) -> bool:
        """See `flushed`. Raises `NotFound`."""
        return await flushed.is_flushed(await self.info(ledger_id), self._parts.bookies)

    async def stop(self) -> None:
        """End background work. Writers that are still open are abandoned: their ledgers will be recovered."""
        for writer in list(self._writers.values()):
            writer.abandon()
        self._reported.stop()
        await self._parts.stop()

    # -- inside ----------------------------------------------------------------------------------------
    async def _write_intent(self, record: LedgerRecord, atomically_with: Sequence[Step]) -> None:
        path, value = paths.ledger(record.ledger_id), encode(record)
        try:
            if atomically_with:
                await self.store.transact([Create(path, value), *atomically_with])
            else:
                await self.store.create(path, value)
        except (OutcomeUnknown, AlreadyExists) as error:
            if atomically_with and isinstance(error, OutcomeUnknown):
                raise
            what = f"ledger {record.ledger_id} for {record.purpose}"
            raise Unavailable(f"{what} could not be created: {error}") from error

    def _forget(self, writer: LedgerWriter) -> None:
        self._writers.pop(writer.ledger_id, None)


class _Ids:
    """Ledger ids out of ranges; see the top of the file. Range n, from 1, holds 100 n + 1 to 100 n + 100."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._last = -1
        self._lock = asyncio.Lock()

    async def next(self, above: int) -> int:
        """The next id, greater than `above`. Raises `Unavailable`."""
        async with self._lock:
            self._next = max(self._next, above + 1)
            while self._next > self._last:
                first = await self._take_range() * IDS_PER_RANGE + 1
                self._last = first + IDS_PER_RANGE - 1
                self._next = max(first, above + 1)
            ledger_id = self._next
            self._next += 1
            return ledger_id

    async def _take_range(self) -> int:
        """A range that nobody else has: the version that our own put gave the node."""
        while True:
            try:
                version = (await self._store.get(paths.LEDGER_IDS)).version
                return await self._store.put(paths.LEDGER_IDS, b"", version)
            except NotFound:
                await self._begin()
            except (VersionConflict, OutcomeUnknown):
                continue

    async def _begin(self) -> None:
        try:
            await self._store.create(paths.LEDGER_IDS, b"")
        except (AlreadyExists, OutcomeUnknown):
            pass


def _last_confirmed_of(writer: LedgerWriter) -> Callable[[], int]:
    return lambda: writer.last_confirmed
