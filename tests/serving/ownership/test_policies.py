"""A policy that was answered holds on every broker of the cluster, though its watches are late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.records import Policies
from quire.metadata.watches import Watches
from quire.runtime.errors import CorruptionError, NotFound
from quire.serving.names import TopicName
from tests.serving.ownership.cluster import Brokers, Member


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    yield made
    await made.close()


def ttl(policies: Policies) -> Policies:
    return replace(policies, message_ttl_ms=5_000)


def deduplicated(policies: Policies) -> Policies:
    return replace(policies, deduplication=True)


async def loaded_by(member: Member, *topics: str) -> list[TopicName]:
    """Topics that the broker has loaded, wherever a lookup would send them."""
    names = [TopicName.parse(topic) for topic in topics]
    for name in names:
        await member.broker.registry.open(name, create=True, take=True)
    return names


async def deaf(brokers: Brokers) -> tuple[Member, Member]:
    """Two brokers; the second has read what is prescribed, and from now on hears of no change of it."""
    one, two = await brokers.start(), await brokers.start()
    await loaded_by(two, "before")
    two.store.watches = Watches()
    return one, two


async def test_of_a_namespace(brokers: Brokers) -> None:
    one, two = await deaf(brokers)
    (name,) = await loaded_by(two, "here")
    await one.broker.admin.policies.change_namespace("public", "default", ttl)
    topic = two.broker.registry.find(name)
    assert topic is not None and topic.applied.policies.message_ttl_ms == 5_000
    (later,) = await loaded_by(two, "later")
    found = two.broker.registry.find(later)
    assert found is not None and found.applied.policies.message_ttl_ms == 5_000


async def test_of_a_topic(brokers: Brokers) -> None:
    one, two = await deaf(brokers)
    here, other = await loaded_by(two, "here", "other")
    former = two.broker.registry.find(here)
    await one.broker.admin.policies.change_topic(here, deduplicated)
    assert former is not None and former.is_closed, "it learns by a load what was sent before"
    (again,) = await loaded_by(two, "here")
    topic = two.broker.registry.find(again)
    assert topic is not None and topic.log.dedup is not None
    untouched = two.broker.registry.find(other)
    assert untouched is not None and untouched.log.dedup is None
    await one.broker.admin.policies.change_topic(here, lambda _: Policies())
    await loaded_by(two, "here")
    topic = two.broker.registry.find(here)
    assert topic is not None and topic.log.dedup is None


async def test_what_was_read_before_its_folder_was_listed_is_followed(brokers: Brokers) -> None:
    one, two = await deaf(brokers)
    (name,) = await loaded_by(two, "here")
    await one.broker.admin.policies.change_topic(name, ttl)
    topic = two.broker.registry.find(name)
    assert topic is not None and topic.applied.policies.message_ttl_ms == 5_000
    await one.store.delete(paths.policies("public", "default", "here"))
    async with asyncio.timeout(60):
        while topic.applied.policies.message_ttl_ms:  # noqa: ASYNC110  its watch is told by the loop
            await asyncio.sleep(0)


async def test_a_broker_that_does_not_answer_holds_nobody_up(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await deaf(brokers)
    await two.rest.cleanup()
    await one.broker.admin.policies.change_namespace("public", "default", ttl)
    assert "will apply changed policies later" in caplog.text
    (name,) = await loaded_by(one, "mine")
    topic = one.broker.registry.find(name)
    assert topic is not None and topic.applied.policies.message_ttl_ms == 5_000


async def test_a_record_that_cannot_be_read_concerns_its_topic_alone(brokers: Brokers) -> None:
    """And it is not taken for none: by the default, retention might delete what the record says to keep."""
    one = await brokers.start()
    loaded, other, opened = (TopicName.parse(topic) for topic in ("loaded", "other", "opened"))
    await loaded_by(one, "loaded", "other")
    for name in (loaded, opened):
        await one.store.create(paths.policies("public", "default", name.local), b'{"message_ttl_ms":"never"}')
    await one.broker.admin.policies.change_topic(other, ttl)
    topics = one.broker.registry.find(other), one.broker.registry.find(loaded)
    assert topics[0] is not None and topics[0].applied.policies.message_ttl_ms == 5_000
    assert topics[1] is not None and topics[1].applied.policies.message_ttl_ms == 0
    with pytest.raises(CorruptionError, match="opened"):
        await loaded_by(one, "opened")


async def test_what_is_not_there_is_said(brokers: Brokers) -> None:
    one = await brokers.start()
    with pytest.raises(NotFound):
        await one.broker.admin.policies.change_namespace("public", "nowhere", ttl)
    with pytest.raises(NotFound):
        await one.broker.admin.policies.refresh("public", "nowhere", None)
