"""A client that means harm: `python -m tests.chaos.hostile HOST:PORT HTTP_URL SECONDS [ACT ...]`.

Each act opens connections of its own and does one thing that no honest client does, again and again, until the time
is over: frames that do not end, names of a megabyte, messages of a hundred bytes that decompress to a hundred
thousand, questions whose answers it does not read, acknowledgements of tens of thousands of ids, lanes full of them,
garbage. What the server says to it, and that it is closed for it, is right. It prints how often each act was done.

It runs at the lowest priority: one who means harm sits at another machine, and takes of the server's processors
nothing but what the server spends on him.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import urllib.request
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
"""How long a connection that harms by being there is kept."""

Address = tuple[str, int]
_RANDOM = Random(7)
_NUMBERS = count()


class Line:
    """A connection that is written to and not read, unless one asks."""

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
        """Send as much as the server takes within `seconds`."""
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
    """Do `act` on so many connections at once."""

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
    """Messages of a hundred bytes that are a hundred thousand, in a topic that is compacted then."""
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
        pass  # one is under way


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
)
PAUSE_S = 0.5


async def attack(address: Address, http_url: str, seconds: float, only: Collection[str]) -> Counter[str]:
    """These acts, or all, at once, each with a pause behind it."""
    done: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def again_and_again(act: Callable[[Address, str], Awaitable[None]]) -> None:
        while loop.time() < end:
            try:
                await act(address, http_url)
            except OSError:
                pass  # a connection that was closed for what it did
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
