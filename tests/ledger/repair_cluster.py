"""Bookies in memory with a coordinator of repair, for tests of it."""

from __future__ import annotations

from random import Random

from quire.ledger.repair import Repair
from quire.ledger.settings import RepairSettings
from quire.metadata import paths
from quire.metadata.notify import touch
from quire.metadata.records import (
    BookieIntent,
    BookieRecord,
    DamageRecord,
    LedgerRecord,
    PersistencePolicy,
    UnderreplicatedRecord,
    encode,
)
from quire.metadata.underreplicated import report
from quire.testing.cluster import Listener, MemoryCluster, write

DELAY_MS = 600_000


class Cluster(MemoryCluster):
    """Bookies with identity records, and a coordinator that looks when it is told to."""

    def __init__(self, count: int, **settings: int) -> None:
        super().__init__(count)
        self.repair = self.coordinator(**settings)

    def coordinator(self, **settings: int) -> Repair:
        given = RepairSettings(**({"repair_delay_ms": DELAY_MS, "repair_look_ms": 1} | settings))
        return Repair(self.store.join(), self.directory, self.clock, Random(self.rng.random()), given, "test")

    async def know(self) -> None:
        """Write the records of bookies that have none."""
        for each in self.bookies:
            try:
                await self.store.create(paths.bookie(each.bookie.uuid), encode(each.record()))
            except Exception:
                continue

    async def want(self, number: int, intent: BookieIntent) -> None:
        path = paths.bookie(f"bookie-{number}")
        record = BookieRecord(uuid=f"bookie-{number}", incarnation=1, intent=intent)
        await self.store.put(path, encode(record), -1)
        await touch(self.store, paths.UNDERREPLICATED)
        self.repair.wake()

    async def report_damage(self, number: int, ledger_id: int, entry: int, *, flip: bool = True) -> None:
        if flip:
            self.bookies[number].flip(ledger_id, entry)
        record = DamageRecord(bookie=f"bookie-{number}:1", ledger_id=ledger_id, entry=entry)
        await report(self.store, UnderreplicatedRecord(ledger_id=ledger_id, damage=(record,)))
        self.repair.wake()

    def cut_off(self, number: int, ledger_id: int, *, blocks: int) -> None:
        """The bookie never got the last blocks of the ledger."""
        held = self.bookies[number].ledgers[ledger_id]
        for first in held.firsts[-blocks:]:
            held.blocks.pop(first)
        del held.firsts[-blocks:]

    def lose(self, number: int) -> None:
        """The bookie is gone and its registration ended."""
        self.bookies[number].unreachable = True
        self.directory._records.pop(f"bookie-{number}", None)

    def come_back(self, number: int) -> None:
        each = self.bookies[number]
        each.unreachable = False
        self.directory.join(each.record, each)

    async def closed(self, blocks: int = 20, on: int = 3) -> LedgerRecord:
        writer = await self.ledgers.create(
            "test", listener := Listener(), PersistencePolicy(write_quorum=on, ack_quorum=min(2, on))
        )
        await listener.until(write(writer, blocks, 3))
        return await writer.close()

    async def info(self, ledger_id: int) -> LedgerRecord:
        return await self.ledgers.info(ledger_id)

    async def looks(self, times: int) -> None:
        """Look so many times, a session's time-out apart."""
        for _ in range(times):
            await self.repair.look()
            self.clock.advance_ms(self.store.session_timeout_ms)

    async def look_long_after(self) -> None:
        """Miss who is gone, wait, look again, and once more to confirm."""
        await self.repair.look()
        self.clock.advance_ms(DELAY_MS)
        for _ in range(4):
            await self.repair.look()
            self.clock.advance_ms(5_000)

    def holders(self, record: LedgerRecord) -> set[str]:
        """Bookies that really hold every entry of the ledger."""
        return {
            str(each.bookie)
            for each in self.bookies
            if all(each.holds(record.ledger_id, entry) for entry in range(record.last_entry + 1))
        }


async def one_more(cluster: Cluster) -> None:
    cluster.grow()
    await cluster.know()
