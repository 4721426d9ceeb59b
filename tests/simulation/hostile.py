"""Hostile peer that sends invalid data on its own connections, while honest clients use theirs.

It sends garbage and incomplete frames, names of any length, batches with false counts, entries with wrong checksums,
and floods of commands. A broker may respond with errors and close the connection. All other invariants still hold
(`oracle`, `cluster_history`), and also:

    stored      no entry with a wrong checksum is published
    turn        the number of commands that one read of a connection executes at once is bounded
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final
from unittest import mock

from quire.serving.session.inbound import COMMANDS_A_TURN, Inbound
from quire.serving.session.lane import Lane
from quire.serving.session.producer_end import ProducerEnd
from quire.serving.session.session import Session
from quire.serving.topic.publish import Publisher
from quire.serving.topic.runs import PublishRun
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.frame import Send
from quire.wire.message import OutgoingMessage, checksum_ok, encode_batch, encode_one

from .loop import Process
from .world import World

HOSTILE: Final = "hostile"
"""Name of the hostile peer, and of its own topic."""

PREFIX: Final = "persistent://public/default/"
PORT: Final = 6650
PAUSES_S: Final = (0.02, 0.1, 0.5)
PATIENCE_S: Final = 3.0
EIGHTHS_A_READ_MAX: Final = 8 * COMMANDS_A_TURN + 7
"""Maximum work of one read, in eighths of a command; an acknowledgement counts as one eighth."""

Parts = list[bytes]
"""Byte strings that are sent with pauses between them."""


class Hostile:
    def __init__(self, world: World, hosts: Sequence[str], topics: Sequence[str]) -> None:
        self._world = world
        self._hosts = hosts
        self._topics = [PREFIX + topic for topic in topics]
        self._rng = world.rng(HOSTILE)
        self._process = Process(world.loop, HOSTILE)
        self.is_over = False

    def start(self) -> None:
        self._process.start(self._go_on())

    async def _go_on(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self._rng.expovariate(1.5))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._act(self._rng.choice(ACTS), self._rng.choice(self._hosts))
            except (OSError, TimeoutError):
                pass  # the broker is away

    async def _act(self, act: Callable[[Random, str], Parts], host: str) -> None:
        rng = self._rng
        parts = act(rng, rng.choice(self._topics))
        if rng.random() < 0.2:
            parts[-1] = parts[-1][: rng.randrange(len(parts[-1]))]
        if rng.random() < 0.9:
            parts.insert(0, commands.connect(HOSTILE))
        ear = _Ear()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: ear, host, PORT)
        for part in parts:
            transport.write(part)
            await asyncio.sleep(rng.choice(PAUSES_S))
        self._world.saw(f"hostile {act.__name__}")
        if ear.is_closed:
            self._world.saw("hostile connection closed by its broker")
        transport.abort()


class _Ear(asyncio.Protocol):
    """Protocol that ignores all received bytes, and records the end of the connection."""

    is_closed = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True


# -- attacks ---------------------------------------------------------------------------------------------
def garbage(rng: Random, _: str) -> Parts:
    return [rng.randbytes(rng.choice((3, 40, 2_000)))]


def half_a_frame(rng: Random, _: str) -> Parts:
    return [struct.pack(">I", rng.choice((5, 5_000, 1 << 20, 1 << 31))) + bytes(rng.choice((0, 1, 900)))]


def unknown_command(rng: Random, _: str) -> Parts:
    raw = bytes((0x08, rng.choice((0, 0x7F))))
    return [struct.pack(">II", len(raw) + 4, len(raw)) + raw]


def long_names(rng: Random, topic: str) -> Parts:
    long = "x" * rng.choice((300, 5_000, 60_000))
    return [rng.choice((_subscribe(topic, 1, long), _producer(topic, 1, long), _producer(PREFIX + long)))]


def wrong_checksums(rng: Random, topic: str) -> Parts:
    """Return messages and batches with one flipped bit each, for a topic that also has valid messages."""
    entries = [
        encode_one(OutgoingMessage(b"hostile x -1 -1 "), HOSTILE, 1, 1),
        encode_batch([OutgoingMessage(b"hostile x -1 -1 ")] * 3, HOSTILE, 1, 1),
    ]
    spoilt = [bytearray(rng.choice(entries)) for _ in range(rng.choice((1, 5)))]
    for entry in spoilt:
        entry[rng.randrange(2, len(entry))] ^= 1 << rng.randrange(8)
    return [_producer(topic, 1), b"".join(_send(at, 1, bytes(entry)) for at, entry in enumerate(spoilt))]


def lying_batches(rng: Random, _: str) -> Parts:
    """Return batches with false message counts. They go to its own topic, because brokers store them unparsed."""
    entry = encode_batch([OutgoingMessage(b"x")] * 3, HOSTILE, 1, 1)
    count = rng.choice((0, 1, 2, 100_000, 2_000_000_000))
    return [_producer(PREFIX + HOSTILE, 1), _send(0, count, entry) * 3]


def many_ids(rng: Random, topic: str) -> Parts:
    ids = [commands.message_id(rng.randrange(50), at, -1, 0, (1,), 1_000_000) for at in range(2_000)]
    acks = commands.ack(1, ids, request_id=rng.choice((None, 9)))
    return [_subscribe(topic), acks * rng.choice((1, 5))]


def flood_of_permits(rng: Random, topic: str) -> Parts:
    return [_subscribe(topic), commands.flow(1, rng.choice((1, 1_000, 0x7FFFFFFF))) * 500]


def flood_of_lookups(rng: Random, topic: str) -> Parts:
    return [b"".join(commands.ask_lookup(at, topic) for at in range(rng.choice((60, 300))))]


def flood_of_producers(rng: Random, _: str) -> Parts:
    return [b"".join(_producer(PREFIX + HOSTILE, at % 70) for at in range(100))]


def flood_of_consumers(rng: Random, _: str) -> Parts:
    ends = (_subscribe(PREFIX + HOSTILE, at % 50, f"hostile-{at % 5}") for at in range(80))
    return [b"".join(ends)]


ACTS: Final = (
    garbage,
    half_a_frame,
    unknown_command,
    long_names,
    wrong_checksums,
    wrong_checksums,
    lying_batches,
    many_ids,
    flood_of_permits,
    flood_of_lookups,
    flood_of_producers,
    flood_of_consumers,
)


def _producer(topic: str, number: int = 1, name: str = "") -> bytes:
    body = pb.CommandProducer(topic=topic, producer_id=number, request_id=number)
    if name:
        body.producer_name = name
    return commands.producer(body)


def _subscribe(topic: str, number: int = 1, name: str = HOSTILE) -> bytes:
    """Return a SUBSCRIBE that is not durable, so that unacknowledged messages do not prevent trimming."""
    return commands.subscribe(
        pb.CommandSubscribe(
            topic=topic,
            subscription=name,
            subType=pb.CommandSubscribe.Shared,
            consumer_id=number,
            request_id=number,
            durable=False,
        )
    )


def _send(sequence_id: int, count: int, entry: bytes) -> bytes:
    return b"".join(commands.send(1, sequence_id, count, entry))


# -- invariants ------------------------------------------------------------------------------------------
@contextmanager
def watched(world: World) -> Iterator[None]:
    publish, special = Publisher.publish, ProducerEnd.publish_special
    read, command, go_on = Inbound.received, Session._command, Lane._go_on
    eighths = 0

    def stored(self: Publisher, producer: Any, run: PublishRun) -> int:
        world.check(
            all(map(checksum_ok, run.entries)), "stored", "an entry with a wrong checksum is published"
        )
        return publish(self, producer, run)

    def refused(self: ProducerEnd, send: Send) -> None:
        if not send.checksum_ok:
            world.saw("wrong checksum refused")
        special(self, send)

    def read_once(self: Inbound, nbytes: int) -> None:
        nonlocal eighths
        eighths = 0
        read(self, nbytes)
        if self._cutter.is_behind:
            world.saw("a read is carried out in slices")
        world.check(
            eighths <= EIGHTHS_A_READ_MAX, "turn", lambda: f"{eighths / 8:g} commands of one read at once"
        )

    def counted(self: Session, one: Command) -> None:
        nonlocal eighths
        eighths += 1 if one.kind == pb.BaseCommand.ACK else 8
        command(self, one)

    def from_lane(self: Lane) -> None:
        """Do not count queued commands as work of a read, because the queue is bounded by its bytes."""
        nonlocal eighths
        before = eighths
        go_on(self)
        eighths = before

    with (
        mock.patch.object(Publisher, "publish", stored),
        mock.patch.object(ProducerEnd, "publish_special", refused),
        mock.patch.object(Inbound, "received", read_once),
        mock.patch.object(Session, "_command", counted),
        mock.patch.object(Lane, "_go_on", from_lane),
    ):
        yield
