"""Benchmark of very many topics on one broker, most of them idle: memory, metadata, and recovery after a failover.

    python -m bench.many_topics [topics]

A producer connects once to each topic, which creates the topic's metadata nodes and loads it. Then one topic in a
hundred gets a message every two seconds. The broker is killed, and a standby broker takes over. For each active topic,
the time of its first new receipt is measured from the kill, and from the expiry of the dead broker's session. Finally,
the load time of idle topics is measured, one by one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from random import Random
from time import perf_counter
from typing import Any

import numpy as np
import uvloop

from bench import failover
from bench.failover import PATIENT, Watched
from bench.processes import Cluster, fresh
from bench.report import machine, show, usage
from quire.client import Client
from quire.metadata import paths
from quire.metadata.open import open_store
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound
from quire.testing.zookeeper_server import free_port

TOPICS = 100_000
ACTIVE_SHARE = 0.01
ASKED_IDLE = 200
AT_ONCE = 200
INTERVAL_S = 2.0
PATIENCE_S = 60.0


def name(number: int) -> str:
    return f"many-{number}"


async def use(client: Client, number: int) -> float:
    """Connect and close a producer; return the seconds that connecting took."""
    producer = client.producer(name(number), settings=failover.UNBATCHED)
    begin = perf_counter()
    await producer.start()
    took_s = perf_counter() - begin
    await producer.close(flush=False)
    return took_s


async def use_all(url: str, numbers: range) -> None:
    turns = asyncio.Semaphore(AT_ONCE)
    async with Client(url, settings=PATIENT) as client:

        async def one(number: int) -> None:
            async with turns:
                await use(client, number)

        for first in range(numbers.start, numbers.stop, 5_000):
            some = range(first, min(first + 5_000, numbers.stop))
            await asyncio.gather(*map(one, some))


async def gone(store: MetadataStore, path: str) -> float:
    """Wait until the metadata node `path` is deleted; return that time by the event loop's clock."""
    while True:
        try:
            await store.get(path)
        except NotFound:
            return asyncio.get_running_loop().time()
        await asyncio.sleep(0.02)


async def measure(cluster: Cluster, count: int) -> None:
    begin = perf_counter()
    empty = cluster.zookeeper_figures()
    await use_all(cluster.brokers[0].url, range(count))
    full = cluster.zookeeper_figures()
    show(
        f"{count} topics used once",
        seconds=perf_counter() - begin,
        broker_mb=usage(cluster.broker).resident_bytes / 1e6,
        nodes_per_topic=(full["nodes"] - empty["nodes"]) / count,
        metadata_bytes_per_topic=(full["bytes"] - empty["bytes"]) / count,
        asked="2 nodes; at most 1.5 GiB",
    )
    port = free_port()
    service = f"{cluster.brokers[0].url},127.0.0.1:{port}"
    async with Client(service, settings=PATIENT) as client:
        topics = await open_active(client, int(count * ACTIVE_SHARE))
        await asyncio.to_thread(cluster.start_broker, port)
        await fail_over(cluster, topics)
        await ask_idle(cluster, client, range(len(topics), count))


async def open_active(client: Client, count: int) -> list[Watched]:
    return list(await asyncio.gather(*(failover.open_one(client, name(number)) for number in range(count))))


async def fail_over(cluster: Cluster, topics: list[Watched]) -> None:
    """Kill the owner under a steady load, and print when each topic is served again."""
    loop = asyncio.get_running_loop()
    store = await open_store(cluster.metadata)
    owner = paths.broker(cluster.brokers[0].url.removeprefix("pulsar://"))
    await failover.publish(topics, loop.time() + 2 * INTERVAL_S, INTERVAL_S)
    os.kill(cluster.broker, signal.SIGKILL)
    killed_at = loop.time()
    ended = asyncio.ensure_future(gone(store, owner))
    again: dict[int, float] = {}
    before = [topic.published for topic in topics]
    while len(again) < len(topics) and loop.time() < killed_at + PATIENCE_S:
        await failover.publish(topics, loop.time() + 0.1, INTERVAL_S)
        for at, topic in enumerate(topics):
            if at not in again and topic.published > before[at] and topic.answered_at > killed_at + 0.5:
                again[at] = topic.answered_at
    session_s = await ended - killed_at
    await store.close()
    after_s = np.array(sorted(again.values())) - killed_at
    figures: dict[str, Any] = {}
    for q in (50, 100):
        figures[f"p{q}_s_after_the_kill"] = float(np.percentile(after_s, q))
        figures[f"p{q}_s_after_the_session"] = float(np.percentile(after_s, q)) - session_s
    show(
        f"{len(topics)} active topics after their broker was killed",
        served=len(again),
        session_ended_s=session_s,
        **figures,
        next_broker_mb=usage(cluster.brokers[1].pid).resident_bytes / 1e6,
        asked="all within 10 s",
    )


async def ask_idle(cluster: Cluster, client: Client, idle: range) -> None:
    some = Random(7).sample(idle, min(ASKED_IDLE, len(idle)))
    took_ms = np.array([await use(client, number) for number in some]) * 1000
    show(
        "an idle topic that is asked for after the failover",
        **{f"p{q}_ms": float(np.percentile(took_ms, q)) for q in (50, 99, 100)},
        broker_mb=usage(cluster.brokers[1].pid).resident_bytes / 1e6,
        asked="served when first asked for; at most 1.5 GiB",
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else TOPICS
    show("machine", **machine())
    # Unloading is disabled, so that all topics are loaded at once; else the first would be unloaded before the last.
    os.environ.setdefault("QUIRE_TOPIC_IDLE_MS_MAX", "0ms")
    with fresh() as cluster:
        uvloop.run(measure(cluster, count))


if __name__ == "__main__":
    main()
