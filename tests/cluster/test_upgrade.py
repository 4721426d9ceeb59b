"""Each member of a cluster is replaced in turn: by itself, by the newer version, and by the older one again.

A stock client publishes and consumes meanwhile. What it was told is published is there once, in order, and no publish
waits for long.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pulsar
import pytest

from quire import __version__
from tests.cluster.versions import MixedCluster, mixed_cluster, neighbour

TOPIC = "persistent://public/default/t"
MEMBERS = ("bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "gateway-1", "gateway-2")
RATE = int(os.environ.get("QUIRE_UPGRADE_MESSAGES_PER_S", "100"))
SLOWEST_S_MAX = 15.0
"""Far beyond what it takes on a machine without other work, two seconds."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MixedCluster]:
    async with mixed_cluster(tmp_path / "cluster") as made:
        yield made


class Traffic:
    """`RATE` numbers are published a second, and consumed, by threads, until `end`."""

    def __init__(self, service_url: str) -> None:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.client = pulsar.Client(service_url, logger=quiet, operation_timeout_seconds=60)
        self._producer = self.client.create_producer(
            TOPIC,
            producer_name="p",
            send_timeout_millis=0,
            block_if_queue_full=True,
            max_pending_messages=100_000,
        )
        self._consumer = self.client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        self.sent = 0
        self._answers = 0
        self._slowest_s = 0.0
        self.consumed: set[int] = set()
        self._has_ended = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        began = time.monotonic()
        while not self._has_ended.wait(0.01):
            behind = int((time.monotonic() - began) * RATE) - self.sent
            for _ in range(min(behind, RATE)):
                self._producer.send_async(b"%d" % self.sent, self._answered(), sequence_id=self.sent)
                self.sent += 1
        self._producer.flush()

    def _answered(self) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        sent_at = time.monotonic()

        def answered(result: pulsar.Result, _: pulsar.MessageId) -> None:
            assert result == pulsar.Result.Ok
            self._answers += 1
            self._slowest_s = max(self._slowest_s, time.monotonic() - sent_at)

        return answered

    def _consume(self) -> None:
        while not self._has_ended.is_set() or len(self.consumed) < self.sent:
            try:
                message = self._consumer.receive(1_000)
            except pulsar.Timeout:
                continue
            self.consumed.add(int(message.data()))
            self._consumer.acknowledge(message)

    async def lap(self) -> float:
        """When all that was sent is answered, and a little more: how long the slowest took since the last lap."""
        wanted = self.sent + 20
        async with asyncio.timeout(60):
            while self._answers < wanted:  # noqa: ASYNC110  a thread makes it true
                await asyncio.sleep(0.05)
        slowest_s, self._slowest_s = self._slowest_s, 0.0
        return slowest_s

    def end(self) -> list[int]:
        """All that the topic has then."""
        self._has_ended.set()
        for thread in self._threads:
            thread.join(60)
        reader = self.client.create_reader(TOPIC, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(30_000).data()))
        self.client.close()
        return found


def get(cluster: MixedCluster, path: str) -> list[dict[str, str]]:
    with urllib.request.urlopen(cluster.http_url + path, timeout=30) as answer:
        found: list[dict[str, str]] = json.load(answer)
        return found


def deduplicate(cluster: MixedCluster) -> None:
    path = f"{cluster.http_url}/admin/v2/namespaces/public/default/deduplication"
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(path, b"true", headers, method="POST"), timeout=30).close()


@pytest.mark.chaos
async def test_members_are_restarted_in_turn(cluster: MixedCluster) -> None:
    await cluster.run_all(MEMBERS)
    await under_traffic(cluster, None)


@pytest.mark.chaos
async def test_members_of_two_versions_serve_together_up_and_down(
    cluster: MixedCluster, tmp_path: Path
) -> None:
    older = neighbour(tmp_path / "older")
    await cluster.run_all(MEMBERS, older)
    await under_traffic(cluster, None, older)


async def under_traffic(cluster: MixedCluster, *versions: Path | None) -> None:
    """Replace each member by each of `versions`."""
    await asyncio.to_thread(deduplicate, cluster)
    traffic = await asyncio.to_thread(Traffic, cluster.service_url)
    slowest_s = 0.0
    try:
        await traffic.lap()
        for modules in versions:
            laps = {}
            for name in MEMBERS:
                await cluster.run(name, modules)
                laps[name] = await traffic.lap()
            if modules is None:
                for kind in ("brokers", "bookies"):
                    rows = await asyncio.to_thread(get, cluster, f"/quire/v1/{kind}")
                    assert {row["version"] for row in rows} == {__version__}
            slowest_s = max(slowest_s, *laps.values())
            took = ", ".join(f"{name} {lap:.2f} s" for name, lap in laps.items())
            print(f"{traffic.sent} published; the slowest while each was replaced: {took}")
    finally:
        found = await asyncio.to_thread(traffic.end)
    assert found == list(range(traffic.sent)), "each once, in order"
    assert traffic.consumed == set(found)
    assert slowest_s < SLOWEST_S_MAX
