"""Shell of the writer core: timers, placement and metadata of one ledger that is being written.

`BlockWriter` performs the effects that all writers share: it sends blocks through the outbox, delays ensemble changes
and retries, and chooses replacements. Its subclasses commit ensemble changes: `LedgerWriter` by compare-and-set of the
ledger's record, a recovery (`quire.ledger.recovery`) in memory.

An idle writer writes its LAC to its bookies (`quire.ledger.idle`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from quire.ledger import labels, states
from quire.ledger.outbox import Outbox
from quire.ledger.owned_node import OwnedNode
from quire.ledger.parts import LedgerContext
from quire.ledger.placement import why_full
from quire.ledger.writer_core import Pending, Replica, State, TombstoneFound, WriterCore
from quire.metadata import paths
from quire.metadata.records import Fragment, LedgerRecord, LedgerState, Storage, encode
from quire.metadata.store import Step
from quire.runtime.errors import Fenced, IdUsedBefore, OutcomeUnknown, QuireError
from quire.runtime.limits import MORE_FULL_BLOCKS_ON_OBJECTS_MAX
from quire.wire.block import Buffer
from quire.wire.bookie import BookieId, WriteLacRequest

CHANGE_DELAY_MS_MAX: Final = 1_000
"""Maximum delay in ms before an ensemble change; the delay grows exponentially."""

LATE_ANSWERS_S: Final = 5.0
"""Seconds to wait after a close for the slowest bookies, before the ledger is reported to repair."""

OWN_WAL_S: Final = 10.0
"""Maximum time in seconds for which a writer waits until its process begins another write-ahead log."""
OWN_WAL_LOOK_S: Final = 0.1

_log = logging.getLogger(__name__)


class WriterListener(Protocol):
    """Listener of a ledger's writer, called on the event loop, in order.

    Implemented for topics by `serving.topic.writing.Writing`, and for state logs by `state_segment.Segment`.
    """

    def confirmed(self, last_entry: int) -> None:
        """Handle the confirmation of all entries up to `last_entry`, inclusive."""
        ...

    def failed(self, error: QuireError) -> None:
        """Handle `Fenced` or `OutcomeUnknown`: pending entries have an unknown outcome.

        No later entry is confirmed.
        """
        ...


class BlockWriter:
    """Base class of the writers that drive a `WriterCore`; performs the I/O that all of them share."""

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
        "never",
        "send",
    )

    def __init__(
        self,
        parts: LedgerContext,
        record: LedgerRecord,
        outbox: Outbox,
        next_entry: int = 0,
    ) -> None:
        self.never: Collection[str] = ()
        """UUIDs of bookies that must not join the ensemble."""
        self._parts = parts
        self._record = record
        self._has_priority = outbox is not parts.outboxes.usual
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

    def conflict(self, replica: Replica) -> None:
        self.core.conflicts(replica.bookie)

    def arm_change(self) -> None:
        self._failed_at_s = asyncio.get_running_loop().time()
        self._parts.placement.avoid(self.core.failed_bookies())
        asyncio.get_running_loop().call_later(self.next_change_delay_s(), self._change)

    def next_change_delay_s(self) -> float:
        """Return the delay of the next ensemble change in seconds; it doubles after each change without a confirmation.

        Otherwise, while no quorum is available, a ledger would reach its maximum number of changes within a second.
        """
        delay_ms, confirmed = self._parts.settings.ensemble_change_delay_ms, self.core.last_confirmed
        self._changes_in_vain = self._changes_in_vain + 1 if confirmed == self._confirmed_at_change else 0
        self._confirmed_at_change = confirmed
        return min(delay_ms << self._changes_in_vain, max(delay_ms, CHANGE_DELAY_MS_MAX)) / 1000

    def _change(self) -> None:
        core, parts = self.core, self._parts
        storage = states.storage(self._record)
        live = core.live_bookies()
        takers = [each for each in parts.takers(storage) if each.uuid not in self.never]
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
        """Schedule another attempt when this process may have a new write-ahead log; return False after `OWN_WAL_S`."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._failed_at_s > OWN_WAL_S:
            return False
        loop.call_later(OWN_WAL_LOOK_S, self._change)
        return True


class LedgerWriter(BlockWriter):
    """Writer of an open ledger; created by `Ledgers.create`."""

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
            parts,
            record,
            parts.outboxes.priority if states.has_priority(record) else parts.outboxes.usual,
        )
        self.ledger_id = record.ledger_id
        self.write: Final = self.core.add
        """Function that writes a block like `add`, for a caller that creates the block's `Pending` itself."""
        self.is_young = False
        is_far = states.storage(record) is Storage.OBJECTS
        self.more_full_blocks_max: Final = MORE_FULL_BLOCKS_ON_OBJECTS_MAX if is_far else 0
        """Number of full blocks that may be pending beyond the usual limit."""
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
        self._label = labels.Label(self._outbox, record, version, self.core)
        self.core.before_first(self._label.send)

    @property
    def last_confirmed(self) -> int:
        """Last confirmed entry; -1 if there is none."""
        return self.core.last_confirmed

    @property
    def error(self) -> QuireError | None:
        """Error that ended this writer, if it failed."""
        return self._error

    @property
    def was_given_blocks(self) -> bool:
        """True after the first `add`: bookies may have blocks of the ledger, even if no entry was confirmed."""
        return self.core.bytes_added > 0

    def add(self, block: Buffer, header_last_entry: int) -> None:
        """Write the next block, whose last entry is `header_last_entry`; does not wait.

        Entries are written in the order of calls. After `failed`, a block is dropped, and its outcome is unknown, like
        the outcome of the blocks that were pending.
        """
        assert not self._is_closing
        self.write(Pending(block, header_last_entry))

    async def drain(self) -> None:
        """Wait for pending blocks; no block may be added after this call.

        If the writer fails meanwhile, `close` raises the error.
        """
        assert not self._is_closing
        self._is_closing = True
        if self.core.blocks_pending and self._error is None:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    async def close(self, atomically_with: Sequence[Step] = ()) -> LedgerRecord:
        """Wait for pending blocks, then close the ledger and execute the steps in one transaction.

        Return the closed record. Raises `Fenced` if another owner took over the ledger. Raises `OutcomeUnknown` if the
        writer has failed, or if the metadata store does not answer; then the ledger must be recovered.
        """
        if not self._is_closing:
            await self.drain()
        async with self._metadata:
            if self._error is not None:
                raise self._error
            await self._close(atomically_with)
        return self._record

    async def discard(self, atomically_with: Sequence[Step]) -> None:
        """Remove the record of a ledger without blocks, and execute the steps, in one transaction.

        Raises `Fenced` if another process changed the record, and the errors of the steps. After `OutcomeUnknown` or
        `Unavailable`, the record may still exist.
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
        """Stop without closing: no later confirmation is reported. The next owner recovers the ledger."""
        if self._error is None:
            self._error = OutcomeUnknown(f"ledger {self.ledger_id} was abandoned by its writer")
            self.core.finish()
            self._leave()
            self._wake()

    def widen(self) -> None:
        """Add bookies to a narrow fragment, if more are available."""
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
        if isinstance(error, TombstoneFound):
            self._parts.tasks.start(
                _explain_tombstone(self, error), f"the tombstone of ledger {self.ledger_id}"
            )
            return
        _log.info("ledger %d: the writer failed: %s", self.ledger_id, error)
        self._listener.failed(error)
        self._wake()

    def _wake(self) -> None:
        """Wake `drain`, because no block is pending any more, or the writer has failed."""
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
        """Wait for late responses, then report whether a copy may lack blocks.

        The slowest bookie usually responds shortly after the quorum; if it does not, its copy may lack blocks.
        """
        core = self.core

        def report() -> None:
            self._parts.closed(end, is_whole=core.is_whole)
            core.finish()

        core.close()
        if core.is_whole or core.failed_bookies():
            report()
        else:
            asyncio.get_running_loop().call_later(LATE_ANSWERS_S, report)

    async def _commit(self, fragments: tuple[Fragment, ...]) -> None:
        async with self._metadata:
            if self._error is not None:
                return
            try:
                await self._put(states.changed(self._record, fragments))
            except QuireError as error:
                self.core.fail(error)
            except Exception as error:
                _log.exception("ledger %d: ensemble change failed: internal error", self.ledger_id)
                self.core.fail(
                    OutcomeUnknown(
                        f"ledger {self.ledger_id}: ensemble change failed: internal error: {error!r}"
                    )
                )
            else:
                self._changed(fragments[-1])

    def _changed(self, fragment: Fragment) -> None:
        bookies = ", ".join(fragment.bookies)
        _log.info(
            "ledger %d: changed the ensemble; entries from %d on go to %s",
            self.ledger_id,
            fragment.first_entry,
            bookies,
        )
        self._count_on(fragment)
        self.core.change_committed()

    def _count_on(self, fragment: Fragment) -> None:
        """Count this ledger in the loads of the fragment's bookies, and register it for widening if it is narrow."""
        self._parts.loads.subtract(self._counted_on)
        self._counted_on = states.ensemble(fragment)
        self._parts.loads.update(self._counted_on)
        if len(self._counted_on) < self._record.write_quorum:
            self._parts.narrow.watch(self)
        else:
            self._parts.narrow.forget(self)

    async def _put(self, record: LedgerRecord, atomically_with: Sequence[Step] = ()) -> None:
        """Write `record` and execute `atomically_with`, in one transaction. Raises `Fenced`, `OutcomeUnknown`."""
        await self._node.put(encode(record), atomically_with, given_up=lambda: self._error)
        self._record = record
        self._label.change(record, self._node.version)
        if record.state is LedgerState.CLOSED and self.was_given_blocks:
            labels.send(self._parts.bookies.port, record, self._node.version)
        elif self.was_given_blocks:
            self._label.send()

    def _leave(self) -> None:
        """Remove this writer from the bookies' loads, the idle writers and the narrow ledgers, and report its end."""
        self._label.is_ended = True
        self._parts.loads.subtract(self._counted_on)
        self._counted_on = ()
        self._parts.narrow.forget(self)
        self._parts.idle.forget(self)
        self._ended(self)

    async def write_lac(self) -> None:
        """Write the LAC to every live bookie. Failures are ignored: an explicit LAC only shortens a recovery."""
        lac = self.core.last_confirmed
        for bookie in self.core.live_bookies():
            await self._parts.bookies.port(bookie).ask(WriteLacRequest(bookie, self.ledger_id, lac))


async def _explain_tombstone(writer: LedgerWriter, refused: TombstoneFound) -> None:
    """Determine which ledger a bookie's tombstone belongs to, and end the writer.

    A deletion changes the ledger's record first. If the record is unchanged, another ledger had this id before. (A
    fence proves nothing, because a bookie that lost its state fences all its ledgers.)
    """
    node, store, error = writer._node, writer._parts.store, Fenced(str(refused))
    try:
        async with writer._metadata:
            await store.sync()
            version = (await store.get(node.path)).version
    except QuireError:
        return writer.failed(error)  # the store does not answer, or the record is deleted
    if version != node.version:
        return writer.failed(error)
    return writer.failed(
        IdUsedBefore(f"{refused}, but the ledger's record was not changed", refused.bookie.uuid)
    )


async def close_unused(writer: LedgerWriter) -> LedgerRecord:
    """Close a ledger as empty, because no entry was confirmed and another ledger had its id before.

    No bookie is asked, because the bookies' blocks under this id belong to the other ledger.

    Raises `Fenced` if another owner took over the ledger, `OutcomeUnknown`.
    """
    error, now_ms = writer.error, writer._parts.clock.now_ms()
    assert isinstance(error, IdUsedBefore) and writer.last_confirmed < 0
    record = states.without(writer._record, {error.bookie})
    end = states.closed(record, record.fragments, -1, 0, now_ms)
    async with writer._metadata:
        await writer._node.put(encode(end))
    return end
