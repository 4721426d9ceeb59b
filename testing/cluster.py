"""Cluster in memory for tests: bookies, a metadata store, and ledgers over both.

    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    write(writer, blocks=10)
    await listener.until(9)

`join` adds another process to the same cluster. A test injects faults into the bookies (`quire.testing.bookie`) and
into the metadata store (`quire.testing.metadata`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from quire.ledger.directory import LocalDirectory
from quire.ledger.ledgers import Ledgers, LedgerWriter
from quire.ledger.settings import LedgerSettings
from quire.runtime.clock import ManualClock
from quire.runtime.errors import QuireError
from quire.testing.bookie import MemoryBookie, deliver_soon
from quire.testing.metadata import MemoryStore
from quire.wire import block
from quire.wire.bookie import BookieId

QUICK = LedgerSettings(
    ensemble_change_delay_ms=0, busy_retry_ms=0, metadata_retry_ms=0, idle_lac_ms=5, metadata_attempts_max=20
)


class Listener:
    """Record of a writer's confirmations and its failure; a `WriterListener`."""

    def __init__(self) -> None:
        self.confirmations: list[int] = []
        self.error: QuireError | None = None
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    @property
    def last(self) -> int:
        return self.confirmations[-1] if self.confirmations else -1

    def confirmed(self, last_entry: int) -> None:
        assert self.error is None, "confirmed after failed"
        assert last_entry > self.last
        self.confirmations.append(last_entry)
        self._look()

    def failed(self, error: QuireError) -> None:
        assert self.error is None, "failed twice"
        self.error = error
        self._look()

    async def until(self, last_entry: int) -> None:
        """Wait until `last_entry` is confirmed. Raises the writer's error if it fails before."""
        await self._until(lambda: self.last >= last_entry or self.error is not None)
        if self.last < last_entry and self.error is not None:
            raise self.error

    async def until_failed(self) -> QuireError:
        await self._until(lambda: self.error is not None)
        assert self.error is not None
        return self.error

    async def _until(self, condition: Callable[[], bool]) -> None:
        if not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((condition, waiter))
            await asyncio.wait_for(waiter, 10)

    def _look(self) -> None:
        for condition, waiter in self._waiters:
            if condition() and not waiter.done():
                waiter.set_result(None)


class MemoryCluster:
    """Cluster of bookies, with the `Ledgers` of one process; `join` adds another process."""

    def __init__(self, count: int, seed: int = 0, settings: LedgerSettings = QUICK) -> None:
        self.settings = settings
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.directory = LocalDirectory()
        self.bookies: list[MemoryBookie] = []
        self.rng = Random(seed)
        for _ in range(count):
            self.grow()
        self.ledgers = self.join()

    def grow(self, deliver: Callable[[Callable[[], None]], None] = deliver_soon) -> MemoryBookie:
        bookie = MemoryBookie(BookieId(f"bookie-{len(self.bookies)}", 1), deliver)
        self.bookies.append(bookie)
        self.directory.join(bookie.record, bookie)
        return bookie

    def join(self) -> Ledgers:
        return Ledgers(self.store.join(), self.directory, self.clock, self.rng, self.settings, quarantine_s=0)

    def named(self, bookie: BookieId | str) -> MemoryBookie:
        return next(each for each in self.bookies if str(each.bookie) == str(bookie))

    def ensemble(self, writer: LedgerWriter) -> list[MemoryBookie]:
        return [self.named(bookie) for bookie in writer.core.fragments[-1].bookies]


async def turns_until(condition: Callable[[], bool], turns_max: int = 10_000) -> None:
    """Run iterations of the event loop until `condition` is true. Raises `AssertionError` after `turns_max`."""
    for _ in range(turns_max):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


def cut(ledger_id: int, first: int, count: int = 1, lac: int = -1, clock_ms: int = 0) -> bytes:
    entries = [b"entry %d" % entry for entry in range(first, first + count)]
    return bytes(block.cut(ledger_id, first, lac, clock_ms, first, entries))


def write(writer: LedgerWriter, blocks: int, count: int = 1) -> int:
    """Append `blocks` blocks of `count` entries each to a ledger; return the last entry."""
    for _ in range(blocks):
        first = writer.core.last_added + 1
        writer.add(cut(writer.ledger_id, first, count, writer.last_confirmed, first), first + count - 1)
    return writer.core.last_added


async def read_all(ledgers: Ledgers, ledger_id: int, bytes_max: int = 300) -> list[bytes]:
    """Read all entries of a ledger, through a reader."""
    reader = await ledgers.open(ledger_id)
    entries: list[bytes] = []
    while blocks := await reader.read(len(entries), bytes_max):
        for found in blocks:
            entries += [bytes(entry) for entry in block.entries(found, block.read_header(found))]
    return entries


def expected(last_entry: int) -> list[bytes]:
    return [b"entry %d" % entry for entry in range(last_entry + 1)]
