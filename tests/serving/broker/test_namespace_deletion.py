"""A namespace is deleted with all that is kept for it, and no topic is made in one that goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.store import NotEmpty
from quire.runtime.errors import NotFound, Unavailable
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import DOMAINS
from quire.serving.policy.strategy import Strategy
from quire.serving.schema.definition import Definition
from tests.serving.conftest import BrokerHouse

TOPIC = "persistent://public/passing/t"
NAME = TopicName.parse(TOPIC)
FOLDERS = (
    paths.state_logs_of("public", "passing"),
    *(paths.policies_of("public", "passing", domain) for domain in DOMAINS),
    *(folder for domain in DOMAINS for folder in paths.schema_folders("public", "passing", domain)),
)


async def left_of(broker: Broker) -> list[str]:
    store = broker.services.store
    return [child for folder in FOLDERS for child in await store.children(folder)]


async def ledgers_of(broker: Broker) -> set[str]:
    store = broker.services.store
    folders = await store.children(paths.LEDGERS)
    return {one for folder in folders for one in await store.children(f"{paths.LEDGERS}/{folder}")}


async def use(broker: Broker) -> None:
    """The namespace, and a topic in it that was used and is gone again."""
    await broker.namespaces.create("public", "passing")
    await broker.registry.create(NAME)
    await broker.admin.subscriptions.create(NAME, "s", EARLIEST)
    await broker.admin.policies.change_topic(NAME, lambda old: replace(old, message_ttl_ms=1000))
    await broker.admin.topics.delete(NAME)


async def test_nothing_stays_of_a_namespace(house: BrokerHouse) -> None:
    broker = await house.start()
    before = await ledgers_of(broker)
    await use(broker)
    passing = NAME._replace(domain="non-persistent")  # with policies and a schema, though it was never used
    await broker.registry.policies.change(passing, lambda old: replace(old, message_ttl_ms=1000))
    await broker.registry.schemas.add(passing, Definition("STRING", b""), Strategy.FULL)
    assert len(await left_of(broker)) == 3, "its state log, and these"
    await broker.namespaces.delete("public", "passing")
    assert await left_of(broker) == []
    for _ in range(100):
        await asyncio.sleep(0)
    assert await ledgers_of(broker) == before
    assert broker.bundles._bundles.of_namespace("public", "passing") == []
    await use(broker)


async def test_a_deletion_that_was_cut_short_goes_on(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await house.start()
    await use(broker)

    async def refuse(ledger_id: int) -> None:
        raise Unavailable(f"ledger {ledger_id} cannot be deleted now")

    monkeypatch.setattr(broker.namespaces, "_delete_ledger", refuse)
    with pytest.raises(Unavailable):
        await broker.namespaces.delete("public", "passing")
    with pytest.raises(NotFound, match="being deleted"):
        await broker.registry.create(NAME)
    monkeypatch.undo()
    await broker.namespaces.delete("public", "passing")
    assert await left_of(broker) == []


@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/passing/t"])
async def test_one_that_has_topics_stays_as_it_is(house: BrokerHouse, topic: str) -> None:
    broker = await house.start()
    await broker.namespaces.create("public", "passing")
    await broker.registry.create(TopicName.parse(topic), 2)
    with pytest.raises(NotEmpty):
        await broker.namespaces.delete("public", "passing")
    assert await broker.fan_out.partitions(TopicName.parse(topic)) == 2


async def test_a_topic_that_is_made_meanwhile_is_refused_or_keeps_its_namespace(house: BrokerHouse) -> None:
    """Each of the two stops before each of its changes until the other one has ended."""
    broker = await house.start()
    store: Any = broker.services.store
    transact, put = store.transact, store.put

    async def delete_before(steps: Any) -> Any:
        store.transact = transact
        await broker.namespaces.delete("public", "passing")
        return await transact(steps)

    await broker.namespaces.create("public", "passing")
    store.transact = delete_before
    with pytest.raises(NotFound):
        await broker.registry.create(NAME)
    assert await store.children(paths.topics_of("public", "passing")) == []

    async def create_before(*arguments: Any) -> Any:
        store.put = put
        await broker.registry.create(NAME)
        return await put(*arguments)

    await broker.namespaces.create("public", "passing")
    store.put = create_before
    with pytest.raises(NotEmpty):
        await broker.namespaces.delete("public", "passing")
    await broker.admin.topics.delete(NAME)
    await broker.namespaces.delete("public", "passing")
