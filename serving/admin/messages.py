"""`/admin/v2/persistent/…/ledger/…` and the like: single messages, looked at and left where they are.

An entry comes as Pulsar's tools read it: its decompressed payload as the body, the rest in headers. What cannot be
decompressed here, for it is encrypted or a chunk, comes as it is. A producer writes into an entry what it likes, and
HTTP clients refuse long headers: what does not fit is left out, and a header of its own says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from json import dumps
from typing import Final, Literal
from urllib.parse import quote

from aiohttp import web

from quire.runtime.clock import iso_time
from quire.runtime.errors import ConfigurationError
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
from quire.wire.message import Undecodable, is_batch, plain_payload, read_metadata

HEADER_CHARS_MAX: Final = 4096
"""Of the two long ones each: with them all headers are within what most HTTP clients and proxies take."""


def routes(broker: Broker) -> Sequence[Route]:
    async def shown(position: Position, entry: bytes) -> web.Response:
        return await broker.services.helpers.run(partial(_entry, position, entry))  # it may grow to 128 MiB

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
        Route("GET", f"{TOPIC}/examinemessage", examine, *which, TOPIC_NAME, may=Action.CONSUME),
        Route(
            "GET",
            f"{SUBSCRIPTION}/position/{{position}}",
            peek,
            number,
            TOPIC_NAME,
            SUBSCRIPTION_NAME,
            may=Action.CONSUME,
        ),
        Route(
            "GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", by_id, *at, TOPIC_NAME, may=Action.CONSUME
        ),
    )


def _is_last(text: str) -> bool:
    if text not in ("latest", "earliest"):
        raise ConfigurationError(f"initialPosition is latest or earliest, not {text[:40]!r}")
    return text == "latest"


def _number(text: str) -> int:
    number = natural(text, "the position")
    if number == 0:
        raise ConfigurationError("positions count from 1")
    return number


def _entry(position: Position, entry: bytes) -> web.Response:
    metadata, payload = read_metadata(entry)
    headers = {
        "X-Pulsar-Message-ID": f"{position.ledger_id}:{position.entry_id}",
        "X-Pulsar-publish-time": _time(metadata.publish_time),
    }
    _put(headers, "X-Pulsar-PROPERTY", dumps({item.key: item.value for item in metadata.properties}))
    if metadata.HasField("partition_key"):
        _put(headers, "X-Pulsar-partition-key", quote(metadata.partition_key, safe=""))
    try:
        body = bytes(plain_payload(metadata, payload))
    except Undecodable:
        return web.Response(body=bytes(payload), headers=headers)
    if is_batch(metadata):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    return web.Response(body=body, headers=headers)


def _put(headers: dict[str, str], name: str, value: str) -> None:
    if len(value) <= HEADER_CHARS_MAX:
        headers[name] = value
    else:
        headers[f"{name}-left-out"] = f"{len(value)} characters are more than a header can have"


def _time(published_ms: int) -> str:
    """Any number of 64 bits; one beyond the calendar stays a number."""
    try:
        return iso_time(published_ms)
    except (ValueError, OverflowError, OSError):
        return str(published_ms)
