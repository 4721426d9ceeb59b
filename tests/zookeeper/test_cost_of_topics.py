"""What topics cost in ZooKeeper: a constant number of nodes and requests each, and nothing at all while idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from quire.ledger.ledgers import Ledgers
from quire.metadata import paths
from quire.metadata.zookeeper import ZooKeeperStore
from quire.runtime.clock import SystemClock
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.ownership.cluster_ownership import ClusterOwnership
from quire.serving.ownership.shedding import REPORT_S
from quire.serving.settings import BrokerSettings
from quire.serving.topic.services import Services
from quire.testing.cluster import QUICK, MemoryCluster
from tests.cluster.zookeeper import ZooKeeper

IDLE_S = REPORT_S + 0.5


@asynccontextmanager
async def broker_on(store: ZooKeeperStore) -> AsyncIterator[Broker]:
    """A broker of a cluster, over bookies in memory."""
    clock, cluster = SystemClock(), MemoryCluster(3)
    ledgers = Ledgers(store, cluster.directory, clock, Random(1), QUICK)
    ownership = ClusterOwnership(store, clock, "127.0.0.1:1")
    broker = Broker(Services(BrokerSettings(listen="127.0.0.1:0"), store, ledgers, None, clock), ownership)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
        await ledgers.stop()


async def open_topics(broker: Broker, first: int, last: int) -> None:
    names = [TopicName.parse(f"persistent://public/default/t{at}") for at in range(first, last)]
    await asyncio.gather(*(broker.registry.open(name, create=True) for name in names))


async def below(store: ZooKeeperStore, path: str) -> int:
    """Nodes below `path`."""
    names = await store.children(path)
    return len(names) + sum([await below(store, f"{path}/{name}") for name in names])


def packets(server: ZooKeeper) -> int:
    """What the server received from its clients, this question included."""
    lines = dict(line.split("\t") for line in server.ask("mntr").splitlines() if "\t" in line)
    return int(lines["zk_packets_received"])


async def test_topics_cost_a_constant_number_of_nodes_and_requests_and_nothing_when_idle(
    zookeeper: ZooKeeper,
) -> None:
    store = await ZooKeeperStore.open(zookeeper.fresh_url(session_timeout="60s"))
    async with broker_on(store) as broker:
        await open_topics(broker, 0, 1)
        nodes = await below(store, paths.TOPICS) + await below(store, paths.LEDGERS)
        folders = len(await store.children(paths.LEDGERS))
        changes = store.counts.changes

        await open_topics(broker, 1, 101)
        new_folders = len(await store.children(paths.LEDGERS)) - folders
        more = await below(store, paths.TOPICS) + await below(store, paths.LEDGERS) - nodes
        assert more == 2 * 100 + new_folders, "a topic is its own node and its open ledger's"
        assert store.counts.changes - changes <= 3 * 100 + 10

        await asyncio.sleep(IDLE_S)  # what was asked before is reported; then nothing may be
        before, asked = packets(zookeeper), (store.counts.reads, store.counts.changes)
        await asyncio.sleep(IDLE_S)
        assert (store.counts.reads, store.counts.changes) == asked
        assert packets(zookeeper) - before <= 1 + 1, "one ping may be among them, and this question is"
    await store.close()
