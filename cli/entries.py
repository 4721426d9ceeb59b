"""Entries that a broker returns to operators: their messages as text and JSON; ids of messages as users write them."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from quire.cli.output import Shown, visible
from quire.runtime.errors import ConfigurationError
from quire.wire.message import Undecodable, split_batch
from quire.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

Entry = tuple[Mapping[str, str], bytes]
"""Headers of a broker's response, by lower-case name, and the payload."""

_ID: Final = re.compile(r"([0-9]+):([0-9]+)(?::([0-9]+)|:(-1|[0-9]+):(-1|[0-9]+))?")


class MessageId(NamedTuple):
    """Id of a message; -1 for no batch, and for no partition."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    partition: int = -1

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Parse LEDGER:ENTRY[:BATCH], or LEDGER:ENTRY:PARTITION:BATCH as `consume --json` prints it.

        Raises `ConfigurationError`.
        """
        match = _ID.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"{text!r} is not a message id: use LEDGER:ENTRY, such as 17:42, or LEDGER:ENTRY:BATCH"
            )
        ledger, entry, alone, partition, batch = match.groups()
        return cls(int(ledger), int(entry), int(alone or batch or -1), int(partition or -1))

    def topic(self, topic: str) -> str:
        """Return the partition of `topic` that the id names; `topic` itself if it names none."""
        is_partition = self.partition < 0 or topic.endswith(f"-partition-{self.partition}")
        return topic if is_partition else f"{topic}-partition-{self.partition}"

    def as_json(self) -> dict[str, int]:
        """Return the id as the REST interface reads it."""
        return {
            "ledgerId": self.ledger_id,
            "entryId": self.entry_id,
            "partitionIndex": self.partition,
            **({"batchIndex": self.batch_index} if self.batch_index >= 0 else {}),
        }


def messages(entry: Entry) -> Iterator[dict[str, Any]]:
    """Yield the messages of an entry; of a partly acknowledged batch, only those that are not acknowledged."""
    headers, payload = entry
    shared = {
        "id": headers["x-pulsar-message-id"],
        "publishTime": headers["x-pulsar-publish-time"],
        "producer": _text(headers, "x-pulsar-producer-name"),
    }
    size = headers.get("x-pulsar-num-batch-message")
    if size is None:
        yield {**shared, **_of_headers(headers), **_payload(payload)}
        return
    batch = MessageMetadata(num_messages_in_batch=int(size))
    left = int(headers.get("x-quire-unacknowledged", "0"), 16)
    try:
        for at, (single, body) in enumerate(split_batch(batch, memoryview(payload))):
            if not left or left >> at & 1:
                yield {**shared, "id": f"{shared['id']}:{at}", **_of_batch(single), **_payload(bytes(body))}
    except Undecodable as error:
        yield {**shared, "error": f"entry {shared['id']}: {error}"}


def _of_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    properties = headers.get("x-pulsar-property")
    stored = headers.get("x-quire-payload-as-stored")
    return {
        "key": _text(headers, "x-pulsar-partition-key"),
        "properties": json.loads(properties) if properties else {},
        **({"payloadAsStored": stored} if stored else {}),
    }


def _of_batch(single: SingleMessageMetadata) -> dict[str, Any]:
    return {
        "key": single.partition_key if single.HasField("partition_key") else None,
        "properties": {one.key: one.value for one in single.properties},
    }


def _text(headers: Mapping[str, str], name: str) -> str | None:
    """Return a header's text: `http.client` decodes ISO 8859-1, but brokers send UTF-8 if that lacks a letter."""
    value = headers.get(name)
    try:
        return value and value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload).decode()}


def line(one: Mapping[str, Any]) -> str:
    """Return a message as one line: its id, publish time and payload, or the error."""
    return one.get("error") or f"{one['id']}  {one['publishTime']}  {_shown(one)}"


def fields(one: Mapping[str, Any]) -> Shown:
    """Return a message's fields for people, without those that it lacks."""
    if "error" in one:
        return str(one["error"])
    every = {
        "id": one["id"],
        "published": one["publishTime"],
        "producer": one["producer"],
        "key": one["key"],
        **{f"property {name}": value for name, value in one["properties"].items()},
        "payload as stored": one.get("payloadAsStored"),
        "payload": _shown(one),
    }
    return {name: _printable(str(value)) for name, value in every.items() if value not in (None, "")}


def _shown(one: Mapping[str, Any]) -> str:
    return _printable(str(one.get("payload", one.get("payload_base64"))))


def _printable(text: str) -> str:
    """Escape control characters on a terminal, which messages must not control."""
    return visible(text) if sys.stdout.isatty() else text
