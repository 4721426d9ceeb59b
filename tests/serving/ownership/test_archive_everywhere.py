"""The archive of a cluster, asked of any one broker: all topics are archived and counted, whoever owns them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from quire.runtime.clock import SystemClock
from quire.testing.objects import MemoryObjectStore
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive
from tests.serving.conftest import in_thread
from tests.serving.ownership.cluster import Brokers, Member

TOPICS = [f"persistent://public/default/topic-{index}" for index in range(12)]


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    made.archive = Archive(TrustedPlace(MemoryObjectStore(), made.cluster.store), SystemClock())
    yield made
    await made.close()


async def ask(member: Member, method: str, path: str) -> dict[str, Any]:
    url = f"{member.broker.addresses.http_url}/quire/v1/archive/{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def publish(brokers: Brokers) -> None:
    client = brokers.client()

    def work() -> None:
        for topic in TOPICS:
            producer = client.create_producer(topic)
            producer.send(b"x")
            producer.close()

    await in_thread(work)


async def test_a_run_and_the_counts_reach_the_topics_of_all_brokers(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    await publish(brokers)
    assert one.topics() and two.topics()
    assert (await ask(one, "GET", "status"))["segments"]["active"]["segments"] == len(TOPICS)
    report = await ask(one, "POST", "run?seal=true")
    assert (report["archived"], report["failed"], report["errors"]) == (len(TOPICS), 0, [])
    for member in (one, two):
        status = await ask(member, "GET", "status")
        assert status["archived"] == len(TOPICS) and status["failing"] == []
        assert status["segments"]["archived"]["segments"] == len(TOPICS)
    assert (await ask(two, "POST", "run"))["archived"] == 0


async def test_topics_that_nobody_owns_are_archived_and_counted(brokers: Brokers) -> None:
    one = await brokers.start()
    await publish(brokers)
    two = await brokers.start()
    await brokers.stop(one)
    assert not two.topics()
    assert sum(one["segments"] for one in (await ask(two, "GET", "status"))["segments"].values()) == len(
        TOPICS
    )
    report = await ask(two, "POST", "run")
    assert report["archived"] == len(TOPICS)


async def test_a_broker_that_does_not_answer_is_told_of(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    await two.rest.cleanup()
    report = await ask(one, "POST", "run")
    assert report["failed"] == 1 and f"{two.broker.addresses.http_url} does not answer" in report["errors"][0]
    assert two.broker.addresses.http_url in (await ask(one, "GET", "status"))["failing"][0]


@pytest.mark.parametrize(
    ("command", "step"), [("run?seal=true", "offload"), ("verify", "verify"), ("repair", "prove")]
)
async def test_any_broker_tells_how_far_all_are(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, command: str, step: str
) -> None:
    one, two = await brokers.start(), await brokers.start()
    await publish(brokers)
    if command != "run?seal=true":
        await ask(one, "POST", "run?seal=true")
    what = command.partition("?")[0]
    go_on, begun, real = asyncio.Event(), 0, getattr(brokers.archive, step)

    async def slow(*words: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun > 3:
            await go_on.wait()
        return await real(*words)

    monkeypatch.setattr(brokers.archive, step, slow)
    command_runs = asyncio.create_task(ask(one, "POST", command))
    everywhere = {what: (3, len(TOPICS))}

    async def seen(member: Member) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for work in await ask(member, "GET", "progress"):
            done, of = found.get(work["what"], (0, 0))
            found[work["what"]] = (done + work["done"], of + work["of"])
        return found

    async with asyncio.timeout(10):
        while (await seen(one), await seen(two)) != (everywhere, everywhere):
            assert not command_runs.done()
    go_on.set()
    await command_runs
    assert await seen(one) == {}
