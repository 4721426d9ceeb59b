"""Segment of a state log: writes records to one ledger in blocks, and reports their confirmation to the log.

The log decides whether a confirmed record counts as durable: during a roll, it withholds the new segment's records
(`quire.ledger.state_log`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from quire.ledger.ledgers import LedgerWriter
from quire.runtime.clock import Clock
from quire.runtime.errors import QuireError
from quire.runtime.limits import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, BLOCKS_IN_FLIGHT_PER_LEDGER_MAX
from quire.wire import block

Done = Callable[[QuireError | None], None]


class Waiting(NamedTuple):
    """Entry to be written, with its callback."""

    entry: bytes
    done: Done | None


class SegmentOwner(Protocol):
    """Interface through which a segment calls its log."""

    @property
    def error(self) -> QuireError | None: ...

    def confirmed(self, segment: Segment, dones: list[Done]) -> None:
        """Handle the confirmation of records in `segment`; `dones` are their callbacks."""
        ...

    def fail(self, error: QuireError) -> None: ...


class Segment:
    """Listener of one ledger's writer: cuts blocks, and keeps the callbacks of unconfirmed entries."""

    writer: LedgerWriter

    def __init__(self, log: SegmentOwner, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self.bytes = 0
        self._next_entry = 0
        self._clock_ms = 0
        self._unconfirmed: deque[tuple[int, list[Done]]] = deque()
        self._error: QuireError | None = None
        self._confirmed = -1
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def has_room(self) -> bool:
        return self.writer.core.blocks_pending < BLOCKS_IN_FLIGHT_PER_LEDGER_MAX

    def write_block(self, waiting: deque[Waiting]) -> None:
        """Remove entries from the front of `waiting`, and write them as one block."""
        entries: list[bytes] = []
        dones: list[Done] = []
        size = 0
        while waiting and len(entries) < BLOCK_ENTRIES_MAX:
            size += len(waiting[0].entry)
            if entries and size > BLOCK_BYTES_MAX:
                break
            entry, done = waiting.popleft()
            entries.append(entry)
            if done is not None:
                dones.append(done)
        self._write(entries, dones)

    def _write(self, entries: list[bytes], dones: list[Done]) -> None:
        first, writer = self._next_entry, self.writer
        assert writer.last_confirmed < first, "an entry was confirmed before it was written"
        self._clock_ms = max(self._clock_ms, self._clock.now_ms())
        content = block.cut(writer.ledger_id, first, writer.last_confirmed, self._clock_ms, first, entries)
        self._next_entry += len(entries)
        self.bytes += len(content)
        self._unconfirmed.append((self._next_entry - 1, dones))
        writer.add(content, self._next_entry - 1)

    def confirmed(self, last_entry: int) -> None:
        assert self._confirmed < last_entry < self._next_entry
        dones: list[Done] = []
        while self._unconfirmed and self._unconfirmed[0][0] <= last_entry:
            dones += self._unconfirmed.popleft()[1]
        self._confirmed = last_entry
        self._wake()
        self._log.confirmed(self, dones)

    def failed(self, error: QuireError) -> None:
        self._error = error
        self._wake()
        self._log.fail(error)

    async def drained(self) -> None:
        """Wait until all entries written so far are confirmed. Raises the error that ended the ledger or the log."""
        last_entry = self._next_entry - 1
        if self._confirmed < last_entry and self._error is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((last_entry, waiter))
            await waiter
        if self._error is not None:
            raise self._error

    def abandon(self) -> list[Done]:
        """Stop writing; return the callbacks of unconfirmed entries."""
        self._error = self._error or self._log.error
        self.writer.abandon()
        unanswered = [done for _, dones in self._unconfirmed for done in dones]
        self._unconfirmed.clear()
        self._wake()
        return unanswered

    def _wake(self) -> None:
        for last_entry, waiter in self._waiters:
            if (self._confirmed >= last_entry or self._error is not None) and not waiter.done():
                waiter.set_result(None)
        self._waiters = [each for each in self._waiters if not each[1].done()]
