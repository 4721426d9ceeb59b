"""Benchmark of failover: how long topics pause when their broker is stopped or killed.

    python -m bench.failover [stop] [kill] [kill-diskless]

One broker owns all topics, another one is on standby. Quire's asyncio client publishes five messages a second to each
topic (`kill-diskless`: one every two seconds), one message per entry. Its first back-off before it looks up a topic
again is 10-20 ms; a stock client's is 100 ms. Then the owner gets SIGTERM or SIGKILL. A topic's pause is between two
figures: its slowest publish, which began up to one interval after the pause, and its longest time without a receipt,
which began up to one interval before the pause.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import uvloop

from bench.processes import SESSION_S, Cluster, fresh
from bench.report import ask, show
from quire.client import Client, ClientSettings, ProducerSettings
from quire.client.batch import Publication
from quire.client.producer import Producer
from quire.testing.zookeeper_server import free_port

INTERVAL_S = 0.2
TICK_S = 0.005
WARM_UP_S = 3.0
AFTER_S = 5.0
PAYLOAD = bytes(1024)
UNBATCHED = ProducerSettings(batching=False, send_timeout_ms=60_000)
PATIENT = ClientSettings(operation_timeout_ms=60_000)


@dataclass
class Watched:
    """One topic: its publications in flight, and its slowest publish and longest silence."""

    producer: Producer[bytes]
    pending: deque[tuple[float, Publication]] = field(default_factory=deque)
    answered_at: float = 0.0
    slowest_s: float = 0.0
    silence_s: float = 0.0
    published: int = 0
    turn: int = 0
    """Index of the topic that is published to next; used only in the first topic's object."""

    def send(self, now: float) -> None:
        self.pending.append((now, self.producer.send_nowait(PAYLOAD)))

    def look(self, now: float) -> None:
        while self.pending and self.pending[0][1].is_done:
            sent_at, _ = self.pending.popleft()
            self.slowest_s = max(self.slowest_s, now - sent_at)
            self.silence_s = max(self.silence_s, now - self.answered_at)
            self.answered_at = now
            self.published += 1

    def forget(self, now: float) -> None:
        """Reset the measured times, so that they count from `now` on."""
        self.slowest_s = self.silence_s = 0.0
        self.answered_at = now


async def publish(topics: list[Watched], until: float, interval_s: float) -> None:
    """Publish a message to every topic each `interval_s`, evenly spread. Check for receipts every `TICK_S`."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    at = topics[0].turn
    while (now := loop.time()) < until:
        for topic in topics:
            topic.look(now)
        while due <= now:
            topics[at].send(now)
            at = (at + 1) % len(topics)
            due += interval_s / len(topics)
        await asyncio.sleep(max(0.0, now + TICK_S - loop.time()))
    topics[0].turn = at


async def open_one(client: Client, topic: str) -> Watched:
    producer = client.producer(topic, settings=UNBATCHED)
    await producer.start()
    return Watched(producer)


async def open_all(client: Client, count: int) -> list[Watched]:
    return list(await asyncio.gather(*(open_one(client, f"failover-{number}") for number in range(count))))


async def watch(
    cluster: Cluster, count: int, how: signal.Signals, after_s: float, interval_s: float
) -> list[Watched]:
    """Publish to `count` topics while their broker gets signal `how`."""
    loop = asyncio.get_running_loop()
    port = free_port()
    async with Client(f"{cluster.brokers[0].url},127.0.0.1:{port}", settings=PATIENT) as client:
        topics = await open_all(client, count)
        await asyncio.to_thread(cluster.start_broker, port)
        await publish(topics, loop.time() + WARM_UP_S, interval_s)
        begin = loop.time()
        for topic in topics:
            topic.forget(begin)
        steady = asyncio.ensure_future(publish(topics, begin + after_s, interval_s))
        await asyncio.sleep(1.0)
        os.kill(cluster.broker, how)
        await steady
        for topic in topics:
            await topic.producer.flush()
            topic.look(loop.time())
    return topics


def lose(
    count: int,
    how: signal.Signals,
    after_s: float,
    asked: str,
    *,
    interval_s: float = INTERVAL_S,
    bookies: int = 3,
) -> Callable[[], None]:
    def measure() -> None:
        with fresh(bookies) as cluster:
            topics = uvloop.run(watch(cluster, count, how, after_s, interval_s))
        figures: dict[str, float] = {}
        for name in ("slowest", "silence"):
            all_ms = np.array([getattr(topic, f"{name}_s") for topic in topics]) * 1000
            figures |= {f"{name}_p{q}_ms": float(np.percentile(all_ms, q)) for q in (50, 99, 100)}
        show(
            f"the broker of {count} topics gets {how.name}, {bookies or 'no'} bookies",
            published=sum(topic.published for topic in topics),
            **figures,
            asked=asked,
        )

    return measure


QUESTIONS: dict[str, Callable[[], None]] = {
    "stop": lose(1000, signal.SIGTERM, AFTER_S, "a pause of at most 300 ms per topic"),
    "kill": lose(100, signal.SIGKILL, SESSION_S + AFTER_S, f"at most {SESSION_S + 2} s"),
    "kill-diskless": lose(
        1000,
        signal.SIGKILL,
        SESSION_S + AFTER_S,
        f"at most {SESSION_S + 3} s",
        interval_s=2.0,
        bookies=0,
    ),
}


if __name__ == "__main__":
    ask(QUESTIONS)
