"""Writers and readers, real bookies, and a network between them that cuts, delays and drops; processes that die.

What must hold whatever happens to one bookie: no publish takes longer than two seconds, and none fails.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from quire.bookie.registration import describe
from quire.bookie.server import BookieServer
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.ledger.bookie_client import BookieClient
from quire.ledger.directory import ClusterDirectory
from quire.ledger.ledgers import Ledgers, LedgerWriter
from quire.ledger.parts import Home
from quire.ledger.settings import LedgerSettings
from quire.metadata import paths
from quire.metadata.open import open_store
from quire.metadata.records import BookieRecord, LedgerState, decode, encode
from quire.metadata.store import MetadataStore
from quire.runtime.clock import SystemClock
from quire.runtime.errors import QuireError
from quire.runtime.limits import KIB, MIB
from quire.testing.cluster import Listener, expected, read_all, write
from quire.testing.metadata import MemoryStore
from quire.wire import block
from quire.wire.bookie import BookieId, ReadRequest, Status
from tests.cluster.proxy import Proxy
from tests.cluster.zookeeper import ZooKeeper

PUBLISH_MAX_S = 2.0
PATIENT = (60.0, 60.0)
"""Time-outs that never strike."""


@dataclass
class Node:
    """A bookie in this process, behind a proxy."""

    storage: Storage
    server: BookieServer
    proxy: Proxy

    @property
    def bookie(self) -> BookieId:
        return self.storage.bookie_id


class Network:
    """Bookies behind proxies, one metadata store, and processes that write and read."""

    def __init__(self, root: Path, store: MetadataStore | None = None) -> None:
        self.root = root
        self.store = MemoryStore()
        self.join: Callable[[], MetadataStore] = self.store.join if store is None else lambda: store
        self.nodes: list[Node] = []
        self._directories: list[ClusterDirectory] = []
        self._ledgers: list[Ledgers] = []

    async def grow(self, rack: str = "") -> Node:
        place = self.root / f"bookie-{len(self.nodes)}"
        settings = BookieSettings(
            journal=str(place / "journal"),
            entry_log=str(place / "entries"),
            journal_segment_bytes=16 * MIB,
            entry_log_bytes=16 * MIB,
            disk_reserve_bytes=0,
        )
        storage = Storage(settings)
        await storage.start()
        server = BookieServer(storage)
        await server.start()
        proxy = Proxy(server.address)
        await self.tell(describe(storage, await proxy.start(), rack))
        self.nodes.append(Node(storage, server, proxy))
        return self.nodes[-1]

    async def tell(self, record: BookieRecord) -> None:
        await self.store.create(paths.bookie(record.uuid), encode(record))
        await self.store.create(paths.bookie_available(record.uuid), encode(record))

    async def process(
        self, timeout_s: tuple[float, float] = (0.5, 5.0), *, rack: str = "", quarantine_s: float = 0.5
    ) -> Ledgers:
        """Another broker, so to speak: connections and ledgers of its own."""

        def connect(record: BookieRecord) -> BookieClient:
            return BookieClient(record.address, timeout_s=timeout_s)

        directory = ClusterDirectory(self.join(), connect)
        await directory.start()
        ledgers = Ledgers(
            self.join(),
            directory,
            SystemClock(),
            Random(1),
            LedgerSettings(),
            home=Home(rack=rack),
            quarantine_s=quarantine_s,
        )
        self._directories.append(directory)
        self._ledgers.append(ledgers)
        return ledgers

    def node(self, bookie: BookieId | str) -> Node:
        return next(node for node in self.nodes if str(node.bookie) == str(bookie))

    async def stop(self) -> None:
        for ledgers in self._ledgers:
            await ledgers.stop()
        for directory in self._directories:
            await directory.stop()
        for node in self.nodes:
            await node.proxy.stop()
            await node.server.stop()
            await node.storage.stop()


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    network = Network(tmp_path)
    for _ in range(3):
        await network.grow()
    yield network
    await network.stop()


class Publisher:
    """Keeps a few blocks in flight, always, and remembers how long the slowest took."""

    def __init__(self, in_flight: int = 4, entry_bytes: int = 100) -> None:
        self.slowest_s = 0.0
        self.error: QuireError | None = None
        self.last = -1
        self._in_flight = in_flight
        self._entry = bytes(entry_bytes)
        self._sent: deque[float] = deque()
        self._now = asyncio.get_running_loop().time
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def begin(self, ledgers: Ledgers) -> LedgerWriter:
        self.writer = await ledgers.create("test", self)
        for _ in range(self._in_flight):
            self._send()
        return self.writer

    def _send(self) -> None:
        writer = self.writer
        entry = writer.core.last_added + 1
        self._sent.append(self._now())
        made = block.cut(writer.ledger_id, entry, writer.last_confirmed, entry, entry, [self._entry])
        writer.add(made, entry)

    def confirmed(self, last_entry: int) -> None:
        for _ in range(last_entry - self.last):
            self.slowest_s = max(self.slowest_s, self._now() - self._sent.popleft())
            asyncio.get_running_loop().call_soon(self._send)
        self.last = last_entry
        self._look()

    def failed(self, error: QuireError) -> None:
        self.error = error
        self._look()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20) -> None:
        """Go on until the condition holds after a confirmation; raise what the writer failed with."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, waiter))
        await asyncio.wait_for(waiter, timeout_s)
        if self.error is not None:
            raise self.error

    async def more(self, blocks: int = 200) -> None:
        end = self.last + blocks
        await self.until(lambda: self.last >= end)

    def _look(self) -> None:
        for condition, waiter in self._waiters:
            if not waiter.done() and (condition() or self.error is not None):
                waiter.set_result(None)


def ensemble(writer: LedgerWriter) -> tuple[str, ...]:
    return writer.core.fragments[-1].bookies


FAULTS: dict[str, Callable[[Proxy], None]] = {
    "requests do not arrive": lambda proxy: proxy.requests.cut(),
    "answers do not arrive": lambda proxy: proxy.answers.cut(),
    "nothing arrives": lambda proxy: proxy.cut(),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_bookie_behind_a_cut_is_replaced_by_a_spare(network: Network, fault: str) -> None:
    spare = await network.grow()
    publisher = Publisher()
    writer = await publisher.begin(await network.process())
    await publisher.more()
    victim = ensemble(writer)[0]
    FAULTS[fault](network.node(victim).proxy)
    await publisher.until(lambda: victim not in ensemble(writer))
    await publisher.more()
    assert len(ensemble(writer)) == 3
    assert str(spare.bookie) in ensemble(writer) or victim == str(spare.bookie)
    assert publisher.slowest_s < PUBLISH_MAX_S


async def test_without_a_spare_the_ledger_goes_on_narrow_and_is_widened_when_the_bookie_is_back(
    network: Network,
) -> None:
    publisher = Publisher()
    writer = await publisher.begin(await network.process())
    await publisher.more()
    victim = network.node(ensemble(writer)[1])
    victim.proxy.cut()
    await publisher.until(lambda: len(ensemble(writer)) == 2)
    await publisher.more()
    victim.proxy.mend()
    await publisher.until(lambda: len(ensemble(writer)) == 3)
    await publisher.more()
    assert publisher.slowest_s < PUBLISH_MAX_S
    writer.abandon()
    reader = await (await network.process()).recover(writer.ledger_id)
    assert reader.last_entry >= publisher.last


async def test_a_narrow_ledger_survives_a_bookie_that_hangs_when_there_is_another(network: Network) -> None:
    """Both of two must answer: here the time-out itself is what a publish waits for."""
    publisher = Publisher()
    writer = await publisher.begin(await network.process())
    first, second, third = (network.node(bookie) for bookie in ensemble(writer))
    first.proxy.cut()
    await publisher.until(lambda: len(ensemble(writer)) == 2)
    await network.grow()
    second.proxy.cut()
    await publisher.until(lambda: str(second.bookie) not in ensemble(writer))
    await publisher.more()
    assert str(third.bookie) in ensemble(writer)
    assert publisher.slowest_s < PUBLISH_MAX_S


async def test_connections_that_are_lost_are_made_again(network: Network) -> None:
    publisher = Publisher()
    writer = await publisher.begin(await network.process())
    await publisher.more()
    for node in network.nodes[:2]:
        before = node.proxy.connections
        node.proxy.reset()
        await publisher.until(lambda: len(ensemble(writer)) == 2)
        await publisher.until(lambda: len(ensemble(writer)) == 3)
        await publisher.more(20)
        assert node.proxy.connections > before
    assert publisher.slowest_s < PUBLISH_MAX_S


async def test_a_far_bookie_is_kept_and_nobody_waits_for_it(network: Network) -> None:
    publisher = Publisher()
    writer = await publisher.begin(await network.process())
    far = network.node(ensemble(writer)[2])
    far.proxy.answers.delay_s = 0.3
    await publisher.more(500)
    assert len(ensemble(writer)) == 3 and len(writer.core.fragments) == 1
    assert publisher.slowest_s < PUBLISH_MAX_S


async def test_a_slow_bookie_is_left_before_it_fills_the_memory(network: Network) -> None:
    """No time-out helps here: it answers, but later and later."""
    ledgers = await network.process(PATIENT, quarantine_s=60)
    ledgers._parts.lag.bytes_max = 1 * MIB
    publisher = Publisher(entry_bytes=64 * KIB)
    writer = await publisher.begin(ledgers)
    slow = network.node(ensemble(writer)[0])
    slow.proxy.answers.cut()
    await publisher.until(lambda: str(slow.bookie) not in ensemble(writer))
    await publisher.more(100)
    assert ledgers.lag.bytes < 2 * MIB and writer.core.bytes_pending < 2 * MIB
    assert publisher.slowest_s < PUBLISH_MAX_S
    again = await ledgers.create("test", Listener())
    assert str(slow.bookie) not in ensemble(again), "in quarantine"


async def test_a_reader_asks_the_next_replica_when_one_hangs(network: Network) -> None:
    mine = await network.process(PATIENT)
    writer = await mine.create("test", listener := Listener())
    last = write(writer, 100)
    await listener.until(last)
    record = await writer.close()
    for bookie in record.fragments[0].bookies[:2]:
        network.node(bookie).proxy.cut()
    other = await network.process(PATIENT)
    began = asyncio.get_running_loop().time()
    assert await read_all(other, writer.ledger_id, 1 * MIB) == expected(last)
    assert asyncio.get_running_loop().time() - began < PUBLISH_MAX_S


async def test_recovery_while_one_of_three_hangs(network: Network) -> None:
    writer = await (await network.process()).create("test", listener := Listener())
    await listener.until(write(writer, 50))
    network.node(ensemble(writer)[0]).proxy.cut()
    last = write(writer, 50)
    record = await (await network.process()).recover(writer.ledger_id)
    assert record.state is LedgerState.CLOSED and listener.last <= record.last_entry <= last


async def test_a_port_leads_to_the_uuid_whatever_its_incarnation(network: Network) -> None:
    """The bookie itself judges what it can still say for an earlier one."""
    ledgers = await network.process()
    writer = await ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 1))
    bookie = network.node(ensemble(writer)[0]).bookie
    directory = network._directories[0]
    for incarnation, status in (
        (bookie.incarnation, Status.OK),
        (bookie.incarnation + 1, Status.WRONG_BOOKIE),
    ):
        named = BookieId(bookie.uuid, incarnation)
        assert (await directory.port(named).ask(ReadRequest(named, writer.ledger_id, 0, 1))).status is status


# -- processes -----------------------------------------------------------------------------------------
async def start_bookie(place: Path, metadata: str) -> tuple[asyncio.subprocess.Process, str]:
    """A `quire bookie`, and where it listens."""
    command = [sys.executable, "-m", "quire", "bookie", "--metadata", metadata, "--listen", "127.0.0.1:0"]
    command += [
        "--new-cluster",
        "true",
        "--journal",
        str(place / "journal"),
        "--entry-log",
        str(place / "entries"),
        "--log-level",
        "error",
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        ready = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().split()
        return process, ready[1].removeprefix("bookie://")
    except BaseException:
        process.kill()
        raise


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("bookies", [3, 4], ids=["no spare", "one spare"])
async def test_a_bookie_process_that_dies_or_stops(
    tmp_path: Path, zookeeper: ZooKeeper, bookies: int, number: signal.Signals
) -> None:
    url = zookeeper.fresh_url()
    starts = [start_bookie(tmp_path / f"process-{each}", url) for each in range(bookies)]
    processes = {address: process for process, address in await asyncio.gather(*starts)}
    store = await open_store(url)
    network = Network(tmp_path, store)
    try:
        publisher = Publisher()
        writer = await publisher.begin(await network.process((1.5, 10.0)))
        await publisher.more()
        first = ensemble(writer)[0]
        path = paths.bookie_available(BookieId.parse(first).uuid)
        victim = processes[decode(BookieRecord, (await store.get(path)).value, path).address]
        victim.send_signal(number)
        await publisher.until(lambda: first not in ensemble(writer))
        await publisher.more()
        assert len(ensemble(writer)) == bookies - 1
        assert publisher.slowest_s < PUBLISH_MAX_S
    finally:
        await network.stop()
        await store.close()
        for process in processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()
