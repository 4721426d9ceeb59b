"""A deletion that is cut short anywhere is finished later, and leaves nothing to the next topic of its name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.records import Policies
from quire.runtime.errors import NotFound, QuireError, Unavailable
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST
from quire.serving.names import TopicName
from quire.serving.policy.strategy import Strategy
from quire.serving.registry import topic_deletion
from quire.serving.schema.definition import Definition
from quire.wire import commands
from tests.serving.conftest import BrokerHouse
from tests.serving.session.test_connection import Client, entry, producer

TOPIC = "persistent://public/default/passing"
NAME = TopicName.parse(TOPIC)
OPERATIONS = ("get", "children", "create", "put", "delete", "transact")
SCHEMA = Definition("STRING", b"", {}, "s")


class Cut:
    """Stops whatever asks a broker's metadata store for the `at`th time, before or after it was done."""

    def __init__(self, broker: Broker, at: int, *, is_done: bool) -> None:
        self._left = at
        self._is_done = is_done
        self.met = asyncio.Event()
        store: Any = broker.services.store
        for name in OPERATIONS:
            setattr(store, name, self._wrapped(getattr(store, name)))

    def _wrapped(self, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapped(*arguments: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left:
                return await operation(*arguments, **more)
            if self._is_done:
                await operation(*arguments, **more)
            self.met.set()
            return await asyncio.Event().wait()

        return wrapped


async def furnish(broker: Broker) -> None:
    """A topic with messages, a subscription, policies, a schema and a producer that is remembered."""
    await broker.registry.create(NAME)
    await broker.admin.subscriptions.create(NAME, "s", EARLIEST)
    await broker.admin.policies.change_topic(NAME, lambda old: replace(old, message_ttl_ms=1000))
    await broker.registry.schemas.add(NAME, SCHEMA, Strategy.FULL)
    client = Client(broker)
    await client.connect()
    client.send(producer(1, topic=TOPIC, producer_name="p"))
    await client.answers(1)
    client.send(*commands.send(1, 0, 1, entry()))
    await client.answers(1)
    client.connection.connection_lost(None)


async def assert_nothing_is_left(broker: Broker) -> None:
    """To a new topic of that name."""
    await broker.registry.create(NAME)
    assert await broker.admin.policies.own(NAME) == Policies()
    assert await broker.registry.schemas.find(NAME) is None
    assert await broker.admin.subscriptions.names(NAME) == []
    topic = await broker.registry.open_persistent(NAME)
    assert topic.producers.last_sequence_id("p") == -1
    bundle: Any = topic.log.dedup_log
    assert bundle.cursors.of_topic(TOPIC) == []
    await broker.admin.topics.delete(NAME)
    bodies = await broker.services.store.children(paths.schema_folders("public", "default")[1])
    assert bodies == []


async def deleted(broker: Broker) -> None:
    """Returns when the topic is gone: whoever asks makes the broker go on."""
    async with asyncio.timeout(60):
        while True:
            try:
                await broker.admin.topics.delete(NAME, force=True)
            except NotFound:
                return
            except QuireError:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_broker_that_dies_at_any_moment_of_a_deletion(house: BrokerHouse, is_done: bool) -> None:
    for at in range(1, 60):
        broker = await house.start(deduplication=True)
        await furnish(broker)
        cut = Cut(broker, at, is_done=is_done)
        deletion = asyncio.ensure_future(broker.admin.topics.delete(NAME))
        met = asyncio.ensure_future(cut.met.wait())
        await asyncio.wait([deletion, met], return_when=asyncio.FIRST_COMPLETED)
        await house.kill(broker)
        for task in (deletion, met):
            task.cancel()
        broker = await house.start(deduplication=True)
        await deleted(broker)
        await assert_nothing_is_left(broker)
        await house.stop(broker)
        if deletion.done() and not deletion.cancelled():
            assert at > 8, "it was cut at all of its moments"
            return
    raise AssertionError("the deletion never came to its end")


async def test_a_deletion_that_meets_an_error_goes_on(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await house.start()
    await furnish(broker)
    forget, failures = broker.registry.policies.forget, [Unavailable("not now")]

    async def fail_once(name: TopicName) -> None:
        if failures:
            raise failures.pop()
        await forget(name)

    monkeypatch.setattr(broker.registry.policies, "forget", fail_once)
    with pytest.raises(Unavailable):
        await broker.admin.topics.delete(NAME)
    await deleted(broker)
    await assert_nothing_is_left(broker)


async def test_nothing_is_put_beside_a_topic_that_is_being_deleted(house: BrokerHouse) -> None:
    broker = await house.start()
    await furnish(broker)
    topic = await broker.registry.open_persistent(NAME)
    going, may_go = asyncio.Event(), asyncio.Event()

    async def forget() -> None:
        await topic_deletion._forget(broker.registry, NAME)
        going.set()
        await may_go.wait()

    deletion = asyncio.ensure_future(topic.delete(forget))
    await going.wait()
    with pytest.raises(Unavailable, match="being deleted"):
        await broker.registry.policies.change(NAME, lambda old: replace(old, message_ttl_ms=7))
    with pytest.raises(Unavailable, match="being deleted"):
        await broker.registry.schemas.add(NAME, SCHEMA, Strategy.FULL)
    may_go.set()
    await deletion
    await broker.registry.unload(NAME)
    await assert_nothing_is_left(broker)


@pytest.mark.parametrize("partitions", [0, 2])
async def test_topics_of_two_domains_share_nothing_but_a_name(broker: Broker, partitions: int) -> None:
    """Neither obeys the policies of the other, nor takes them along when it is deleted."""
    other = NAME._replace(domain="non-persistent")
    policies, schemas = broker.registry.policies, broker.registry.schemas

    async def delete(name: TopicName) -> None:
        await broker.registry.create(name, partitions)
        if partitions:
            await broker.deletion.delete_partitioned(name)
        else:
            await broker.admin.topics.delete(name)

    for name, ttl_ms, schema in ((NAME, 1000, SCHEMA), (other, 2000, Definition("INT32", b""))):
        await policies.change(name, lambda old, ttl_ms=ttl_ms: replace(old, message_ttl_ms=ttl_ms))
        await schemas.add(name, schema, Strategy.FULL)
    assert (await policies.of(NAME)).message_ttl_ms == 1000
    assert (await policies.of(other)).message_ttl_ms == 2000

    await delete(other)
    assert (await policies.own(other), await schemas.find(other)) == (Policies(), None)
    assert (await policies.own(NAME)).message_ttl_ms == 1000
    assert await schemas.number_of(NAME, SCHEMA) == 0

    await policies.change(other, lambda old: replace(old, message_ttl_ms=3000))
    await delete(NAME)
    assert (await policies.own(NAME), await schemas.find(NAME)) == (Policies(), None)
    assert (await policies.own(other)).message_ttl_ms == 3000
