"""Interface of the package: create, recover, open and delete ledgers.

Creating a ledger costs one metadata operation, closing it one, taking it over one, and deleting it two. A ledger's
record is written before any block is sent to a bookie, so all data on a bookie has, or had, a record. An owner that
lists its ledgers, such as a topic, can add its own steps to the transaction that creates or closes a ledger.

Ids are unique and increase (`ids`). Processes allocate ids from different ranges, so a topic's next owner may have a
lower range. `Above` requests an id greater than the id of the topic's last ledger, and skips ids if necessary. If an id
was used before, in a lost metadata store, the record's nonce distinguishes the two ledgers (`lives`).

A ledger of a state log has *high priority*: bookies with a full disk accept its blocks as long as they have a reserve.
Other ledgers can also be created on full bookies, but stay empty until the disk has free space (`why_full`).

A ledger that is created with fewer bookies than the write quorum, but at least the ack quorum, starts narrow.

If a bookie does not answer a deletion, the ledger's record stays until `delete` is called again or repair completes the
deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from quire.ledger import flushed, loss, placement, recovery, states
from quire.ledger.directory import BookieDirectory
from quire.ledger.loss import Elsewhere, Loss, Span, nowhere
from quire.ledger.parts import NOWHERE, Home, LedgerContext
from quire.ledger.reader import LedgerReader
from quire.ledger.replicas import DamageListener
from quire.ledger.reported import Reported
from quire.ledger.rolling import DELAY_S, LedgersToRoll
from quire.ledger.settings import LedgerSettings
from quire.ledger.writer import LedgerWriter, WriterListener, close_unused
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
    Fenced,
    IdUsedBefore,
    LostForGood,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)

__all__ = ["LedgerReader", "LedgerWriter", "Ledgers", "WriterListener"]

_log = logging.getLogger(__name__)

_NO_SPAN: Final = Span()


class Above(NamedTuple):
    """Request for a ledger id greater than `floor`."""

    floor: int


NONCE_BITS: Final = 62
"""Number of bits of a nonce, which a label stores as a signed 64-bit integer."""

ANY_ID: Final = Above(-1)
BY_SETTINGS: Final = PersistencePolicy()


class Ledgers:
    """Access of one process to all ledgers of its cluster."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieDirectory,
        clock: Clock,
        rng: Random,
        settings: LedgerSettings,
        *,
        home: Home = NOWHERE,
        quarantine_s: float = placement.QUARANTINE_S,
        lost_after_s: float = DELAY_S,
    ) -> None:
        """Initialize without I/O.

        `home` contains the rack of this process, whose replicas are read first. A bookie that is absent for
        `lost_after_s` seconds counts as lost (`rolling`).
        """
        self.store = store
        self.clock = clock
        self.cluster = home.cluster
        """Id of the store's cluster; "" without a cluster."""
        self._writers: dict[int, LedgerWriter] = {}
        self._used_before: set[int] = set()
        """Allocated ids that another ledger had before; the bookies' data under them must not be deleted."""
        self._rng = rng
        self._parts = LedgerContext(store, bookies, clock, rng, settings, home, quarantine_s)
        self.at_end_of_turn = self._parts.outboxes.usual.at_end
        """Schedule a call at the end of the event loop's turn, just before blocks are sent; the call may add blocks."""
        self.lag = self._parts.lag
        """Bytes of confirmed blocks that are kept for bookies which have not acknowledged them yet."""
        self.confirm_absence = home.guard
        self._to_roll = LedgersToRoll(bookies, clock, lost_after_s)
        self._reported = Reported(store, self._parts.tasks, self._writers)
        self.ack_quorum = settings.ack_quorum
        """Default ack quorum of new ledgers."""

    def available(self) -> Sequence[BookieRecord]:
        """Return the running bookies, as this process sees them."""
        return self._parts.bookies.available()

    def why_full(self, persistence: PersistencePolicy = BY_SETTINGS) -> str:
        """Return why full disks refuse blocks of ordinary priority; "" if enough bookies accept them."""
        if (persistence.storage or self._parts.bookies.storage) is Storage.OBJECTS:
            return ""
        available = self.available()
        writable = sum(not record.read_only for record in available)
        return placement.why_full(available) if writable < (persistence.ack_quorum or self.ack_quorum) else ""

    @property
    def is_short_of_space(self) -> bool:
        """True while a running bookie has little free space, so that data should be offloaded soon."""
        return any(record.short_of_space for record in self.available())

    def follow_damage(self) -> None:
        """Start to include reported damage and given-up bookies in `ledgers_to_roll`."""
        self._reported.start()

    def ledgers_to_roll(self) -> set[int]:
        """Return the open ledgers of this process that should be closed, so that repair can copy them.

        See `rolling`.
        """
        damaged = self._reported.copies()
        return self._to_roll.find(self._writers, self._parts.loads, damaged, self._reported.given_up)

    def on_damage(self, listener: DamageListener) -> None:
        """Call `listener` whenever a reader finds a damaged or missing copy."""
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
        """Create an open ledger, and return its writer. `purpose` and `generation` identify its owner.

        `ledger_id` is an id from `reserve`, or a request for a new id. Raises `Unavailable` if fewer bookies than the
        ack quorum accept writes, or if the metadata store does not answer; then a record without blocks may remain.

        The steps `atomically_with` are executed in the same transaction, so the record exists only if they were. Their
        errors and `OutcomeUnknown` are raised unchanged.
        """
        width, quorum, bookies = self._parts.place(persistence)
        if isinstance(ledger_id, Above):
            ledger_id = await self.reserve(ledger_id.floor)
        record = states.opened(ledger_id, width, quorum, bookies, purpose, self.clock.now_ms())
        record = replace(record, generation=generation, nonce=self._rng.getrandbits(NONCE_BITS))
        await self._write_intent(record, atomically_with)
        writer = LedgerWriter(self._parts, record, 0, listener, self._forget)
        self._writers[ledger_id] = writer
        return writer

    async def reserve(self, above: int) -> int:
        """Reserve an id for `create`, unique in the cluster and greater than `above`. Raises `Unavailable`."""
        return await self._parts.ids.next(above)

    async def recover(self, ledger_id: int, failed: LedgerWriter | None = None) -> LedgerRecord:
        """Fence, recover and close a ledger, unless it is closed.

        `failed` is this process's failed writer of the ledger, if any.

        If the id was used before and no entry was confirmed, the ledger is closed as empty, without a recovery, because
        the bookies have another ledger's blocks. Raises `NotFound`, `Unavailable` (try again), and `LostForGood` if an
        entry is permanently lost: then only an operator's `give_up` can close the ledger, before that entry.
        """
        error = None if failed is None else failed.error
        if failed is None or not isinstance(error, IdUsedBefore):
            return await recovery.recover(self._parts, ledger_id)
        self._used_before.add(ledger_id)
        if failed.last_confirmed < 0:
            try:
                return await close_unused(failed)
            except Fenced:
                pass  # another owner was faster, or an earlier attempt succeeded
        return await recovery.recover(self._parts, ledger_id, strangers={error.bookie})

    async def look_for_loss(
        self, ledger_id: int, span: Span = _NO_SPAN, elsewhere: Elsewhere = nowhere
    ) -> Loss:
        """Read the whole ledger, and list the permanently lost entries. Raises `NotFound`, `Unavailable`."""
        return await loss.look(self._parts, ledger_id, span, elsewhere)

    async def give_up(self, ledger_id: int, span: Span = _NO_SPAN, elsewhere: Elsewhere = nowhere) -> Loss:
        """Give up the permanently lost entries of a ledger on an operator's order, and close the ledger. See `loss`."""
        return await loss.give_up(self._parts, ledger_id, span, elsewhere)

    def found_elsewhere(self, ledger_id: int) -> None:
        """Record that the archive has the entries which the bookies lost, so they do not count as lost."""
        self._parts.replicas.found_elsewhere(ledger_id)

    def metrics(self) -> dict[str, Any]:
        available = self.available()
        return {
            "quire_ledger_bookies_available": len(available),
            "quire_ledger_bookies_writable": sum(not one.read_only for one in available),
            "quire_ledger_lost_ledgers": len(self.lost()),
            "quire_ledger_lagging_bytes": self.lag.bytes,
            "quire_ledger_read_latency_seconds": self._parts.replicas.read_s,
        }

    def lost(self) -> dict[int, LostForGood]:
        """Return the ledgers in which this process recently found a permanently lost entry."""
        return self._parts.replicas.lost()

    async def open(self, ledger_id: int, confirmed: Callable[[], int] | None = None) -> LedgerReader:
        """Open a reader, without fencing. `confirmed` returns the last confirmed entry of an open ledger.

        By default, this process's writer of the ledger is asked, if there is one. Raises `NotFound`.
        """
        record = await self.info(ledger_id)
        if record.state is LedgerState.DELETING:
            raise NotFound(f"ledger {ledger_id} is being deleted")
        writer = self._writers.get(ledger_id)
        if confirmed is None and writer is not None:
            confirmed = _last_confirmed_of(writer)
        return LedgerReader(self.store, self._parts.replicas, record, confirmed)

    def reader(self, closed: LedgerRecord) -> LedgerReader:
        """Return a reader of a closed ledger, from its current record."""
        assert closed.state is LedgerState.CLOSED
        return LedgerReader(self.store, self._parts.replicas, closed, None)

    async def delete(self, ledger_id: int) -> None:
        """Delete the ledger, if it exists: record to DELETING, tombstones on the bookies, record removed.

        Raises `Unavailable` while a bookie does not answer; then the record stays, and the caller may try again.
        """
        self._parts.replicas.forget_loss(ledger_id)
        await self._parts.delete(ledger_id, buries=ledger_id not in self._used_before)

    async def info(self, ledger_id: int) -> LedgerRecord:
        """Return the ledger's record. Raises `NotFound`."""
        path = paths.ledger(ledger_id)
        return decode(LedgerRecord, (await self.store.get(path)).value, path)

    async def wals_of(self, ledger_ids: Sequence[int]) -> dict[int, str]:
        """Return the UUID of the last write-ahead log of each ledger that is on object storage. Raises `Unavailable`.

        Ledgers on bookies, and deleted ones, are left out.
        """
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
        """Return whether all replicas of the closed ledger are in entry logs; see `flushed`. Raises `NotFound`."""
        return await flushed.is_flushed(await self.info(ledger_id), self._parts.bookies)

    async def stop(self) -> None:
        """Stop background work, and abandon open writers, whose ledgers must then be recovered."""
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
            raise Unavailable(f"cannot create {what}: {error}") from error

    def _forget(self, writer: LedgerWriter) -> None:
        self._writers.pop(writer.ledger_id, None)
        if isinstance(writer.error, IdUsedBefore):
            _log.error("%s; new ledgers get ids above the highest that a bookie knows", writer.error)
            self._parts.ids.skip()


def _last_confirmed_of(writer: LedgerWriter) -> Callable[[], int]:
    return lambda: writer.last_confirmed
