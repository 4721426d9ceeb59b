"""`/quire/v1/topics/…/messages`: readable messages, decoded by their schemas, which stay unacknowledged.

Long values are truncated. Entries and values are decoded on helper threads, because clients determine their content,
and decoding may take long.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Literal

from msgspec import Struct

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import FRAME_BYTES_MAX
from quire.security.authorization import Action
from quire.serving.admin.requests import natural
from quire.serving.admin.route import SUBSCRIPTION_NAME, TOPIC_NAME, Natural, Route, query, query_number
from quire.serving.admin.storage import TOPIC
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST, Position
from quire.serving.names import TopicName
from quire.serving.operations import peeking
from quire.serving.operations.peeking import Entry
from quire.serving.schema.definition import Definition
from quire.serving.schema.reading import shown
from quire.wire.message import DecodedMessage, Undecodable, messages_of, plain_payload, read_metadata

MESSAGES_MAX: Final = 100
TEXT_CHARS_MAX: Final = 4096
DECODED_BYTES_MAX: Final = 32 << 20
"""Limit, in bytes, of one entry's decompressed payload, and of the total after which no further entry is decompressed.
"""

LOOK_HOLDS: Final = peeking.BYTES_MAX + FRAME_BYTES_MAX + 2 * DECODED_BYTES_MAX
"""Memory, in bytes, for the entries and their decompressed payloads."""

PROPERTIES_MAX: Final = 50
PROPERTY_CHARS_MAX: Final = 500

Latest = Literal["latest"]


class Look(Struct, rename="camel"):
    """Message; if `problem` is not empty, an entry or value that cannot be decoded, with the reason."""

    position: str
    """`ledger:entry`, followed by `:index` for a message of a batch."""
    publish_time_ms: int = 0
    event_time_ms: int = 0
    producer: str = ""
    sequence_id: int = -1
    key: str | None = None
    properties: dict[str, str] = {}
    size: int = 0
    schema_version: int | None = None
    text: str | None = None
    """Value as text; None if the value is null."""
    form: Literal["json", "text", "hex"] = "text"
    is_cut: bool = False
    problem: str = ""


class _Found(Struct):
    """Message, and the version number of its schema; None if it has no version."""

    position: str
    message: DecodedMessage | None = None
    version: int | None = None
    problem: str = ""


def routes(broker: Broker) -> Sequence[Route]:
    looks_at, schemas, helpers = broker.admin.peeking, broker.registry.schemas, broker.services.helpers

    async def since(start: Latest | Position, time: int | None, count: int, topic: TopicName) -> list[Look]:
        if time is not None:
            return await read(topic, await looks_at.since_time(topic, time, count), count)
        if isinstance(start, Position):
            return await read(topic, await looks_at.since(topic, start, count), count)
        return await read(topic, await looks_at.last(topic, count), count, from_end=True)

    async def waiting(count: int, topic: TopicName, subscription: str) -> list[Look]:
        return await read(topic, await looks_at.unacknowledged(topic, subscription, count), count)

    async def read(
        topic: TopicName, entries: Sequence[Entry], count: int, *, from_end: bool = False
    ) -> list[Look]:
        found: list[_Found] = await helpers.run(partial(_messages, entries, count, from_end=from_end))
        definitions: dict[int | None, Definition | None] = {}
        for version in {one.version for one in found if one.message is not None}:
            known = await schemas.find(topic.parent or topic, version)
            definitions[version] = None if known is None else known.definition
        looks: list[Look] = await helpers.run(partial(_looks, found, definitions))
        return looks

    count = query_number("count", "20", least=1, most=MESSAGES_MAX)
    return (
        Route(
            "GET",
            f"{TOPIC}/messages",
            since,
            query("from", _start, "latest"),
            query("time", _time, kind=Natural),
            count,
            TOPIC_NAME,
            may=Action.CONSUME,
            holds=LOOK_HOLDS,
        ),
        Route(
            "GET",
            f"{TOPIC}/subscription/{{subscription}}/messages",
            waiting,
            count,
            TOPIC_NAME,
            SUBSCRIPTION_NAME,
            may=Action.CONSUME,
            holds=LOOK_HOLDS,
        ),
    )


def _start(text: str) -> Latest | Position:
    if text == "latest":
        return "latest"
    if text == "earliest":
        return EARLIEST
    ledger, colon, entry = text.partition(":")
    if not colon:
        raise ConfigurationError("from in the query must be latest, earliest or LEDGER:ENTRY")
    return Position(natural(ledger, "the ledger"), natural(entry, "the entry"))


def _time(text: str | None) -> int | None:
    return None if text is None else natural(text, "time in the query")


# -- on helper threads ---------------------------------------------------------------------------------


def _messages(entries: Sequence[Entry], count: int, *, from_end: bool) -> list[_Found]:
    """Return the first `count` messages of the entries, or the last; fewer if the entries are too large."""
    found: list[_Found] = []
    looked_at = 0
    for entry in reversed(entries) if from_end else entries:
        inside = _inside(entry)
        looked_at += sum(len(one.message.payload or b"") for one in inside if one.message is not None)
        found = [*inside, *found] if from_end else [*found, *inside]
        if len(found) >= count or looked_at > DECODED_BYTES_MAX:
            break
    return found[-count:] if from_end else found[:count]


def _inside(entry: Entry) -> list[_Found]:
    """Return the messages of an entry, or the reason why it cannot be decoded."""
    at = f"{entry.position.ledger_id}:{entry.position.entry_id}"
    if entry.problem:
        return [_Found(at, problem=entry.problem)]
    try:
        metadata, payload = read_metadata(entry.raw)
        if metadata.compression and metadata.uncompressed_size > DECODED_BYTES_MAX:
            raise Undecodable(
                f"its decompressed size is {metadata.uncompressed_size} bytes, which is too large to show"
            )
        every = messages_of(metadata, plain_payload(metadata, payload))
    except Undecodable as error:
        return [_Found(at, problem=str(error))]
    version = int.from_bytes(metadata.schema_version, "big") if metadata.schema_version else None
    return [
        _Found(at if one.batch_index < 0 else f"{at}:{one.batch_index}", one, version)
        for one in every
        if not one.compacted_out and (not entry.left or entry.left >> one.batch_index & 1)
    ]


def _looks(found: Sequence[_Found], definitions: Mapping[int | None, Definition | None]) -> list[Look]:
    return [
        Look(one.position, problem=one.problem)
        if one.message is None
        else _look(one, one.message, definitions[one.version])
        for one in found
    ]


def _look(found: _Found, message: DecodedMessage, definition: Definition | None) -> Look:
    look = Look(
        found.position,
        message.publish_time_ms,
        message.event_time_ms,
        message.producer_name,
        message.sequence_id,
        None if message.key is None else message.key[:PROPERTY_CHARS_MAX],
        {
            key[:PROPERTY_CHARS_MAX]: value[:PROPERTY_CHARS_MAX]
            for key, value in list(message.properties.items())[:PROPERTIES_MAX]
        },
        len(message.payload or b""),
        found.version,
    )
    if message.payload is not None:
        value = shown(message.payload, definition, _key_bytes(message))
        look.text, look.form, look.problem = value.text[:TEXT_CHARS_MAX], value.form, value.problem
        look.is_cut = len(value.text) > TEXT_CHARS_MAX
    return look


def _key_bytes(message: DecodedMessage) -> bytes | None:
    if message.key is None or not message.key_is_base64:
        return None if message.key is None else message.key.encode()
    try:
        return b64decode(message.key, validate=True)
    except ValueError:
        return message.key.encode()
