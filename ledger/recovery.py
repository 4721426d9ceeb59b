"""Shell of ledger recovery: changes the ledger's record before and after `recovery_core`, and performs its effects.

1. OPEN -> IN_RECOVERY by compare-and-set. This stops the old writer's ensemble changes.
2. Check labels on the bookies for a newer record (`lives`), because an older metadata store may have been restored.
   Before any entry is read, a newer record replaces the stored one; the node's new version exceeds the label's version.
   Bookies with another ledger under this id are left out.
3. The core fences the ensemble, reads entries, and writes them again.
4. IN_RECOVERY -> CLOSED by compare-and-set, with the last entry and the ensemble changes of step 3 (rule 14). Until
   then, the changes stay in memory: if they were published earlier, another recovery would ask only the new bookies.

A version conflict at any step means that another process has changed the record: the recovery reads it again and
continues from there. Any number of processes may recover the ledger concurrently: they write the same bytes to the same
places, and one of them closes the record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from quire.ledger import labels, lives, states
from quire.ledger.parts import LedgerContext
from quire.ledger.recovery_core import CutOff, RecoveryCore
from quire.ledger.writer import BlockWriter
from quire.ledger.writer_core import Pending, Replica
from quire.metadata import paths
from quire.metadata.records import Fragment, Hole, LedgerRecord, LedgerState, decode, encode
from quire.metadata.store import ANY_VERSION, Put
from quire.runtime.errors import (
    Fenced,
    LostForGood,
    NotFound,
    OutcomeUnknown,
    QuireError,
    Unavailable,
    VersionConflict,
)
from quire.runtime.limits import MIB
from quire.wire.block import BlockHeader, Buffer
from quire.wire.bookie import BookieId, LedgerInfoRequest, ReadRequest, ReadResponse, Status

_log = logging.getLogger(__name__)

_READ_BYTES = 1 * MIB
_ROUNDS_MAX = 20
"""Conflicts before recovery raises `Unavailable`; each conflict means that another process made progress."""


async def recover(
    parts: LedgerContext,
    ledger_id: int,
    *,
    accept_loss: bool = False,
    gone: Collection[str] = (),
    strangers: Collection[str] = (),
) -> LedgerRecord:
    """Fence, recover and close the ledger, unless it is closed. Return its record.

    See `RecoveryCore` for `accept_loss` and `gone`. `strangers` contains the UUIDs of bookies that are known to have
    another ledger under this id.

    Raises `NotFound` for a deleted ledger, `LostForGood` for permanently lost entries, and `Unavailable` if too few
    bookies answer: then the ledger stays in recovery, and the caller may try again.
    """
    path = paths.ledger(ledger_id)
    for _ in range(_ROUNDS_MAX):
        node = await parts.store.get(path)
        record, version = decode(LedgerRecord, node.value, path), node.version
        try:
            if record.state is LedgerState.CLOSED:
                return record
            if record.state is LedgerState.DELETING:
                raise NotFound(f"ledger {ledger_id} is being deleted")
            if record.state is LedgerState.OPEN:
                record = states.in_recovery(record)
                version = await parts.store.put(path, encode(record), version)
            known = await lives.newest(parts.bookies, record, version, strangers)
            if known.record is not record:
                await _adopt(parts, record, version, known)
                continue
            end = await _end(parts, record, version, known.strangers, accept_loss, gone)
            return await _close(parts, path, version, end)
        except LostForGood as error:
            parts.replicas.record_loss(error)
            raise
        except (VersionConflict, OutcomeUnknown):
            continue
    raise Unavailable(
        f"cannot recover ledger {ledger_id}: other processes keep changing its record; try again"
    )


async def _adopt(parts: LedgerContext, record: LedgerRecord, version: int, known: lives.Known) -> None:
    """Write a label's record to the ledger's node, whose version then exceeds the label's, so later labels are newer.

    Each put adds one to the version, so the put is repeated as often as necessary.
    """
    _log.warning(
        "ledger %d: the metadata store is older than the bookies' labels; using version %d of the record, from a label",
        record.ledger_id,
        known.version,
    )
    path, value = paths.ledger(record.ledger_id), encode(states.adopted(record, known.record))
    again = [Put(path, value, ANY_VERSION)] * max(0, known.version + 1 - version)
    await parts.store.transact([Put(path, value, version), *again])


async def _end(
    parts: LedgerContext,
    record: LedgerRecord,
    version: int,
    strangers: Collection[str],
    accept_loss: bool,
    gone: Collection[str],
) -> LedgerRecord:
    """Return the record to close the ledger with.

    Strangers have acknowledged no entry of this ledger. If too few other bookies remain for an ack quorum, no entry of
    the last fragment was confirmed.
    """
    label = record, version
    if strangers:
        record = states.without(record, strangers)
        last = record.fragments[-1]
        _log.warning(
            "ledger %d: its id was used before: bookies %s have another ledger under it, and keep its data",
            record.ledger_id,
            ", ".join(sorted(strangers)),
        )
        if any(bookie.uuid in strangers for bookie in states.ensemble(last)):
            return states.closed(record, record.fragments, last.first_entry - 1, 0, parts.clock.now_ms())
    return await _Recovery(parts, record, label, accept_loss, gone, strangers).run()


async def _close(parts: LedgerContext, path: str, version: int, end: LedgerRecord) -> LedgerRecord:
    version = await parts.store.put(path, encode(end), version)
    if end.last_entry >= 0:
        labels.send(parts.bookies.port, end, version)
    parts.closed(end, is_whole=False)
    _log.info("ledger %d: recovered and closed; last entry %d", end.ledger_id, end.last_entry)
    return end


class _Rewriter(BlockWriter):
    """Writer of the blocks that a recovery found, in spite of fences. It commits ensemble changes in memory.

    Each bookie gets the label before its first block.
    """

    def __init__(
        self,
        parts: LedgerContext,
        record: LedgerRecord,
        label: tuple[LedgerRecord, int],
        recovery: _Recovery,
        next_entry: int,
    ) -> None:
        super().__init__(parts, record, parts.outboxes.recovery, next_entry)
        self._recovery = recovery
        self.label = _Label(self._outbox, *label, self.core)
        self.tried: list[str] = []
        self._send_label(record.fragments[-1])

    def confirmed(self, last_entry: int) -> None:
        """Reset the count of ensemble changes, so that their limit does not stop a recovery that makes progress.

        A topic's writer continues in a new ledger at the limit; a recovery would stop at the same entry each time.
        """
        self.core.changes = 0
        self._recovery.core.written(last_entry)

    def conflict(self, replica: Replica) -> None:
        """Replace the bookie, because its block belongs to another ledger."""
        self.core.lose(replica)

    def commit(self, fragments: tuple[Fragment, ...]) -> None:
        self.tried += fragments[-1].bookies
        self._send_label(fragments[-1])
        asyncio.get_running_loop().call_soon(self.core.change_committed)

    def failed(self, error: QuireError) -> None:
        """Stop the recovery. `Fenced` means a tombstone here, because fences do not stop a recovery."""
        if isinstance(error, Fenced):
            self._recovery.core.write_failed(NotFound(f"ledger {self.core.ledger_id} was deleted"))
        else:
            self._recovery.core.write_failed(
                Unavailable(f"cannot rewrite entries of ledger {self.core.ledger_id}: {error}")
            )

    def _send_label(self, fragment: Fragment) -> None:
        """Send the label before any block. Write-ahead logs get no label from a recovery."""
        self.label.send_to(bookie for bookie in states.ensemble(fragment) if not bookie.is_wal)


class _Label(labels.Label):
    """Label that a recovery sends. A refusal proves nothing: another version of Quire may have written other bytes."""

    def refused(self, bookie: BookieId, status: Status) -> None:
        pass


class _Recovery:
    """One run of the recovery core for one record in IN_RECOVERY."""

    def __init__(
        self,
        parts: LedgerContext,
        record: LedgerRecord,
        label: tuple[LedgerRecord, int],
        accept_loss: bool,
        gone: Collection[str],
        strangers: Collection[str],
    ) -> None:
        """Prepare to recover `record`. `label` is the record before strangers were removed, with its version."""
        self._parts = parts
        self._record = record
        self._label = label
        self._strangers = strangers
        self._rewriter: _Rewriter | None = None
        self._reads: dict[asyncio.Task[None], None] = {}
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.core = RecoveryCore(
            record.ledger_id,
            record.fragments[-1],
            record.ack_quorum,
            self,
            accept_loss=accept_loss,
            gone=gone,
            others=self._others() if accept_loss else (),
        )

    def _others(self) -> tuple[BookieId, ...]:
        others = states.others(self._record, len(self._record.fragments) - 1)
        return tuple(bookie for bookie in others if bookie.uuid not in self._strangers)

    async def run(self) -> LedgerRecord:
        """Run the core; return the record to close with."""
        self.core.start()
        try:
            last_entry = await self._ended
        finally:
            for task in self._reads:
                task.cancel()
            if self._rewriter is not None:
                self._rewriter.label.is_ended = True
        record, rewriter = self._record, self._rewriter
        fragments = rewriter.core.fragments if rewriter is not None else record.fragments
        tried = rewriter.tried if rewriter is not None else ()
        last_known, ledger_bytes = await self._sizes()
        now_ms = self._parts.clock.now_ms()
        end = states.closed(record, fragments, last_entry, ledger_bytes, now_ms, tried)
        lost = self._cut_off(self.core.cut_off, last_known)
        return states.given_up(end, lost) if lost else end

    async def _sizes(self) -> tuple[int, int]:
        """Return the greatest last entry and the greatest size (bytes) that any bookie reports, for statistics only."""
        ledger_id = self._record.ledger_id
        infos = await asyncio.gather(
            *(
                self._parts.bookies.port(bookie).ask(LedgerInfoRequest(bookie, ledger_id))
                for bookie in states.ensemble(self._record.fragments[-1])
            )
        )
        known = [info for info in infos if info.status is Status.OK]
        return max((info.last_entry for info in known), default=-1), max(
            (info.bytes for info in known), default=0
        )

    def _cut_off(self, cut_off: CutOff | None, last_known: int) -> tuple[Hole, ...]:
        """Return the hole of entries after the ledger's end that an operator gave up, up to the last reported entry.

        It is empty if nothing was given up, or if no bookie reports such an entry.
        """
        if cut_off is None:
            return ()
        last = max(last_known, self.core.lac)
        _log.warning(
            "ledger %d (%s): gave up entries after %d (known: up to %d) on an operator's order: %s",
            self._record.ledger_id,
            self._record.purpose,
            cut_off.first_entry - 1,
            last,
            cut_off.damage,
        )
        if last < cut_off.first_entry:
            return ()
        return (
            Hole(first_entry=cut_off.first_entry, last_entry=last, messages=last + 1 - cut_off.first_entry),
        )

    # -- effects ---------------------------------------------------------------------------------------
    def read(self, bookie: BookieId, first_entry: int) -> None:
        task = self._parts.tasks.start(
            self._read(bookie, first_entry), f"recovery read of ledger {self._record.ledger_id}"
        )
        self._reads[task] = None
        task.add_done_callback(lambda ended: self._reads.pop(ended, None))

    async def _read(self, bookie: BookieId, first_entry: int) -> None:
        request = ReadRequest(bookie, self._record.ledger_id, first_entry, _READ_BYTES, fence=True)
        try:
            response = await self._parts.bookies.port(bookie).ask(request)
        except Exception as error:  # an internal error is an unknown outcome, too; the recovery must not hang
            _log.exception("ledger %d: a recovery read failed", self._record.ledger_id)
            response = ReadResponse(Status.UNREACHABLE, detail=repr(error))
        self.core.answered(bookie, first_entry, response)

    def write(self, found: Buffer, header: BlockHeader) -> None:
        if self._rewriter is None:
            self._rewriter = _Rewriter(self._parts, self._record, self._label, self, header.first_entry)
            self._rewriter.never = self._strangers
        self._rewriter.core.add(Pending(found, header.last_entry))

    def end(self, last_entry: int) -> None:
        if not self._ended.done():
            self._ended.set_result(last_entry)

    def stop(self, error: QuireError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)
