"""Intake: checks each block, and adds it to the memtable and the journal's queue in the same step.

There is no `await` between the check of a fence and the queueing of the block (rule 24), and all blocks of a journal
group enter the same memtable (rule 21). For a writer's next block, the common case, the check takes two comparisons:
the ledger is open to writers, and the block begins after the ledger's last entry.

| the block                                            | answer                                   | journalled |
|------------------------------------------------------|------------------------------------------|------------|
| is damaged                                           | BAD_BLOCK                                | no         |
| its ledger has a tombstone                           | DELETED                                  | no         |
| its ledger is fenced, and the request not a recovery | FENCED                                   | no         |
| exists here with the same bytes                      | OK, once the first copy is durable       | no         |
| exists here, damaged, and the request is a recovery  | OK, once it is restored; else IO_ERROR   | no         |
| exists here with other bytes, or overlaps a block    | CONFLICT                                 | no         |
| is a label of another ledger that had the same id    | CONFLICT                                 | no         |
| is new, but the bookie is read-only (see `room`)     | READ_ONLY                                | no         |
| is new                                               | OK, once durable; else IO_ERROR          | yes        |

While both memtables are full, requests wait in a queue. The write cache counts the bytes of waiting requests. While
there are too many, the process does not read its sockets (backpressure), which limits the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from quire.bookie.ledgers import LedgerState
from quire.bookie.neighbours import CompareDone, Flushing, Journaling, Reading, Runs, Standing
from quire.bookie.write_cache import WriteCache
from quire.runtime.errors import QuireError
from quire.wire.block import BlockError, BlockHeader, Buffer, brief, peek, same_bytes, verify
from quire.wire.bookie import AddDone, AddRequest, Status
from quire.wire.ledger_ids import FIRST_LABEL

OK: Final = Status.OK


class _InEntryLog(NamedTuple):
    """Verdict on a block that exists in the entry log: it must be read and compared before the request is answered."""

    ledger_id: int
    first_entry: int
    block: Buffer
    recovery: bool


class Intake:
    """Adds blocks to the write cache and the journal, and queues requests that wait for space."""

    def __init__(
        self,
        cache: WriteCache,
        flushed: Runs,
        journal: Journaling,
        health: Standing,
        flusher: Flushing,
        reads: Reading,
        request_bytes_max: int,
    ) -> None:
        self._cache = cache
        self._ledgers = cache.ledgers
        self._flushed = flushed
        self._journal = journal
        self._health = health
        self._flusher = flusher
        self._reads = reads
        self._request_bytes_max = request_bytes_max
        self._waiting: deque[tuple[AddRequest, AddDone]] = deque()
        health.on_worse(self.drain)
        flusher.on_flushed(self.drain)

    # -- adding ------------------------------------------------------------------------------------------
    def add(self, request: AddRequest, done: AddDone) -> None:
        """Check the blocks in order, and store and queue the accepted ones. See `BookiePort.add`."""
        if not self._refuses(request) and (self._waiting or (self._cache.is_full and not self._found_room())):
            self._waiting.append((request, done))
            self._cache.waiting_bytes += sum(map(len, request.blocks))
        else:
            self._admit(request, done)

    def drain(self) -> None:
        """Process waiting requests, in order, while there is space in the memtable or a request will be refused."""
        while self._waiting and (
            self._refuses(self._waiting[0][0]) or not self._cache.is_full or self._found_room()
        ):
            request, done = self._waiting.popleft()
            self._cache.waiting_bytes -= sum(map(len, request.blocks))
            assert self._cache.waiting_bytes >= 0 and (self._waiting or not self._cache.waiting_bytes)
            self._admit(request, done)

    def _found_room(self) -> bool:
        if self._cache.frozen is not None:
            return False
        self._flusher.begin()
        return True

    def _refuses(self, request: AddRequest) -> bool:
        """Return whether none of the request's new blocks can be accepted."""
        return (
            self._health.is_exhausted
            or (self._health.is_read_only and not request.priority)
            or self._journal.failure is not None
        )

    def _admit(self, request: AddRequest, done: AddDone) -> None:
        blocks = request.blocks
        size_bytes = sum(map(len, blocks))
        if size_bytes > self._request_bytes_max:
            self._journal.barrier(done, (Status.BAD_REQUEST,) * len(blocks))
            return
        recovery, refuses = request.recovery, self._refuses(request)
        if request.is_sealed_here:
            verdicts = self._take(blocks, recovery, refuses)
        else:
            verdicts = [self._prove_and_take(block, recovery, refuses) for block in blocks]
        if not any(verdicts):  # all are new: Status.OK is 0, and so is every verdict
            self._journal.append(blocks, size_bytes, done, verdicts)  # type: ignore[arg-type]
            return
        self._answer_mixed(blocks, verdicts, done)

    def _prove_and_take(
        self, block: Buffer, recovery: bool, refuses: bool
    ) -> Status | _InEntryLog | _Duplicate:
        """Verify a block that another process created, then `_take` it."""
        try:
            header = verify(block)
        except BlockError:
            return Status.BAD_BLOCK
        if header.length != len(block):
            return Status.BAD_BLOCK
        return self._take((block,), recovery, refuses)[0]

    def _take(
        self, blocks: Sequence[Buffer], recovery: bool, refuses: bool
    ) -> list[Status | _InEntryLog | _Duplicate]:
        """Check blocks in order, and add new ones to the memtable.

        One loop, for speed, because it runs for every block.
        """
        ledgers, keep = self._ledgers, self._cache.active.add
        verdicts: list[Status | _InEntryLog | _Duplicate] = []
        for block in blocks:
            count, ledger_id, first_entry, lac, _ = brief(block)
            last_entry = first_entry + count - 1
            state = ledgers.get(ledger_id)
            if state is None:
                if refuses:
                    judged = self._judge(LedgerState(ledger_id), peek(block), block, recovery, refuses)
                    verdicts.append(judged or Status.READ_ONLY)
                    continue
                state = ledgers[ledger_id] = LedgerState(ledger_id)
            if (
                first_entry <= state.last_entry
                or state.is_closed_to_writers
                or refuses
                or (ledger_id >= FIRST_LABEL and lac != state.lac)
            ):
                verdict = self._judge(state, peek(block), block, recovery, refuses)
                if verdict is not None:
                    verdicts.append(verdict)
                    continue
            if last_entry > state.last_entry:
                state.last_entry = last_entry
            if lac > state.lac:
                state.lac = lac
            keep(ledger_id, first_entry, last_entry, block)
            verdicts.append(OK)
        return verdicts

    def _judge(
        self, state: LedgerState, header: BlockHeader, block: Buffer, recovery: bool, refuses: bool
    ) -> Status | _InEntryLog | _Duplicate | None:
        """Apply the module's table to a block that is not simply the next one; return None if it is accepted."""
        if state.tombstone_version is not None:
            return Status.DELETED
        if state.is_fenced and not recovery:
            return Status.FENCED
        if self._journal.failure is not None:
            return Status.IO_ERROR
        if header.ledger_id >= FIRST_LABEL and -1 not in (header.lac, state.lac) and header.lac != state.lac:
            return Status.CONFLICT  # the LAC of a label is the nonce of its ledger (`quire.ledger.labels`)
        if header.first_entry <= state.last_entry:
            verdict = self._compare_with_kept(header, block, recovery)
            if verdict is not None:
                return verdict
        return Status.READ_ONLY if refuses else None

    def _compare_with_kept(
        self, header: BlockHeader, block: Buffer, recovery: bool
    ) -> Status | _InEntryLog | _Duplicate | None:
        ledger_id, first_entry, last_entry = header.ledger_id, header.first_entry, header.last_entry
        for table in self._cache.tables:
            kept = table.overlapping(ledger_id, first_entry, last_entry)
            if kept is not None:
                return DUPLICATE if same_bytes(kept, block) else Status.CONFLICT
        try:
            rows = self._flushed.rows(ledger_id, first_entry, 1)
        except QuireError:
            return Status.IO_ERROR
        if rows and rows[0].first_entry <= last_entry:
            return _InEntryLog(ledger_id, first_entry, block, recovery)
        return None

    def _answer_mixed(
        self, blocks: Sequence[Buffer], verdicts: Sequence[Status | _InEntryLog | _Duplicate], done: AddDone
    ) -> None:
        """Append the new blocks to the journal; answer the request when all statuses are known.

        The journal calls `done` when the new blocks, and the first copies of repeated blocks, are durable. Blocks that
        are in the entry log are compared meanwhile.
        """
        fresh = [block for block, verdict in zip(blocks, verdicts, strict=True) if verdict is Status.OK]
        statuses = [verdict if isinstance(verdict, Status) else Status.OK for verdict in verdicts]
        waiting = [(i, verdict) for i, verdict in enumerate(verdicts) if isinstance(verdict, _InEntryLog)]
        if waiting:
            join = _Join(len(waiting), done)
            done = join.journal_done
            for position, lying in waiting:
                self._reads.compare(*lying, join.part(position))
        if fresh:
            self._journal.append(fresh, sum(map(len, fresh)), done, statuses)
        else:
            self._journal.barrier(done, statuses)


class _Duplicate:
    """Verdict on a repeated block that is in a memtable: OK when all records queued so far are durable."""

    def __repr__(self) -> str:
        return "DUPLICATE"


DUPLICATE: Final = _Duplicate()


class _Join:
    """Combination of the journal's statuses and the results of `comparisons` into one response."""

    def __init__(self, comparisons: int, done: AddDone) -> None:
        self._outstanding = comparisons + 1
        self._done = done
        self._statuses: list[Status] = []
        self._compared: dict[int, Status] = {}

    def journal_done(self, statuses: Sequence[Status]) -> None:
        self._statuses = list(statuses)
        self._settle()

    def part(self, position: int) -> CompareDone:
        def compared(status: Status) -> None:
            self._compared[position] = status
            self._settle()

        return compared

    def _settle(self) -> None:
        self._outstanding -= 1
        if self._outstanding == 0:
            for position, status in self._compared.items():
                self._statuses[position] = status
            self._done(self._statuses)
