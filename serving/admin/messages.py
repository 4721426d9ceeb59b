"""`/admin/v2/persistent/…/ledger/…` and the like: reads of single messages, which stay unacknowledged.

An entry is returned in the form that Pulsar's tools read: the decompressed payload as the body, the metadata in
headers. A payload that is encrypted, a chunk, or larger than `SHOWN_BYTES_MAX` when decompressed is returned unchanged,
with the reason in a header. Producers choose texts of any length, but HTTP clients reject long headers. So a header
that is too long is omitted, and another header contains its size.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from json import dumps
from typing import Any, Final, Literal
from urllib.parse import quote

from aiohttp import web

from quire.runtime.clock import iso_time
from quire.runtime.errors import ConfigurationError
from quire.runtime.http_headers import RawHeadersResponse, latin_1
from quire.runtime.limits import FRAME_BYTES_MAX, MIB
from quire.security.authorization import Action
from quire.serving.admin.requests import natural
from quire.serving.admin.route import (
    SUBSCRIPTION,
    SUBSCRIPTION_NAME,
    TOPIC,
    TOPIC_NAME,
    Bytes,
    Positive,
    Route,
    path,
    path_number,
    query,
)
from quire.serving.broker import Broker
from quire.serving.model.ports import Position
from quire.serving.names import TopicName
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import Undecodable, is_batch, is_encrypted, plain_payload, read_metadata

SHOWN_BYTES_MAX: Final = 8 * MIB
"""Limit, in bytes, of a decompressed payload: more than a message may have (5 MiB), but far less than an entry may
expand to.
"""

ENTRY_HOLDS: Final = 2 * SHOWN_BYTES_MAX + FRAME_BYTES_MAX
"""Memory, in bytes, for an entry, its decompressed payload, and the copy in the response."""

AS_STORED: Final = "X-Quire-payload-as-stored"
HEADER_BYTES_MAX: Final = 4096
HEADERS_BYTES_MAX: Final = 6144
"""Limits, in bytes, of one header with a producer's text, and of all such headers in a response.

Most HTTP clients and proxies accept headers of these sizes.
"""

UNACKNOWLEDGED: Final = "X-Quire-unacknowledged"
"""Header with the unacknowledged messages of a partly acknowledged batch, as a hexadecimal bit mask."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def routes(broker: Broker) -> Sequence[Route]:
    async def shown(position: Position, entry: bytes, left: int = 0) -> web.Response:
        made: web.Response = await broker.services.helpers.run(partial(_entry, position, entry))
        if left:
            made.headers[UNACKNOWLEDGED] = f"{left:x}"
        return made

    async def peek(number: int, topic: TopicName, subscription: str) -> Bytes:
        return await shown(*await broker.admin.subscriptions.peek(topic, subscription, number))

    async def by_id(ledger: int, entry: int, topic: TopicName) -> Bytes:
        position = Position(ledger, entry)
        return await shown(position, await broker.admin.topics.message(topic, position))

    async def examine(is_last: bool, number: int, topic: TopicName) -> Bytes:
        return await shown(*await broker.admin.topics.examine(topic, number, is_last=is_last))

    which = (
        query("initialPosition", _is_last, "latest", kind=Literal["latest", "earliest"]),
        query("messagePosition", _number, "1", kind=Positive),
    )
    number = path("position", parse=_number, kind=Positive)
    at = path_number("ledger"), path_number("entry")
    return (
        Route(
            "GET",
            f"{TOPIC}/examinemessage",
            examine,
            *which,
            TOPIC_NAME,
            may=Action.CONSUME,
            holds=ENTRY_HOLDS,
        ),
        Route(
            "GET",
            f"{SUBSCRIPTION}/position/{{position}}",
            peek,
            number,
            TOPIC_NAME,
            SUBSCRIPTION_NAME,
            may=Action.CONSUME,
            holds=ENTRY_HOLDS,
        ),
        Route(
            "GET",
            f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}",
            by_id,
            *at,
            TOPIC_NAME,
            may=Action.CONSUME,
            holds=ENTRY_HOLDS,
        ),
    )


def _is_last(text: str) -> bool:
    if text not in ("latest", "earliest"):
        raise ConfigurationError(f"initialPosition must be latest or earliest, not {text[:40]!r}")
    return text == "latest"


def _number(text: str) -> int:
    number = natural(text, "the position")
    if number == 0:
        raise ConfigurationError("positions start at 1")
    return number


def _entry(position: Position, entry: bytes) -> web.Response:
    metadata, payload = read_metadata(entry)
    headers = {"X-Pulsar-Message-ID": f"{position.ledger_id}:{position.entry_id}", **_headers(metadata)}
    try:
        if metadata.compression and metadata.uncompressed_size > SHOWN_BYTES_MAX:
            raise Undecodable(f"its decompressed size is {metadata.uncompressed_size} bytes")
        body = bytes(plain_payload(metadata, payload))
    except Undecodable as error:
        headers[AS_STORED] = str(error)
        return RawHeadersResponse(body=bytes(payload), headers=headers)
    if is_batch(metadata):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    return RawHeadersResponse(body=body, headers=headers)


def _headers(metadata: pb.MessageMetadata) -> dict[str, str]:
    """Return the metadata as the headers that Pulsar's admin clients read, without unset fields."""
    values = {
        "publish-time": _time(metadata.publish_time),
        "sequence-id": str(_signed(metadata.sequence_id)),
        "Is-Encrypted": _flag(is_encrypted(metadata)),
    }
    for name, shown in _IF_SET.items():
        if metadata.HasField(name):
            values[name.replace("_", "-")] = shown(getattr(metadata, name))
    for name, header in _BASE64.items():
        if metadata.HasField(name):
            values[header] = b64encode(getattr(metadata, name)).decode()
    headers = {f"X-Pulsar-{name}": value for name, value in values.items()}
    return headers | _texts(metadata)


def _texts(metadata: pb.MessageMetadata) -> dict[str, str]:
    """Return headers with the texts that the producer chose; control characters are percent-encoded."""
    texts = {
        "X-Pulsar-producer-name": metadata.producer_name,
        "X-Pulsar-PROPERTY": dumps({item.key: item.value for item in metadata.properties}),
    }
    if metadata.HasField("partition_key"):
        texts["X-Pulsar-partition-key"] = metadata.partition_key
    headers, room = {}, HEADERS_BYTES_MAX
    for name, text in texts.items():
        value = _CONTROL.sub(lambda found: quote(found[0]), text)
        size = len(value.encode())
        if size <= min(room, HEADER_BYTES_MAX):
            headers[name], room = latin_1(value), room - size
        else:
            headers[f"{name}-left-out"] = f"omitted: {size} bytes are too long for a header"
    return headers


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _signed(number: int) -> int:
    """Return an unsigned 64-bit integer as the signed one with the same bits, as Java reads a sequence id."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _time(published_ms: int) -> str:
    """Format a 64-bit time in ms; one that is not a valid date is returned as a number."""
    try:
        return iso_time(published_ms)
    except (ValueError, OverflowError, OSError):
        return str(published_ms)


_IF_SET: Final[Mapping[str, Callable[[Any], str]]] = {
    "event_time": _time,
    "deliver_at_time": _time,
    "null_value": _flag,
    "null_partition_key": _flag,
    "partition_key_b64_encoded": _flag,
    "highest_sequence_id": lambda number: str(_signed(number)),
    "num_chunks_from_msg": str,
    "chunk_id": str,
    "total_chunk_msg_size": str,
    "uncompressed_size": str,
}
_BASE64: Final = {
    "ordering_key": "Base64-ordering-key",
    "schema_version": "Base64-schema-version-b64encoded",
}
