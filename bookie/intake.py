"""The intake: where a block is judged and, in the same step, enters memtable and journal queue.

Nothing here awaits, so between the look at a fence and the queueing of the block nothing can happen (rule 24),
and a journal group's blocks enter one memtable (rule 21). In the common case, a writer's next block, judging it
is two comparisons: the ledger is open to writers and the block begins behind its last entry.

| the block                                           | answer                               | journalled |
|-----------------------------------------------------|--------------------------------------|------------|
| is damaged                                          | BAD_BLOCK                            | no         |
| its ledger has a tombstone                          | DELETED                              | no         |
| its ledger is fenced, and this is no recovery       | FENCED                               | no         |
| is here already, the same bytes                     | OK, once the first copy is durable   | no         |
| is here already, rotten, and this is a recovery     | OK, once it is mended; else IO_ERROR | no         |
| other bytes are here, or it overlaps another block  | CONFLICT                             | no         |
| is new, but the bookie is read-only (see `room`)    | READ_ONLY                            | no         |
| is new                                              | OK, once durable; else IO_ERROR      | yes        |

When both memtables are full, requests wait in line. The line is bounded by who sends: the write cache counts what
waits, and the process stops reading its sockets by it.
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

OK: Final = Status.OK


class _InEntryLog(NamedTuple):
    """The verdict must wait until the block that lies in the entry log was read."""

    ledger_id: int
    first_entry: int
    block: Buffer
    recovery: bool


class Intake:
    """The way into the write cache and the journal, and the requests that wait for room."""

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
        """Judge, keep and queue the blocks in order. See `BookiePort.add`."""
        if not self._refuses(request) and (self._waiting or (self._cache.is_full and not self._found_room())):
            self._waiting.append((request, done))
            self._cache.waiting_bytes += sum(map(len, request.blocks))
        else:
            self._admit(request, done)

    def drain(self) -> None:
        """There is room again, or no hope: take what waits."""
        while self._waiting and (
            self._refuses(self._waiting[0][0]) or not self._cache.is_full or self._found_room()
        ):
            request, done = self._waiting.popleft()
            self._cache.waiting_bytes -= sum(map(len, request.blocks))
            self._admit(request, done)

    def _found_room(self) -> bool:
        if self._cache.frozen is not None:
            return False
        self._flusher.begin()
        return True

    def _refuses(self, request: AddRequest) -> bool:
        """Whether none of its blocks that are new can be taken."""
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
        """`_take` a block that came from elsewhere."""
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
        """Judge blocks in order; put each that is new into the memtable. One loop: this is done for every block."""
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
            if first_entry <= state.last_entry or state.is_closed_to_writers or refuses:
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
        """The table above, for a block that is not simply the next one. None: it is new and may come in."""
        if state.tombstone_version is not None:
            return Status.DELETED
        if state.is_fenced and not recovery:
            return Status.FENCED
        if self._journal.failure is not None:
            return Status.IO_ERROR
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
        """Journal what is new; answer when that, every first copy and every comparison is there."""
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
    """The same bytes are in a memtable: OK once everything queued so far is durable."""

    def __repr__(self) -> str:
        return "DUPLICATE"


DUPLICATE: Final = _Duplicate()


class _Join:
    """Waits for the journal's answer and a number of comparisons, then answers once."""

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
