"""Hostile client: `python -m tests.chaos.hostile HOST:PORT HTTP_URL SECONDS [ACT ...]`.

Each act opens its own connections, and repeats one kind of attack until the time is over:

- frames that do not end, names of a megabyte, garbage;
- entries of some hundred bytes that decompress to a hundred thousand messages;
- requests whose responses it does not read, and queues full of acknowledgements with tens of thousands of ids;
- over HTTP, bodies that inflate, requests that do not end, and responses that it does not read.

The server may respond with errors, and may close the connections. The program prints how often each act was done.

It runs at the lowest priority, because a real attacker would be on another machine, and would use the server's CPU only
through the work that it causes there.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import urllib.request
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from itertools import count
from random import Random

import zstandard

from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_one

TOPIC = "persistent://public/default/hostile"
MIB = 1 << 20
HOLD_S = 1.5
"""Time for which an act keeps a connection open."""

Address = tuple[str, int]
_RANDOM = Random(7)
_NUMBERS = count()


class Line:
    """Connection that an act writes to, and reads only explicitly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, address: Address, *, greet: bool = True) -> Line:
        line = cls(*await asyncio.open_connection(*address, limit=4096))
        if greet:
            line.writer.write(commands.connect("hostile"))
            await line.reader.read(1)
        return line

    async def push(self, *parts: bytes, seconds: float = HOLD_S) -> None:
        """Send as much as the server accepts within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                for part in parts:
                    self.writer.write(part)
                    await self.writer.drain()
        except TimeoutError:
            pass

    async def read(self, seconds: float = 0.2) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.reader.read(4096)
        except TimeoutError:
            pass

    def close(self) -> None:
        self.writer.transport.abort()


async def on_lines(
    address: Address, number: int, act: Callable[[Line], Awaitable[None]], *, greet: bool = True
) -> None:
    """Do `act` on `number` connections concurrently."""

    async def one() -> None:
        line = await Line.open(address, greet=greet)
        try:
            await act(line)
        finally:
            line.close()

    await asyncio.gather(*(one() for _ in range(number)), return_exceptions=True)


def sends(producer_id: int, entries: int, entry: bytes) -> bytes:
    return b"".join(part for at in range(entries) for part in commands.send(producer_id, at, 1, entry))


def producer(topic: str = TOPIC, **more: object) -> bytes:
    body = pb.CommandProducer(topic=topic, producer_id=1, request_id=1)
    for name, value in more.items():
        setattr(body, name, value)
    return commands.producer(body)


def subscribe(kind: int = pb.CommandSubscribe.Key_Shared, **more: object) -> bytes:
    body = pb.CommandSubscribe(
        topic=TOPIC,
        subscription=f"s{next(_NUMBERS) % 5}",
        subType=kind,  # type: ignore[arg-type]
        consumer_id=1,
        request_id=1,
    )
    for name, value in more.items():
        setattr(body, name, value)
    return commands.subscribe(body)


def acks(ids: int) -> bytes:
    made = []
    for at in range(ids):
        one = commands.message_id(1, at)
        one.ack_set.append(1)
        one.batch_size = 1_000_000
        made.append(one)
    return commands.ack(1, made, request_id=9)


HALF = struct.pack(">I", 5 * MIB) + bytes(4 * MIB)
ACKS = acks(40_000)
SMALL = encode_one(OutgoingMessage(b"x", key="k"), "hostile", 0, 1)


async def half_frames(address: Address, _: str) -> None:
    async def act(line: Line) -> None:
        await line.push(HALF)
        await asyncio.sleep(HOLD_S)

    await on_lines(address, 20, act)


async def before_connect(address: Address, _: str) -> None:
    async def act(line: Line) -> None:
        await line.push(HALF)
        await asyncio.sleep(HOLD_S)

    await on_lines(address, 30, act, greet=False)


async def names(address: Address, _: str) -> None:
    long = "x" * 900_000
    for frame in (
        subscribe(consumer_name=long),
        subscribe(subscription=long),
        producer(producer_name=long),
        producer("x\n2026 ERROR all is lost"),
        producer("persistent://public/default/" + long),
    ):

        async def act(line: Line, frame: bytes = frame) -> None:
            await line.push(frame)
            await line.read()

        await on_lines(address, 1, act)


async def bombs(address: Address, http_url: str) -> None:
    """Publish small entries that decompress to batches of 100,000 messages, and request a compaction of their topic."""
    metadata = pb.MessageMetadata(producer_name="hostile", sequence_id=0, publish_time=1)
    metadata.num_messages_in_batch = 100_000
    single = pb.SingleMessageMetadata(payload_size=0).SerializeToString()
    one = struct.pack(">I", len(single)) + single
    plain = one * 100_000
    metadata.compression, metadata.uncompressed_size = pb.ZSTD, len(plain)
    entry = message.seal(metadata, zstandard.compress(plain))

    async def act(line: Line) -> None:
        await line.push(producer(f"{TOPIC}-bomb"))
        await line.read()
        await line.push(b"".join(part for at in range(10) for part in commands.send(1, at, 100_000, entry)))
        await line.read()

    await on_lines(address, 1, act)
    url = f"{http_url}/admin/v2/persistent/public/default/hostile-bomb/compaction"
    request = urllib.request.Request(url, b"", method="PUT")
    try:
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=10).close())
    except OSError:
        pass  # a compaction is running already


async def floods_unread(address: Address, _: str) -> None:
    body = pb.CommandGetTopicsOfNamespace(request_id=1, namespace="public/default")
    kind = pb.BaseCommand.GET_TOPICS_OF_NAMESPACE
    questions = commands.frame(pb.BaseCommand(type=kind, getTopicsOfNamespace=body)) * 2_000

    async def act(line: Line) -> None:
        await line.push(*[questions] * 20)

    await on_lines(address, 5, act)


async def tiny_messages_unread(address: Address, _: str) -> None:
    data = sends(1, 5_000, SMALL)

    async def act(line: Line) -> None:
        await line.push(producer())
        await line.read()
        await line.push(*[data] * 10)
        await asyncio.sleep(HOLD_S)

    await on_lines(address, 2, act)


async def many_ids(address: Address, _: str) -> None:
    async def act(line: Line) -> None:
        await line.push(subscribe(pb.CommandSubscribe.Shared))
        await line.read()
        await line.push(ACKS)
        await line.read()

    await on_lines(address, 1, act)


async def full_lanes(address: Address, _: str) -> None:
    async def act(line: Line) -> None:
        await line.push(subscribe(pb.CommandSubscribe.Shared), *[ACKS] * 5)
        await asyncio.sleep(HOLD_S)

    await on_lines(address, 3, act)


async def garbage(address: Address, _: str) -> None:
    async def act(line: Line) -> None:
        await line.push(_RANDOM.randbytes(10_000))
        await line.read()

    await on_lines(address, 10, act)
    await on_lines(address, 10, act, greet=False)


# -- over HTTP -------------------------------------------------------------------------------------------

PEEK = f"{TOPIC}-peek"
ZEROS = 100 * MIB
"""Size of one small entry after decompression."""


def zipped(mebibytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(mebibytes))


def head(method: str, path: str, *fields: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", *fields, "", "")).encode()


async def on_http(http_url: str, number: int, act: Callable[[Line], Awaitable[None]]) -> None:
    host, _, port = http_url.removeprefix("http://").rpartition(":")
    await on_lines((host, int(port)), number, act, greet=False)


async def http_inflating_bodies(_: Address, http_url: str) -> None:
    piece = zipped(64)

    async def act(line: Line) -> None:
        await line.push(
            head("PUT", "/x", "Content-Encoding: gzip", "Content-Length: 999999999"), *[piece] * 20
        )

    await on_http(http_url, 2, act)


async def http_held(_: Address, http_url: str) -> None:
    async def act(line: Line) -> None:
        await line.push(head("GET", "/health/live"))
        await line.read()
        await asyncio.sleep(HOLD_S)

    await on_http(http_url, 30, act)


async def http_halves(_: Address, http_url: str) -> None:
    """Send requests whose headers or bodies do not end."""
    policies = "/admin/v2/persistent/public/default/hostile/retention"
    starts = (
        head("GET", "/x").removesuffix(b"\r\n"),
        head("POST", policies, f"Content-Length: {MIB}") + bytes(MIB // 2),
        head("POST", policies, "Transfer-Encoding: chunked") + b"80000\r\n" + bytes(MIB // 2),
    )

    async def act(line: Line) -> None:
        await line.push(starts[next(_NUMBERS) % len(starts)])
        await asyncio.sleep(HOLD_S)

    await on_http(http_url, 20, act)


async def http_unread(_: Address, http_url: str) -> None:
    paths = (
        "/metrics",
        "/console/js/app.js",
        "/health/ready",
        "/admin/v2/clusters",
        "/quire/v1/openapi.json",
    )

    async def act(line: Line) -> None:
        await line.push(*[head("GET", path) for path in paths] * 100)

    await on_http(http_url, 5, act)


async def http_looks_unread(address: Address, http_url: str) -> None:
    """Request the contents of an entry of some KB that decompresses to 100 MiB, without reading the responses."""
    metadata = pb.MessageMetadata(producer_name="hostile", sequence_id=0, publish_time=1)
    metadata.compression, metadata.uncompressed_size = pb.ZSTD, ZEROS
    entry = message.seal(metadata, zstandard.compress(bytes(ZEROS)))

    async def publish(line: Line) -> None:
        await line.push(producer(PEEK))
        await line.read()
        await line.push(b"".join(commands.send(1, 0, 1, entry)))
        await line.read()

    topic = PEEK.replace("://", "/")
    paths = (f"/admin/v2/{topic}/examinemessage", f"/quire/v1/topics/{topic}/messages?count=100")

    async def act(line: Line) -> None:
        await line.push(*[head("GET", path) for path in paths] * 20)
        await asyncio.sleep(HOLD_S)

    await on_lines(address, 1, publish)
    await on_http(http_url, 5, act)


async def http_odd(_: Address, http_url: str) -> None:
    """Send requests with paths that escape the served directories, with too long headers, and with garbage."""
    targets = (
        "/console/../metrics",
        "/console/%2e%2e/admin/v2/tenants",
        "http://elsewhere/admin/v2/tenants",
        "*",
        "//x",
    )
    sent = [
        *(head("GET", target, "X-Original-Principal: admin") for target in targets),
        head("GET", "/" + "x" * 100_000),
        head("GET", "/x", *(f"A{at}: b" for at in range(50_000))),
        head("POST", "/x", "Content-Length: 1", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        _RANDOM.randbytes(10_000),
    ]

    async def act(line: Line) -> None:
        await line.push(sent[next(_NUMBERS) % len(sent)])
        await line.read()

    await on_http(http_url, len(sent), act)


OVER_HTTP = (
    http_inflating_bodies,
    http_held,
    http_halves,
    http_unread,
    http_looks_unread,
    http_odd,
)
ACTS = (
    half_frames,
    before_connect,
    names,
    bombs,
    floods_unread,
    tiny_messages_unread,
    many_ids,
    full_lanes,
    garbage,
    *OVER_HTTP,
)
PAUSE_S = 0.5


async def attack(address: Address, http_url: str, seconds: float, only: Collection[str]) -> Counter[str]:
    """Repeat the acts in `only`, or all acts, concurrently, with a pause after each; return how often each was done."""
    done: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def again_and_again(act: Callable[[Address, str], Awaitable[None]]) -> None:
        while not done[act.__name__] or loop.time() < end:  # once in any case, also on a slow machine
            try:
                await act(address, http_url)
            except OSError:
                pass  # the server closed the connection because of the act
            done[act.__name__] += 1
            await asyncio.sleep(PAUSE_S)

    acts = [act for act in ACTS if not only or act.__name__ in only]
    await asyncio.gather(*map(again_and_again, acts))
    return done


if __name__ == "__main__":
    os.nice(19)
    host, _, port = sys.argv[1].rpartition(":")
    done = asyncio.run(attack((host, int(port)), sys.argv[2], float(sys.argv[3]), sys.argv[4:]))
    print(json.dumps(done))
