"""Client process that writes, reads, recovers and deletes ledgers, as brokers do, and repairs when it is elected.

It consists of a broker's parts below its topics: metadata store, directory of bookies, ledgers, damage reports, repair.
Its writers cut blocks of random entries, and report them to the oracle. A ledger ends in one of several ways: it is
closed or abandoned, fails and is recovered, or its process dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from quire.ledger.bookie_client import BookieClient
from quire.ledger.bookies import Bookies
from quire.ledger.directory import BookieDirectory, ClusterDirectory
from quire.ledger.ledgers import Ledgers, LedgerWriter
from quire.ledger.losses import Losses
from quire.ledger.repair import Repair
from quire.ledger.settings import LedgerSettings, RepairSettings
from quire.metadata.records import LedgerRecord, LedgerState
from quire.metadata.underreplicated import Reports
from quire.runtime.errors import CorruptionError, NotFound, QuireError, Unavailable
from quire.wire import block

from .faults import Cluster
from .host import SimulatedHost
from .loop import Process
from .metadata import SimulatedStore
from .world import SimulatedClock

REPAIR: Final = RepairSettings(
    repair_delay_ms=3_000, repair_bytes_per_s=1 << 30, repair_look_ms=500, repair_round_ms=5_000
)
RETRY_S: Final = 0.3
LATER_S: Final = 2.0
"""Pause after which bookies may have flushed blocks that were not confirmed to their writer."""

LAST_TRIES: Final = 10


def adverse_ledger_settings(rng: Random, write_quorum: int, ack_quorum: int) -> LedgerSettings:
    return LedgerSettings(
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        ensemble_changes_max=rng.choice((3, 32)),
        ensemble_change_delay_ms=rng.choice((0, 5, 50)),
        busy_retry_ms=5,
        metadata_retry_ms=rng.choice((5, 100)),
        metadata_attempts_max=rng.choice((3, 50)),
        idle_lac_ms=rng.choice((20, 500)),
    )


@dataclass
class Base:
    """Parts of every process that uses bookies."""

    store: SimulatedStore
    directory: BookieDirectory
    ledgers: Ledgers
    repair: Repair
    clock: SimulatedClock


async def make_base(
    cluster: Cluster,
    store: SimulatedStore,
    clock: SimulatedClock,
    rng: Random,
    name: str,
    kind: type[Ledgers] = Ledgers,
) -> Base:
    """Create the parts of a process, as `quire broker` does. Raises `Unavailable`."""
    timeout_s = rng.choice((0.3, 1.5)), rng.choice((1.0, 5.0))
    directory = ClusterDirectory(
        store,
        lambda bookie: BookieClient(
            bookie.address, timeout_s=(min(timeout_s), max(timeout_s)), reconnect_s=(0.05, 0.5)
        ),
    )
    await directory.start()
    settings = adverse_ledger_settings(rng, cluster.plan.write_quorum, cluster.plan.ack_quorum)
    ledgers = kind(store, directory, clock, rng, settings, quarantine_s=rng.choice((0.0, 2.0)))
    reports = Reports(store, clock)
    ledgers.on_damage(lambda bookie, *what: reports.met(str(bookie), *what))
    reports.start()
    return Base(store, directory, ledgers, Repair(store, directory, clock, rng, REPAIR, name), clock)


class Client(SimulatedHost):
    purpose = "state:simulation"

    def __init__(self, cluster: Cluster, number: int) -> None:
        super().__init__(cluster, f"client-{number}")
        self.oracle = cluster.oracle
        self.clock = SimulatedClock(
            self.world.loop, self.rng.uniform(-0.02, 0.02), self.rng.choice((0, 0, -5_000, 5_000))
        )
        self.base: Base | None = None
        self.stops = False
        self.open: dict[int, LedgerWriter] = {}
        self.deleting: set[int] = set()
        """Ledgers that this client has begun to delete. A deletion may be stuck."""

    # -- process ----------------------------------------------------------------------------------------------
    def work(self, process: Process) -> Coroutine[Any, Any, None]:
        self.store = SimulatedStore(self.cluster.metadata, process)
        return self._run(process, self.store)

    def forget(self) -> None:
        self.base = None
        self.open.clear()
        self.deleting.clear()

    async def _run(self, process: Process, store: SimulatedStore) -> None:
        while self.base is None:
            try:
                self.base = await self.make_base(process, store)
            except QuireError:
                await asyncio.sleep(RETRY_S)
        self.base.repair.start()
        while not self.stops:
            try:
                await self._write_a_ledger(self.base.ledgers)
            except QuireError as error:
                self.world.note(f"{process}: {type(error).__name__} {error}")
                await asyncio.sleep(RETRY_S)

    async def make_base(self, process: Process, store: SimulatedStore) -> Base:
        """Create the parts below the ledgers' users. Raises `Unavailable`."""
        return await make_base(self.cluster, store, self.clock, self.rng, process.name)

    # -- writing ---------------------------------------------------------------------------------------
    async def _write_a_ledger(self, ledgers: Ledgers) -> None:
        writing = Writing(self)
        width = self.cluster.plan.write_quorum
        writer = writing.writer = await ledgers.create(self.purpose, writing)
        ledger_id = writer.ledger_id
        self.open[ledger_id] = writer
        self.oracle.blocks.setdefault(ledger_id, {})
        self.world.note(f"{self.host} writes ledger {ledger_id} of width {width}")
        burst = self.rng.choice((1, 3, 10))
        for _ in range(self.rng.choice((2, 10, 30))):
            if self.stops or writer.error is not None:
                break
            for _ in range(self.rng.randint(1, burst)):
                writing.add()
            await asyncio.sleep(self.rng.choice((0.0, 0.002, 0.05, 0.6)))
        self.open.pop(ledger_id, None)
        await self._end(ledgers, writer)

    async def _end(self, ledgers: Ledgers, writer: LedgerWriter) -> None:
        """Close or abandon the ledger. If the writer has failed, recover the ledger, sometimes."""
        if writer.error is None and self.rng.random() < 0.3:
            writer.abandon()
        elif writer.error is None:
            try:
                await writer.close()
                return
            except QuireError as error:
                self.world.note(f"{self.host} cannot close ledger {writer.ledger_id}: {error}")
        if self.rng.random() < 0.7:
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.0, LATER_S)))
            await self.recover(writer.ledger_id, 3, writer)

    # -- actions of events -----------------------------------------------------------------------------
    async def recover(
        self, ledger_id: int, attempts: int, failed: LedgerWriter | None = None
    ) -> LedgerRecord | None:
        for _ in range(attempts):
            base = self.base
            if base is None:
                return None
            try:
                self.world.note(f"{self.host} recovers ledger {ledger_id}")
                return await base.ledgers.recover(ledger_id, failed)
            except NotFound:
                return None
            except QuireError as error:
                self.world.note(f"{self.host} cannot recover ledger {ledger_id}: {error}")
                self.world.saw(f"recovery {type(error).__name__}")
                await asyncio.sleep(RETRY_S)
        return None

    async def read(self, ledger_id: int, bytes_max: int = 2_000) -> int:
        """Read a ledger from its beginning to its current end, and return the number of entries."""
        entry = 0
        if self.base is None:
            return entry
        reader = await self.base.ledgers.open(ledger_id)
        while blocks := await reader.read(entry, bytes_max):
            header = block.peek(blocks[0])
            self.world.check(
                header.first_entry <= entry <= header.last_entry,
                "readers",
                f"a gap at {entry} of {ledger_id}",
            )
            for found in blocks:
                header = block.peek(found)
                if block.is_blank(header):
                    self.oracle.saw_blank(ledger_id, header, self.host)
                else:
                    self.oracle.saw_entry(ledger_id, header.first_entry, found, self.host)
                entry = header.last_entry + 1
        self.world.saw("ledger read")
        return entry

    async def read_if_possible(self, ledger_id: int) -> None:
        with suppress(Unavailable, NotFound):
            try:
                await self.read(ledger_id, self.rng.choice((1, 4_000, 4_000)))
            except CorruptionError as error:
                self.world.saw("reader met damage")
                self.world.note(f"{self.host}: {error}")

    async def accept_loss(self, ledger_id: int, gone: Iterable[str]) -> None:
        """Run `quire bookies recover` for each bookie in `gone`, then `quire ledgers recover --accept-loss`."""
        for uuid in gone:
            await self.give_up_bookie(uuid)
        if self.base is None:
            return
        self.world.note(f"{self.host} accepts the loss of ledger {ledger_id}")
        self.oracle.accepted.add(ledger_id)
        try:
            found = (await Losses(self.base.ledgers).give_up(ledger_id))["found"]
            self.world.saw("loss looked for")
            self.world.note(f"{self.host} gave up of ledger {ledger_id}: {found}")
        except QuireError as error:
            self.world.saw(f"accept loss {type(error).__name__}")
            self.world.note(f"{self.host} cannot accept the loss of ledger {ledger_id}: {error}")

    async def give_up_bookie(self, uuid: str) -> None:
        if self.base is None:
            return
        try:
            await Bookies(self.base.ledgers).recover(uuid)
            self.world.saw("bookie given up")
        except NotFound:
            return
        except QuireError as error:
            self.world.note(f"{self.host} cannot give up {uuid}: {error}")

    async def decommission(self, uuid: str) -> None:
        if self.base is None:
            return
        try:
            await Bookies(self.base.ledgers).decommission(uuid)
            self.world.saw("bookie decommissioned")
        except QuireError as error:
            self.world.note(f"{self.host} cannot decommission {uuid}: {error}")

    async def read_in_the_end(self, ledger_id: int, bytes_max: int) -> int:
        """Call `read`, and retry it a few times, because at the end of a history nothing is unavailable for long."""
        for _ in range(LAST_TRIES):
            try:
                return await self.read(ledger_id, bytes_max)
            except Unavailable as error:
                self.world.note(f"{self.host}: {error}")
                await asyncio.sleep(1.0)
        return await self.read(ledger_id, bytes_max)

    async def delete(self, ledger_id: int, attempts: int) -> bool:
        try:
            return await self._try_to_delete(ledger_id, attempts)
        finally:
            self.deleting.discard(ledger_id)

    async def _try_to_delete(self, ledger_id: int, attempts: int) -> bool:
        for _ in range(attempts):
            if self.base is None:
                return False
            try:
                await self.base.ledgers.delete(ledger_id)
                self.world.saw("ledger deleted")
                return True
            except QuireError as error:
                self.world.note(f"{self.host} cannot delete ledger {ledger_id}: {error}")
                await asyncio.sleep(RETRY_S)
        return False


class Writing:
    """Listener of one writer, which also cuts the writer's blocks."""

    writer: LedgerWriter

    def __init__(self, client: Client) -> None:
        self._client = client
        self._world, self._oracle = client.world, client.oracle
        self._entries = 0

    def add(self) -> None:
        writer, rng = self.writer, self._client.rng
        if writer.error is not None:
            return
        first, count = writer.core.last_added + 1, rng.choice((1, 1, 3))
        entries: list[Any] = [rng.randbytes(rng.choice((20, 200, 900))) for _ in range(count)]
        self._entries += count
        cut = bytes(
            block.cut(
                writer.ledger_id, first, writer.last_confirmed, self._client.clock.now_ms(), first, entries
            )
        )
        self._oracle.wrote(writer.ledger_id, first, cut)
        writer.add(cut, first + count - 1)

    def confirmed(self, last_entry: int) -> None:
        self._world.note(f"{self._client.host} hears that {self.writer.ledger_id}/{last_entry} is confirmed")
        self._oracle.heard_confirmed(self.writer.ledger_id, last_entry)

    def failed(self, error: QuireError) -> None:
        self._world.note(f"{self._client.host} hears that ledger {self.writer.ledger_id} failed: {error}")
        self._world.saw(f"writer failed {type(error).__name__}")


def is_open(record: LedgerRecord) -> bool:
    return record.state in (LedgerState.OPEN, LedgerState.IN_RECOVERY)
