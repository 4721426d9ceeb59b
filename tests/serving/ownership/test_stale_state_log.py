"""A broker that gets a bundle back knows what happened meanwhile, whatever of the bundle it had in hand when it went.

What it knew before would be a forgery of the past: subscriptions that came since are missing in it, and what they have
not acknowledged would be trimmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.records import TopicRecord, decode, encode
from quire.metadata.store import ANY_VERSION, Node
from quire.runtime.errors import QuireError, Unavailable
from quire.serving.names import TopicName
from quire.serving.ownership.owners import path_of
from quire.serving.ownership.port import NotOwner
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.registry import topic_deletion
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.topic.lifecycle import upkeep
from quire.serving.topic.topic import Topic
from tests.serving.conftest import in_thread
from tests.serving.ownership.cluster import Brokers, Member, until

TOPIC = TopicName.parse("persistent://public/default/t")
OTHER = TopicName.parse("persistent://public/default/x")
KEPT_NOT = {"namespace_bundles": 1, "retention_ms": 0, "retention_bytes": 0}


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers(session_timeout_ms=2_000)
    yield made
    await made.close()


class Gate:
    """Holds a broker's reads of one record from the `nth` on, until it is opened."""

    def __init__(self, member: Member, path: str, nth: int = 1) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        read, count = member.store.get, 0

        async def get(where: str) -> Node:
            nonlocal count
            count += where == path
            if where == path and count >= nth:
                self.reached.set()
                await self.opened.wait()
            return await read(where)

        member.store.get = get  # type: ignore[method-assign]


async def test_an_interrupted_deletion_is_tried_again_while_the_bundle_goes(brokers: Brokers) -> None:
    one = await brokers.start(**KEPT_NOT)
    await topic_of(one, "s0")
    await one.broker.registry.open(OTHER, create=True)
    await one.broker.registry.unload(OTHER)
    node = await one.store.get(OTHER.path)
    interrupted = replace(decode(TopicRecord, node.value, OTHER.path), deleting=True)
    await one.store.put(OTHER.path, encode(interrupted), node.version)
    two = await brokers.start(**KEPT_NOT)

    gate = Gate(one, OTHER.path, nth=2)
    deletion = asyncio.create_task(topic_deletion.delete(one.broker.registry, OTHER))
    await gate.reached.wait()
    await give(one, two)
    gate.opened.set()
    with pytest.raises(NotOwner):
        await deletion

    await is_current_again(brokers, one, two)


async def test_a_session_ends_while_a_topic_is_being_loaded(brokers: Brokers) -> None:
    one = await brokers.start(**KEPT_NOT)
    await topic_of(one, "s0")
    await one.broker.registry.unload(TOPIC)
    bundle = await one.broker.registry.ownership.bundle_of(TOPIC)
    two = await brokers.start(**KEPT_NOT)

    gate = Gate(one, TOPIC.path)
    load = asyncio.create_task(one.broker.registry.open(TOPIC))
    await gate.reached.wait()
    one.store.expire()
    await until(lambda: not one.ownership.holds(bundle))
    await two.ownership.take(bundle)
    await topic_of(two, "s0")
    gate.opened.set()
    with pytest.raises(NotOwner):
        await load

    await until(lambda: not one.ownership.why_not_ready())
    await is_current_again(brokers, one, two)


async def test_a_hand_over_is_broken_off(brokers: Brokers) -> None:
    one = await brokers.start(**KEPT_NOT)
    await topic_of(one, "s0")
    bundle = await one.broker.registry.ownership.bundle_of(TOPIC)
    await one.broker.registry.unload(TOPIC)
    two = await brokers.start(**KEPT_NOT)

    close, begun = one.broker.bundles.close_topics, asyncio.Event()

    async def close_never(bundle: str) -> list[Topic]:
        begun.set()
        await asyncio.Event().wait()
        return []

    one.broker.bundles.close_topics = close_never  # type: ignore[method-assign,assignment]
    hand_over = asyncio.create_task(one.ownership.release(bundle, "test"))
    await begun.wait()
    hand_over.cancel()
    await asyncio.wait([hand_over])
    one.broker.bundles.close_topics = close  # type: ignore[method-assign]
    await one.store.delete(path_of(bundle), ANY_VERSION)
    await two.ownership.take(bundle)

    await is_current_again(brokers, one, two)


@pytest.mark.parametrize("while_opening", [True, False], ids=["opening the state log", "asking for policies"])
async def test_a_session_ends_and_the_bundle_is_back_before_the_topic_is_loaded(
    brokers: Brokers, while_opening: bool
) -> None:
    """Else the topic would write its acknowledgements to a state log that was given up."""
    one = await brokers.start(**KEPT_NOT)
    await topic_of(one, "s0")
    registry = one.broker.registry
    bundle = await registry.ownership.bundle_of(TOPIC)
    await one.ownership.release(bundle, "test")
    await one.ownership.take(bundle)

    gate = Gate(one, paths.state_log(*bundle.split("/")) if while_opening else "")
    ask = registry.policies.of

    async def of(name: TopicName) -> TopicPolicies:
        if not while_opening and not gate.opened.is_set():
            gate.reached.set()
            await gate.opened.wait()
        return await ask(name)

    registry.policies.of = of  # type: ignore[method-assign]
    load = asyncio.create_task(registry.open(TOPIC))
    await gate.reached.wait()
    one.store.expire()
    await until(lambda: not one.ownership.holds(bundle))
    await until(lambda: not one.ownership.why_not_ready())
    await one.ownership.take(bundle)
    gate.opened.set()
    with pytest.raises(Unavailable):
        await load

    topic = await registry.open(TOPIC)
    await subscriptions_of(topic).create("s1", earliest=True)


async def is_current_again(brokers: Brokers, one: Member, two: Member) -> None:
    """`two` serves the topic, makes a subscription and takes messages; then the bundle goes back to `one`."""
    await topic_of(two, "s1")
    await in_thread(lambda: publish(brokers, two))
    topic = await topic_of(two, "s1")
    rolled = topic.log.writing.roll()
    assert rolled is not None
    await rolled
    await give(two, one)
    topic = await one.broker.registry.open_persistent(TOPIC)
    assert not await upkeep.trim(topic), "messages with receipts, which s1 has not acknowledged, are gone"
    assert {one.name for one in topic.subscriptions} == {"s0", "s1"}


async def topic_of(member: Member, subscription: str) -> Topic:
    """The topic, loaded and with that subscription; however often its bundle is loaded anew."""
    async with asyncio.timeout(60):
        while True:
            try:
                topic = await member.broker.registry.open(TOPIC, create=True)
                assert isinstance(topic, Topic)
                if subscription not in {one.name for one in topic.subscriptions}:
                    await subscriptions_of(topic).create(subscription, earliest=True)
                return topic
            except QuireError:
                await asyncio.sleep(0.01)


async def give(giver: Member, taker: Member) -> None:
    bundle = await giver.broker.registry.ownership.bundle_of(TOPIC)
    await giver.ownership.release(bundle, "test")
    if not taker.ownership.holds(bundle):
        await taker.ownership.take(bundle)


def publish(brokers: Brokers, member: Member) -> None:
    client = brokers.client(member)
    producer = client.create_producer(str(TOPIC))
    for index in range(5):
        producer.send(b"m%d" % index)
    producer.close()
    client.close()
    brokers.clients.remove(client)
