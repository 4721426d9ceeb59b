"""Clients in another network: they ask for a listener by its name, and are never told an address of this one.

The brokers listen on every address of the machine. 127.0.0.1 is their network, 127.0.0.2 the clients'; who was told
the wrong one is found by the address at which its connection arrived.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pulsar
import pytest

from quire.metadata.records import BrokerRecord, OwnerRecord, decode
from quire.serving.ownership.port import Owner
from tests.serving.ownership.cluster import Brokers, Member

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
TOPICS = [f"persistent://public/default/topic-{index}" for index in range(12)]


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    yield made
    await made.close()


async def start(brokers: Brokers, listener: str = "outside") -> Member:
    with socket.socket() as free:
        free.bind(("0.0.0.0", 0))
        port = free.getsockname()[1]
    return await brokers.start(
        listen=f"0.0.0.0:{port}",
        advertise=f"pulsar://127.0.0.1:{port}",
        advertised_listeners=f"{listener}:pulsar://127.0.0.2:{port}",
    )


def outside(member: Member) -> str:
    return member.url.replace("127.0.0.1", "127.0.0.2")


def client(brokers: Brokers, through: Member, listener: str | None = "outside") -> pulsar.Client:
    made = pulsar.Client(outside(through), logger=QUIET, listener_name=listener, operation_timeout_seconds=20)
    brokers.clients.append(made)
    return made


def reached_at(member: Member) -> set[str]:
    """The addresses at which clients reach it."""
    transports = [session.outbound._transport for session in member.broker.sessions.connections]
    return {one.get_extra_info("sockname")[0] for one in transports}


async def test_clients_of_a_listener_reach_every_owner_by_it(brokers: Brokers) -> None:
    first, second = await start(brokers), await start(brokers)
    made = client(brokers, first)
    producers = [await asyncio.to_thread(made.create_producer, topic) for topic in TOPICS]
    for producer in producers:
        await asyncio.to_thread(producer.send, b"0")
    assert first.topics() and second.topics(), "both brokers have some"
    assert reached_at(first) | reached_at(second) == {"127.0.0.2"}
    registry, had = first.broker.registry, set(second.topics())
    for bundle in {await registry.ownership.bundle_of(one.topic_name) for one in registry.persistent()}:
        await first.ownership.release(bundle, "a test")
    for producer in producers:
        await asyncio.to_thread(producer.send, b"1")
    assert had < set(second.topics())
    assert reached_at(first) | reached_at(second) == {"127.0.0.2"}, (
        "who is sent away is not sent to the other network"
    )


async def test_clients_without_a_listener_are_told_the_usual_address(brokers: Brokers) -> None:
    first = await start(brokers)
    producer = await asyncio.to_thread(client(brokers, first, None).create_producer, TOPICS[0])
    await asyncio.to_thread(producer.send, b"0")
    assert reached_at(first) == {"127.0.0.1", "127.0.0.2"}, "to ask it came the way that it knew"


async def test_a_listener_of_another_broker_only_is_to_be_asked_for_again(brokers: Brokers) -> None:
    await start(brokers, "elsewhere")
    second = await start(brokers)
    answers = [await looked_up(second, topic, {"listenerName": "outside"}) for topic in TOPICS]
    assert {answer[0] for answer in answers} == {200, 503}
    said = [answer[1]["reason"] for answer in answers if answer[0] == 503]
    assert all(one.startswith("the broker do not have outside listener") for one in said), (
        "C++ clients look for it"
    )


@pytest.mark.parametrize("as_header", [False, True])
async def test_a_lookup_over_http(brokers: Brokers, as_header: bool) -> None:
    members = [await start(brokers), await start(brokers)]
    query = {} if as_header else {"listenerName": "outside"}
    headers = {"X-Pulsar-ListenerName": "outside"} if as_header else {}
    found = [await looked_up(members[0], topic, query, headers) for topic in TOPICS]
    assert {answer[1]["brokerUrl"] for answer in found} == set(map(outside, members))
    assert (await looked_up(members[0], TOPICS[0], {}))[1]["brokerUrl"] in [one.url for one in members]


async def looked_up(
    member: Member, topic: str, query: dict[str, str], headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    url = f"{member.broker.addresses.http_url}/lookup/v2/topic/{topic.replace('://', '/')}"
    async with aiohttp.ClientSession() as session, session.get(url, params=query, headers=headers) as answer:
        return answer.status, await answer.json()


def test_records_of_brokers_that_know_no_listeners_still_read() -> None:
    older = b'{"broker_id":"b","service_url":"pulsar://b:1","http_url":"http://b:2"}'
    assert decode(BrokerRecord, older, "/brokers/b").listeners == {}
    assert decode(OwnerRecord, b'{"broker":%s}' % older, "/x").broker.listeners == {}


def test_a_blank_name_is_none() -> None:
    owner = Owner("b", "pulsar://b:1", "http://b:2", is_here=True)
    assert owner.urls_for("") == owner.urls_for(" ") == ("pulsar://b:1", "")
