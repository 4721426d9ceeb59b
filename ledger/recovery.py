"""The shell of recovery: metadata before and after, reads and writes in between.

OPEN -> IN_RECOVERY by version stops the old writer's ensemble changes; then the core fences, reads and writes again;
then IN_RECOVERY -> CLOSED by version, with the end and the ensemble changes that writing made. Those stay in memory
until then: published earlier, they would send another recovery to bookies that were never asked about what the old
ensemble may hold. A conflict at any step means that somebody else is ahead: read again, and take theirs.

Any number of recoveries may run at once, in one process or many. They write the same bytes to the same places, and
one closing put wins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from quire.ledger import labels, states
from quire.ledger.parts import LedgerContext
from quire.ledger.recovery_core import CutOff, RecoveryCore
from quire.ledger.writer import BlockWriter
from quire.ledger.writer_core import Pending
from quire.metadata import paths
from quire.metadata.records import Fragment, Hole, LedgerRecord, LedgerState, decode, encode
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
"""Conflicts with others before recovery says "try again": each means that somebody made progress."""


async def recover(
    parts: LedgerContext, ledger_id: int, *, accept_loss: bool = False, gone: Collection[str] = ()
) -> LedgerRecord:
    """Fence, recover and close the ledger; a closed one is returned as it is. `gone`: see `RecoveryCore`.

    Raises `NotFound` when it was deleted, `Unavailable` when too few bookies answer (the ledger stays in recovery:
    try again), `LostForGood` when damage stands in the way.
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
            end = await _Recovery(parts, record, accept_loss, gone).run()
            return await _close(parts, path, version, end)
        except LostForGood as error:
            parts.replicas.meets_loss(error)
            raise
        except (VersionConflict, OutcomeUnknown):
            continue
    raise Unavailable(f"ledger {ledger_id} is being changed by others all the time; try again")


async def _close(parts: LedgerContext, path: str, version: int, end: LedgerRecord) -> LedgerRecord:
    version = await parts.store.put(path, encode(end), version)
    if end.last_entry >= 0:
        labels.tell(parts.bookies.port, end, version)
    parts.closed(end, is_whole=False)
    _log.info("ledger %d recovered: it ends with entry %d", end.ledger_id, end.last_entry)
    return end


class _Rewriter(BlockWriter):
    """Writes found blocks past the fence. Ensemble changes are committed in memory, at once."""

    def __init__(
        self, parts: LedgerContext, record: LedgerRecord, recovery: _Recovery, next_entry: int
    ) -> None:
        super().__init__(parts, record, parts.recovery_outbox, next_entry)
        self._recovery = recovery
        self.tried: list[str] = []

    def confirmed(self, last_entry: int) -> None:
        """From here on changes count anew: a recovery that stops for their number loses what it got done, and would
        stop there each time; and no next ledger can go on for it."""
        self.core.changes = 0
        self._recovery.core.written(last_entry)

    def commit(self, fragments: tuple[Fragment, ...]) -> None:
        self.tried += fragments[-1].bookies
        asyncio.get_running_loop().call_soon(self.core.change_committed)

    def failed(self, error: QuireError) -> None:
        """A fence does not stop a recovery: what does is a tombstone."""
        if isinstance(error, Fenced):
            self._recovery.core.write_failed(NotFound(f"ledger {self.core.ledger_id} was deleted"))
        else:
            self._recovery.core.write_failed(Unavailable(f"recovery cannot write again: {error}"))


class _Recovery:
    """One run of the core over one record in IN_RECOVERY."""

    def __init__(
        self, parts: LedgerContext, record: LedgerRecord, accept_loss: bool, gone: Collection[str]
    ) -> None:
        self._parts = parts
        self._record = record
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
            others=states.others(record, len(record.fragments) - 1) if accept_loss else (),
        )

    async def run(self) -> LedgerRecord:
        """The record to close with."""
        self.core.start()
        try:
            last_entry = await self._ended
        finally:
            for task in self._reads:
                task.cancel()
        record, rewriter = self._record, self._rewriter
        fragments = rewriter.core.fragments if rewriter is not None else record.fragments
        tried = rewriter.tried if rewriter is not None else ()
        last_known, ledger_bytes = await self._sizes()
        now_ms = self._parts.clock.now_ms()
        end = states.closed(record, fragments, last_entry, ledger_bytes, now_ms, tried)
        lost = self._cut_off(self.core.cut_off, last_known)
        return states.given_up(end, lost) if lost else end

    async def _sizes(self) -> tuple[int, int]:
        """Greatest last entry and size in bytes that a bookie of the ledger tells; a statistic, not a proof."""
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
        """What an operator's word gives up after the end, as far as anybody knows that it was there."""
        if cut_off is None:
            return ()
        last = max(last_known, self.core.lac)
        _log.warning(
            "ledger %d (%s): what lies after entry %d (known: up to %d) was given up on an operator's word: %s",
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
        except Exception as error:  # a mistake of ours is an unknown, too, and no reason to wait for ever
            _log.exception("a recovery read of ledger %d failed", self._record.ledger_id)
            response = ReadResponse(Status.UNREACHABLE, detail=repr(error))
        self.core.answered(bookie, first_entry, response)

    def write(self, found: Buffer, header: BlockHeader) -> None:
        if self._rewriter is None:
            self._rewriter = _Rewriter(self._parts, self._record, self, header.first_entry)
        self._rewriter.core.add(Pending(found, header.last_entry))

    def end(self, last_entry: int) -> None:
        if not self._ended.done():
            self._ended.set_result(last_entry)

    def stop(self, error: QuireError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)
