"""The shell around the writer core: timers, placement and metadata for one ledger that is being written.

`BlockWriter` performs what every writer needs: it sends through the outbox, waits before a change and before a busy
bookie is asked again, and finds replacements. Where a change is committed is its subclasses' matter: `LedgerWriter`
puts it into the metadata by version; a recovery (`quire.ledger.recovery`) keeps it in memory.

A writer that falls silent is told so (`quire.ledger.idle`), and writes its LAC to its bookies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from quire.ledger import labels, states
from quire.ledger.outbox import Outbox
from quire.ledger.owned_node import OwnedNode
from quire.ledger.parts import LedgerContext
from quire.ledger.placement import why_full
from quire.ledger.writer_core import Pending, Replica, State, WriterCore
from quire.metadata import paths
from quire.metadata.records import Fragment, LedgerRecord, LedgerState, Storage, encode
from quire.metadata.store import Step
from quire.runtime.errors import Fenced, OutcomeUnknown, QuireError
from quire.runtime.limits import MORE_FULL_BLOCKS_ON_OBJECTS_MAX
from quire.wire.block import Buffer
from quire.wire.bookie import BookieId, WriteLacRequest

CHANGE_DELAY_MS_MAX: Final = 1_000
LATE_ANSWERS_S: Final = 5.0
OWN_WAL_S: Final = 10.0
"""How long a writer waits for another write-ahead log of its process."""
OWN_WAL_LOOK_S: Final = 0.1

_log = logging.getLogger(__name__)


class WriterListener(Protocol):
    """Called on the loop, in order."""

    def confirmed(self, last_entry: int) -> None:
        """Everything up to and with `last_entry` is confirmed."""
        ...

    def failed(self, error: QuireError) -> None:
        """`Fenced` or `OutcomeUnknown`: what is pending has an unknown outcome; nothing is confirmed after it."""
        ...


class BlockWriter:
    """The effects that all writers have in common."""

    __slots__ = (
        "__weakref__",
        "_changes_in_vain",
        "_confirmed_at_change",
        "_failed_at_s",
        "_has_priority",
        "_outbox",
        "_parts",
        "_record",
        "core",
        "send",
    )

    def __init__(
        self, parts: LedgerContext, record: LedgerRecord, outbox: Outbox, next_entry: int = 0
    ) -> None:
        self._parts = parts
        self._record = record
        self._has_priority = outbox is not parts.outbox
        self._failed_at_s = 0.0
        self._outbox = outbox
        self.send = outbox.send
        self.core = WriterCore(
            record.ledger_id,
            record.fragments,
            record.ack_quorum,
            self,
            changes_max=parts.settings.ensemble_changes_max,
            next_entry=next_entry,
            lag=parts.lag,
        )
        self._confirmed_at_change: int | None = None
        self._changes_in_vain = 0

    def confirmed(self, last_entry: int) -> None:
        raise NotImplementedError

    def commit(self, fragments: tuple[Fragment, ...]) -> None:
        raise NotImplementedError

    def failed(self, error: QuireError) -> None:
        raise NotImplementedError

    def send_later(self, pending: Pending, replica: Replica) -> None:
        def again() -> None:
            if replica.is_live and self.core.state is not State.ENDED:
                self.send(pending, replica)

        asyncio.get_running_loop().call_later(self._parts.settings.busy_retry_ms / 1000, again)

    def arm_change(self) -> None:
        self._failed_at_s = asyncio.get_running_loop().time()
        self._parts.placement.avoid(self.core.failed_bookies())
        asyncio.get_running_loop().call_later(self.next_change_delay_s(), self._change)

    def next_change_delay_s(self) -> float:
        """Twice as long for each change after which nothing was confirmed: where bookies fail in turns because there
        is no quorum, the ledger must not use up its changes in a second and fail, but wait for them.
        """
        delay_ms, confirmed = self._parts.settings.ensemble_change_delay_ms, self.core.last_confirmed
        self._changes_in_vain = self._changes_in_vain + 1 if confirmed == self._confirmed_at_change else 0
        self._confirmed_at_change = confirmed
        return min(delay_ms << self._changes_in_vain, max(delay_ms, CHANGE_DELAY_MS_MAX)) / 1000

    def _change(self) -> None:
        core, parts = self.core, self._parts
        storage = states.storage(self._record)
        live, takers = core.live_bookies(), parts.takers(storage)
        if not takers and storage is Storage.OBJECTS and self._waits_for_wal():
            return
        replacements = parts.placement.choose_sound(
            self._record.write_quorum - len(live),
            self._record.ack_quorum - len(live),
            takers,
            beside=live,
            never=core.failed_bookies(),
            even_full=self._has_priority,
        )
        core.begin_change(replacements, "" if replacements else why_full(takers))

    def _waits_for_wal(self) -> bool:
        """This process begins another write-ahead log when one has ended: look again soon, but not for ever."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._failed_at_s > OWN_WAL_S:
            return False
        loop.call_later(OWN_WAL_LOOK_S, self._change)
        return True


class LedgerWriter(BlockWriter):
    """The one writer of an open ledger; made by `Ledgers.create`."""

    __slots__ = (
        "_counted_on",
        "_drained",
        "_ended",
        "_error",
        "_is_closing",
        "_label",
        "_listener",
        "_metadata",
        "_node",
        "_tell",
        "is_young",
        "ledger_id",
        "more_full_blocks_max",
        "write",
    )

    def __init__(
        self,
        parts: LedgerContext,
        record: LedgerRecord,
        version: int,
        listener: WriterListener,
        ended: Callable[[LedgerWriter], None],
    ) -> None:
        super().__init__(
            parts, record, parts.priority_outbox if states.has_priority(record) else parts.outbox
        )
        self.ledger_id = record.ledger_id
        self.write: Final = self.core.add
        """As `add`, for who makes the block's `Pending`."""
        self.is_young = False
        is_far = states.storage(record) is Storage.OBJECTS
        self.more_full_blocks_max: Final = MORE_FULL_BLOCKS_ON_OBJECTS_MAX if is_far else 0
        """How many more blocks than usual may be pending if they are full ones."""
        settings = parts.settings
        self._node = OwnedNode(
            parts.store,
            paths.ledger(record.ledger_id),
            f"ledger {record.ledger_id}",
            version,
            then="recover the ledger",
            attempts_max=settings.metadata_attempts_max,
            retry_s=settings.metadata_retry_ms / 1000,
        )
        self._listener = listener
        self._tell: Final = listener.confirmed
        self._ended = ended
        self._error: QuireError | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_closing = False
        self._metadata = asyncio.Lock()
        self._counted_on: tuple[BookieId, ...] = ()
        self._count_on(record.fragments[-1])
        self._label = labels.Label(self._outbox, record, version)
        self.core.before_first(self._label.send)

    @property
    def last_confirmed(self) -> int:
        """Last entry of the confirmed prefix, -1 when nothing is."""
        return self.core.last_confirmed

    @property
    def blocks_pending(self) -> int:
        """Blocks that are not confirmed."""
        return self.core.blocks_pending

    @property
    def bytes_pending(self) -> int:
        """Bytes of blocks that not every live replica has answered: confirmed ones may be among them."""
        return self.core.bytes_pending

    @property
    def error(self) -> QuireError | None:
        """Why this writer ended, if it failed."""
        return self._error

    @property
    def was_given_blocks(self) -> bool:
        """A ledger without a confirmed entry may have blocks all the same, when its writer failed."""
        return self.core.bytes_added > 0

    def add(self, block: Buffer, header_last_entry: int) -> None:
        """Write the next block, whose last entry is `header_last_entry`; never blocks.

        The order of calls is the order of entries. After `failed` a block is dropped: its outcome is as unknown as
        that of those before it.
        """
        assert not self._is_closing
        self.write(Pending(block, header_last_entry))

    async def drain(self) -> None:
        """Wait for what is pending; nothing may be added any more. Failed meanwhile, `close` will say so."""
        assert not self._is_closing
        self._is_closing = True
        if self.core.blocks_pending and self._error is None:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    async def close(self, atomically_with: Sequence[Step] = ()) -> LedgerRecord:
        """Wait for what is pending, then OPEN -> CLOSED and those steps, all or nothing. Returns the closed record.

        Raises `Fenced` when another owner took the ledger over, `OutcomeUnknown` when the writer failed before or
        the metadata store does not tell: then recover the ledger.
        """
        if not self._is_closing:
            await self.drain()
        async with self._metadata:
            if self._error is not None:
                raise self._error
            await self._close(atomically_with)
        return self._record

    async def discard(self, atomically_with: Sequence[Step]) -> None:
        """Remove a ledger to which nothing was added, so that no bookie knows it, and do those steps, all or nothing.

        Raises `Fenced` when either was changed by somebody else, `OutcomeUnknown`, `Unavailable`: then it may stay.
        """
        assert not self.was_given_blocks
        self._is_closing = True
        async with self._metadata:
            if self._error is not None:
                raise self._error
            states.may_be_removed(self._record, states.LedgerEvent.DISCARDED)
            try:
                await self._node.delete(atomically_with)
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Stop without closing: nothing is confirmed or told after it. Whoever comes next recovers the ledger."""
        if self._error is None:
            self._error = OutcomeUnknown(f"ledger {self.ledger_id} was abandoned by its writer")
            self.core.finish()
            self._leave()
            self._wake()

    def widen(self) -> None:
        """Take more bookies into a narrow fragment, if there are any."""
        if not self._is_closing:
            self._change()

    # -- effects ---------------------------------------------------------------------------------------
    def confirmed(self, last_entry: int) -> None:
        if not self.is_young:
            self._parts.idle.touch(self)
        self._tell(last_entry)
        if self._drained is not None and not self.core.blocks_pending:
            self._wake()

    def commit(self, fragments: tuple[Fragment, ...]) -> None:
        self._parts.tasks.start(self._commit(fragments), f"ensemble change of ledger {self.ledger_id}")

    def failed(self, error: QuireError) -> None:
        self._error = error
        self._leave()
        _log.info("ledger %d ends: %s", self.ledger_id, error)
        self._listener.failed(error)
        self._wake()

    def _wake(self) -> None:
        """`close` need not wait any longer."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # -- metadata, one change at a time ----------------------------------------------------------------
    async def _close(self, atomically_with: Sequence[Step]) -> None:
        core, now_ms = self.core, self._parts.clock.now_ms()
        end = states.closed(self._record, core.fragments, core.last_confirmed, core.bytes_added, now_ms)
        try:
            await self._put(end, atomically_with)
            self._error = Fenced(f"ledger {self.ledger_id} is closed")
            self._await_late_answers(end)
        except QuireError as error:
            self._error = error
            core.finish()
            raise
        finally:
            self._leave()

    def _await_late_answers(self, end: LedgerRecord) -> None:
        """The third bookie usually answers a moment after the quorum; one that does not may lack blocks for good."""
        core = self.core

        def look() -> None:
            self._parts.closed(end, is_whole=core.is_whole)
            core.finish()

        core.close()
        if core.is_whole or core.failed_bookies():
            look()
        else:
            asyncio.get_running_loop().call_later(LATE_ANSWERS_S, look)

    async def _commit(self, fragments: tuple[Fragment, ...]) -> None:
        async with self._metadata:
            if self._error is not None:
                return
            try:
                await self._put(states.changed(self._record, fragments))
            except QuireError as error:
                self.core.fail(error)
            except Exception as error:
                _log.exception("ledger %d: a mistake of ours in an ensemble change", self.ledger_id)
                self.core.fail(
                    OutcomeUnknown(f"ledger {self.ledger_id}: an ensemble change failed: {error!r}")
                )
            else:
                self._changed(fragments[-1])

    def _changed(self, fragment: Fragment) -> None:
        bookies = ", ".join(fragment.bookies)
        _log.info("ledger %d goes on from entry %d on %s", self.ledger_id, fragment.first_entry, bookies)
        self._count_on(fragment)
        self.core.change_committed()

    def _count_on(self, fragment: Fragment) -> None:
        """Be load on the fragment's bookies, and one of the narrow if they are too few."""
        self._parts.loads.subtract(self._counted_on)
        self._counted_on = states.ensemble(fragment)
        self._parts.loads.update(self._counted_on)
        if len(self._counted_on) < self._record.write_quorum:
            self._parts.narrow.watch(self)
        else:
            self._parts.narrow.forget(self)

    async def _put(self, record: LedgerRecord, atomically_with: Sequence[Step] = ()) -> None:
        """Make `record` the ledger's, together with `atomically_with`, or raise `Fenced` or `OutcomeUnknown`."""
        await self._node.put(encode(record), atomically_with, given_up=lambda: self._error)
        self._record = record
        self._label.change(record, self._node.version)
        if record.state is LedgerState.CLOSED and self.was_given_blocks:
            labels.tell(self._parts.bookies.port, record, self._node.version)
        elif self.was_given_blocks:
            self._label.send()

    def _leave(self) -> None:
        """Stop counting as load, as one of the idle, and as one of the narrow."""
        self._label.is_ended = True
        self._parts.loads.subtract(self._counted_on)
        self._counted_on = ()
        self._parts.narrow.forget(self)
        self._parts.idle.forget(self)
        self._ended(self)

    async def tell_lac(self) -> None:
        """Write the LAC to every live bookie; best effort, for it saves work and proves nothing."""
        lac = self.core.last_confirmed
        for bookie in self.core.live_bookies():
            await self._parts.bookies.port(bookie).ask(WriteLacRequest(bookie, self.ledger_id, lac))
