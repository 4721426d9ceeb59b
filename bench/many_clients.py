"""Benchmark of a thousand clients on one broker: publish latency compared with one client at the same total rate.

    python -m bench.many_clients [rate] [seconds]

The same open loop runs twice. Its messages of 1 KiB are spread evenly in time, one per entry, and latencies count from
the scheduled times. First one connection publishes to one topic that another connection reads. Then 1,000 connections
publish to ten topics each, round-robin, with all 10,000 topics loaded, while 1,000 other connections read one topic
each. The result is the ratio of the two p99, because the generator shares the machine with the server in both runs.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from struct import unpack_from

import numpy as np
import uvloop

from bench import server as servers
from bench.load import NAMESPACE, entry_of
from bench.report import machine, show, usage
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

RATE = 2_000
SECONDS = 10.0
WARM_UP_S = 3.0
TICK_S = 0.0005
PERMITS = 1000
SIZE = 1024
AT_ONCE = 100
"""Number of clients that connect at the same time."""

FILES = 8192


class Peer(asyncio.Protocol):
    """Connection that has sent CONNECT. It counts responses other than receipts and messages; an error ends the run."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.due: deque[float] = deque()
        """Scheduled times of the messages without a receipt, oldest first."""
        self.latencies_s: list[float] = []
        self.messages = 0
        self._permits_used = 0
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    async def ask(self, frame: bytes) -> None:
        answered = self._loop.create_future()
        self._waiting.append(answered)
        self.transport.write(frame)
        await answered

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while len(data) - at >= 10 and len(data) - at >= 4 + (total := unpack_from(">I", data, at)[0]):
            self._take(data[at + 9], data, at)
            at += 4 + total
        self._rest = data[at:]

    def _take(self, kind: int, data: bytes, at: int) -> None:
        if kind == pb.BaseCommand.SEND_RECEIPT:
            self.latencies_s.append(self._loop.time() - self.due.popleft())
        elif kind == pb.BaseCommand.MESSAGE:
            self.messages += 1
            self._permits_used += 1
            if 2 * self._permits_used >= PERMITS:
                self.transport.write(commands.flow(1, self._permits_used))
                self._permits_used = 0
        elif kind == pb.BaseCommand.PING:
            self.transport.write(commands.PONG)
        elif kind in (pb.BaseCommand.ERROR, pb.BaseCommand.CLOSE_PRODUCER, pb.BaseCommand.CLOSE_CONSUMER):
            raise SystemExit(f"the server refused or closed: {data[at : at + 300]!r}")
        else:
            self._waiting.popleft().set_result(None)


def topic(number: int) -> str:
    return f"{NAMESPACE}/many-{number}"


async def connected(port: int) -> Peer:
    _, peer = await asyncio.get_running_loop().create_connection(Peer, "127.0.0.1", port)
    await peer.ask(commands.connect("quire-bench"))
    return peer


async def publisher(port: int, topics: range) -> Peer:
    """Return a connection whose producer n publishes to the n-th of `topics`."""
    peer = await connected(port)
    for producer_id, number in enumerate(topics):
        body = pb.CommandProducer(topic=topic(number), producer_id=producer_id, request_id=producer_id)
        await peer.ask(commands.producer(body))
    return peer


async def subscriber(port: int, number: int) -> Peer:
    peer = await connected(port)
    body = pb.CommandSubscribe(topic=topic(number), subscription="bench", consumer_id=1, request_id=1)
    body.subType = pb.CommandSubscribe.Exclusive
    await peer.ask(commands.subscribe(body))
    peer.transport.write(commands.flow(1, PERMITS))
    return peer


async def many(count: int, make: Callable[[int], Awaitable[Peer]]) -> list[Peer]:
    """Return the results of `make(n)` for each n below `count`; `AT_ONCE` of them run concurrently."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Peer:
        async with turns:
            return await make(number)

    return list(await asyncio.gather(*map(one, range(count))))


async def publish(peers: list[Peer], topics_each: int, rate: float, seconds: float) -> None:
    """Publish all scheduled messages, round-robin over the connections and over each connection's topics."""
    loop, entry, sent = asyncio.get_running_loop(), entry_of(SIZE, 1, 7), 0
    begin = loop.time()
    while (now := loop.time()) < begin + seconds:
        while (due := begin + sent / rate) <= now:
            turn, at = divmod(sent, len(peers))
            peer = peers[at]
            peer.due.append(due)
            peer.transport.writelines(commands.send(turn % topics_each, turn // topics_each + 1, 1, entry))
            sent += 1
        await asyncio.sleep(TICK_S)
    while any(peer.due for peer in peers):  # noqa: ASYNC110  once at the end
        await asyncio.sleep(TICK_S)


async def measure(
    server: servers.Server, clients: int, topics_each: int, rate: float, seconds: float
) -> float:
    """Return the p99 of the publish latency in ms."""
    publishers = await many(
        clients, lambda n: publisher(server.port, range(n * topics_each, (n + 1) * topics_each))
    )
    subscribers = await many(clients, lambda n: subscriber(server.port, n * topics_each))
    await publish(publishers, topics_each, rate, WARM_UP_S)
    for peer in publishers:
        peer.latencies_s.clear()
    before = usage(server.pid)
    await publish(publishers, topics_each, rate, seconds)
    after = usage(server.pid)
    latencies_ms = np.concatenate([peer.latencies_s for peer in publishers]) * 1000
    p99_ms = float(np.percentile(latencies_ms, 99))
    show(
        f"{clients} producers and consumers, {clients * topics_each} topics, {rate:g}/s",
        p50_ms=float(np.percentile(latencies_ms, 50)),
        p99_ms=p99_ms,
        p999_ms=float(np.percentile(latencies_ms, 99.9)),
        published=len(latencies_ms),
        consumed=sum(peer.messages for peer in subscribers),
        server_cpu_us_per_message=(after.cpu_s - before.cpu_s) / max(1, len(latencies_ms)) * 1e6,
        server_mb=after.resident_bytes / 1e6,
    )
    for peer in (*publishers, *subscribers):
        peer.transport.abort()
    return p99_ms


def main() -> None:
    rate = float(sys.argv[1]) if len(sys.argv) > 1 else RATE
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    show("machine", **machine())
    p99_ms = []
    for clients, topics_each in ((1, 1), (1000, 10)):
        with servers.fresh() as server:
            p99_ms.append(uvloop.run(measure(server, clients, topics_each, rate, seconds)))
    show("many clients against one", p99_ratio=p99_ms[1] / p99_ms[0], asked="at most 3")


if __name__ == "__main__":
    main()
