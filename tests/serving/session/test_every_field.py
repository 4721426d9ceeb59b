"""Each text, each sequence of bytes and each list in each command that a client may send, far too long.

Taken from the table of commands and their messages' descriptors, so a new command is among them. Whatever becomes of
the command, its answer and the lines of the log stay short, and nothing of it is kept.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from quire.runtime.limits import HANDSHAKE_BYTES_MAX, KIB, PROPERTIES_BYTES_MAX, SCHEMA_BYTES_MAX
from quire.serving.broker import Broker
from quire.serving.session.sessions import TABLE
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.session.test_connection import TOPIC, Client, producer, subscribe

TOO_LONG = max(SCHEMA_BYTES_MAX, PROPERTIES_BYTES_MAX) + 10 * KIB
SHORT = 4 * KIB
NUMBERS = 50_000
DEPTH_MAX = 4

Path = tuple[FieldDescriptor, ...]
SAMPLES = {
    "topic": TOPIC,
    "subscription": "another",
    "namespace": "public/default",
    "topics_pattern": ".*",
    "producer_id": 1,
    "consumer_id": 1,
    "ledgerId": 1,
    "entryId": 1,
    "type": pb.Schema.String,
}
"""What required fields hold, by their names; numbers are 7 where nothing is said."""

IN_USE = (pb.BaseCommand.PRODUCER, pb.BaseCommand.SUBSCRIBE)
"""What makes a new producer or consumer needs an id that is free."""


def paths(message: Descriptor, depth: int = 0) -> Iterator[Path]:
    """Of all texts, bytes and lists in a message, and in the messages in it."""
    for field in message.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if depth < DEPTH_MAX:
                yield from ((field, *inner) for inner in paths(field.message_type, depth + 1))
            if field.is_repeated:
                yield (field,)
        elif field.is_repeated or field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield (field,)


def fill(message: Message) -> None:
    """Set what is required."""
    for field in message.DESCRIPTOR.fields:
        if field.is_required and not message.HasField(field.name):
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                getattr(message, field.name).SetInParent()
            else:
                text = {FieldDescriptor.TYPE_STRING: "text", FieldDescriptor.TYPE_BYTES: b"bytes"}
                first = field.enum_type.values[0].number if field.enum_type else 7
                setattr(message, field.name, SAMPLES.get(field.name, text.get(field.type, first)))
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = getattr(message, field.name)
            for one in inner if field.is_repeated else [inner] if message.HasField(field.name) else []:
                fill(one)


def lengthen(message: Message, path: Path, size: int) -> None:
    """Make what is at `path` far too long."""
    field, rest = path[0], path[1:]
    value = getattr(message, field.name)
    if rest:
        lengthen(value.add() if field.is_repeated else value, rest, size)
        return
    mark = "~too long~" * (size // 10)
    if field.type == FieldDescriptor.TYPE_STRING:
        value.append(mark) if field.is_repeated else setattr(message, field.name, mark)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        value.append(mark.encode()) if field.is_repeated else setattr(message, field.name, mark.encode())
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        made = value.add()
        fill(made)
        value.extend([made] * (size // max(made.ByteSize() + 8, 1)))
    else:
        value.extend([1] * min(NUMBERS, size // 10))


CASES = [
    (kind, path)
    for kind in TABLE
    for path in paths(pb.BaseCommand.DESCRIPTOR.fields_by_number[kind].message_type)
]


def called(value: Any) -> str:
    if isinstance(value, tuple):
        return ".".join(field.name for field in value)
    return pb.BaseCommand.Type.Name(value)


def command(kind: int, path: Path) -> bytes:
    made = pb.BaseCommand(type=kind)  # type: ignore[arg-type]
    body = getattr(made, pb.BaseCommand.DESCRIPTOR.fields_by_number[kind].name)
    body.SetInParent()
    fill(body)
    if kind in IN_USE:
        setattr(body, "producer_id" if kind == pb.BaseCommand.PRODUCER else "consumer_id", 2)
    lengthen(body, path, HANDSHAKE_BYTES_MAX - KIB if kind == pb.BaseCommand.CONNECT else TOO_LONG)
    fill(body)
    return commands.frame(made)


def kept(root: object) -> list[str]:
    """Long texts, bytes and messages that can be reached from `root`: what holds them."""
    seen, waiting, found = {id(root)}, [root], list[str]()
    while waiting:
        holder = waiting.pop()
        for one in gc.get_referents(holder):
            if id(one) in seen or isinstance(one, type | ModuleType | FunctionType | logging.Logger):
                continue
            seen.add(id(one))
            long = isinstance(one, str | bytes) and len(one) > SHORT and "~too long~" in str(one[:100])
            if long or (isinstance(one, Message) and one.ByteSize() > SHORT):
                found.append(f"{type(one).__name__} in {type(holder).__name__}: {str(holder)[:200]}")
            elif not isinstance(one, str | bytes | int | float):
                waiting.append(one)
    return found


class Lines(logging.Handler):
    """How long the longest line of the log was; it keeps none, nor what was said in it."""

    longest = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.longest = max(self.longest, len(record.getMessage()))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, log = Lines(), logging.getLogger("quire")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


@pytest.mark.parametrize(("kind", "path"), CASES, ids=called)
async def test_what_is_too_long_is_neither_said_again_nor_kept(
    broker: Broker, kind: int, path: Path, lines: Lines
) -> None:
    client = Client(broker)
    if kind != pb.BaseCommand.CONNECT:
        await client.connect()
        client.send(producer(1), subscribe(2))
        await client.answers(2)
    before = len(client.transport.writes)
    client.send(command(kind, path))
    async with asyncio.timeout(60):
        while client.connection.requests.pending or len(broker.sessions.context.slices):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    said_bytes = len(b"".join(client.transport.writes[before:]))
    assert said_bytes < SHORT
    assert lines.longest < SHORT
    found = kept(broker.sessions)
    assert not found, found[0][:300]
    assert broker.sessions.context.held.held_bytes == 0


def test_every_command_with_a_text_is_among_them() -> None:
    said = {called(kind) for kind, _ in CASES}
    assert {"CONNECT", "LOOKUP", "PRODUCER", "SUBSCRIBE", "ACK", "GET_OR_CREATE_SCHEMA"} <= said
    assert len(CASES) > 50
