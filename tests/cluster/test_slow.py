"""A message that waits for bookies that stand: the broker says for how long, and names the bookies and the entry."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pulsar
import pytest

from .local import Cluster, running

TOPIC = "persistent://public/default/slow"
PATIENCE_S = 30.0


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    for name, value in (("LOG_JSON", "true"), ("LOG_SLOW_MS", "300ms")):
        monkeypatch.setenv(f"QUIRE_{name}", value)
    async with running(tmp_path / "cluster", session_timeout_ms="20s") as made:
        yield made


def lines(cluster: Cluster) -> list[dict[str, Any]]:
    """Of all processes, as JSON."""
    logs = [*(cluster.data / "logs").glob("broker-*.log"), *(cluster.data / "logs").glob("bookie-*.log")]
    return [json.loads(line) for log in logs for line in log.read_text().splitlines() if line.startswith("{")]


async def test_one_search_finds_a_slow_message_everywhere(cluster: Cluster) -> None:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(TOPIC)
    await asyncio.to_thread(producer.send, b"quick")
    bookies = list(cluster.pids("bookie"))
    for name in bookies:
        cluster.signal(name, signal.SIGSTOP)
    sending = asyncio.create_task(asyncio.to_thread(producer.send, b"slow"))
    await asyncio.sleep(1.0)
    for name in bookies:
        cluster.signal(name, signal.SIGCONT)
    sent = await sending
    await asyncio.to_thread(client.close)
    deadline = monotonic() + PATIENCE_S
    while True:
        slow = [line["fields"] | line for line in lines(cluster) if line["logger"] == "quire.slow"]
        mine = [
            one
            for one in slow
            if (one.get("ledger"), one.get("entry")) == (sent.ledger_id(), sent.entry_id())
        ]
        kinds = {one["event"].partition(":")[0] for one in mine}
        if {"slow publish", "slow answer of a bookie"} <= kinds:
            break
        assert monotonic() < deadline, slow
        await asyncio.sleep(0.1)
    (published,) = [one for one in mine if one["event"].startswith("slow publish")]
    assert published["topic"] == TOPIC and published["parts"]["bookies"] > 0.3 > published["parts"]["waiting"]
    named = {one["bookie"] for one in mine if "bookie" in one}
    urls = {
        url.partition("://")[2]
        for one in cluster.processes()
        if one["kind"] == "bookie"
        for url in one["urls"]
    }
    assert named and named <= urls
