"""Benchmark of a ledger's writer core, outbox and confirmations, per block, with a bookie that responds at once.

    python -m bench.ledger [turns]

Each writer adds one block per iteration of the event loop, as with many quiet topics. The bookie's work is not
included. It prints the microseconds of process time per block; the budget is 4 µs with one copy and an ack quorum of 1.
"""

from __future__ import annotations

import asyncio
import sys
import time
from random import Random

from bench.report import machine, show
from quire.ledger.directory import LocalDirectory, UnreachablePort
from quire.ledger.ledgers import Ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata.records import BookieRecord
from quire.runtime.clock import SystemClock
from quire.testing.metadata import MemoryStore
from quire.wire import block
from quire.wire.bookie import AddDone, AddRequest, BookieId, Status


class InstantBookie(UnreachablePort):
    """Bookie that acknowledges every block in the next iteration of the event loop, and keeps nothing."""

    def add(self, request: AddRequest, done: AddDone) -> None:
        asyncio.get_running_loop().call_soon(done, [Status.OK] * len(request.blocks))


class Counter:
    def __init__(self) -> None:
        self.last_entry = -1

    def confirmed(self, last_entry: int) -> None:
        self.last_entry = last_entry

    def failed(self, error: Exception) -> None:
        raise error


async def measure(writers_count: int, copies: int, turns: int, blocks_per_turn: int = 1) -> float:
    """Return the µs of process time per block."""
    directory = LocalDirectory()
    for number in range(copies):
        bookie = BookieId(f"bookie-{number}", 1)
        directory.join(BookieRecord(uuid=bookie.uuid, incarnation=1), InstantBookie())
    settings = LedgerSettings(write_quorum=copies, ack_quorum=copies // 2 + 1)
    ledgers = Ledgers(MemoryStore(), directory, SystemClock(), Random(1), settings)
    counters = [Counter() for _ in range(writers_count)]
    writers = [await ledgers.create("bench", counter) for counter in counters]
    small = block.cut(1, 0, -1, 0, 0, [b"x" * 100])
    entry = 0
    started = time.process_time()
    for _ in range(turns):
        for writer in writers:
            for number in range(blocks_per_turn):
                writer.add(small, entry + number)
        entry += blocks_per_turn
        while counters[-1].last_entry < entry - 1:  # noqa: ASYNC110 - iterations of the loop are measured
            await asyncio.sleep(0)
    elapsed = time.process_time() - started
    await ledgers.stop()
    return elapsed * 1e6 / (turns * writers_count * blocks_per_turn)


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    import uvloop

    show("machine", **machine())
    for writers, copies, blocks in ((1, 1, 1), (1, 1, 16), (1000, 1, 1), (1000, 3, 1)):
        scale = 1 if writers > 1 else 200
        cost = uvloop.run(measure(writers, copies, turns * scale, blocks))
        show(f"{writers} writers, {copies} copies, {blocks} blocks a turn", us_per_block=cost)


if __name__ == "__main__":
    main()
