"""A bookie is drained though the broker that wrote its open ledgers is dead and nobody asks for their topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pulsar
import pytest
from msgspec.structs import replace

from quire.ledger.orphans import ledger_ids
from quire.ledger.repair import Repair
from quire.ledger.retiring import known_bookies
from quire.ledger.settings import RepairSettings
from quire.metadata import paths
from quire.metadata.records import BookieIntent, LedgerRecord, LedgerState, decode, encode
from quire.runtime.clock import SystemClock
from quire.testing.cluster import Listener
from quire.wire.bookie import Status
from tests.serving.conftest import in_thread, look_after_topics
from tests.serving.ownership.cluster import Brokers, Member

NAMES = [f"persistent://public/default/topic-{index}" for index in range(6)]


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers(session_timeout_ms=300)
    yield made
    await made.close()


async def test_topics_of_a_dead_broker_are_loaded_so_that_their_ledgers_can_leave_a_bookie(
    brokers: Brokers,
) -> None:
    one = await brokers.start()
    client = brokers.client()
    await in_thread(lambda: publish(client))
    brokers.clients.remove(client)
    await in_thread(client.close)
    orphan = await abandoned(one)
    two = await brokers.start()
    await brokers.kill(one)

    cluster = brokers.cluster
    for each in cluster.bookies:
        await cluster.store.create(paths.bookie(each.bookie.uuid), encode(each.record()))
    leaving = cluster.bookies[0]
    leaving.refuses = Status.READ_ONLY
    record = replace(leaving.record(), intent=BookieIntent.DRAIN, read_only=True)
    cluster.directory.join(record, leaving)
    await cluster.store.create(paths.bookie_available(record.uuid), encode(record), ephemeral=True)

    settings = RepairSettings(repair_delay_ms=0)
    repair = Repair(cluster.store.join(), cluster.directory, SystemClock(), Random(1), settings, "test")
    repair.on_open(two.broker.orphaned_ledgers.close_later)
    async with asyncio.timeout(60):
        while record.uuid in await known_bookies(cluster.store):
            await repair.look()
            await look_after_topics(two.broker)
            await asyncio.sleep(0.02)
    assert two.topics() == NAMES
    assert (await two.ledgers.info(orphan)).state is LedgerState.CLOSED
    async for ledger_id in ledger_ids(cluster.store):
        path = paths.ledger(ledger_id)
        ledger = decode(LedgerRecord, (await cluster.store.get(path)).value, path)
        assert not [fragment for fragment in ledger.fragments if str(leaving.bookie) in fragment.bookies]


async def abandoned(member: Member) -> int:
    """A ledger that some compaction began long ago, and no list names."""
    writer = await member.ledgers.create(f"topic:{NAMES[0]}", Listener())
    path = paths.ledger(writer.ledger_id)
    node = await member.store.get(path)
    await member.store.put(path, encode(replace(decode(LedgerRecord, node.value, path), created_ms=1)), 0)
    return writer.ledger_id


def publish(client: pulsar.Client) -> None:
    for name in NAMES:
        producer = client.create_producer(name)
        consumer = client.subscribe(name, "s")
        producer.send(b"x")
        consumer.acknowledge(consumer.receive(5_000))
        producer.close()
        consumer.close()
