"""Decoder of single entries, by `quire.wire.message`. It handles all entries, but is fifty times slower than `decode`.

`decode` passes entries that it cannot read by columns to this module: chunks, text that is not UTF-8 (U+FFFD replaces
the invalid bytes), event times beyond any timestamp, unusual encodings of fields, and damaged or encrypted entries.
Each entry results in rows, or in an error with the entry's position. Tests of `decode` compare it with this module.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from quire.runtime.errors import QuireError
from quire.wire import message
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import Chunk, DecodedMessage, Undecodable

Row = dict[str, Any]

TIME_MS_MAX: Final = (1 << 63) // 1000 - 1
"""Latest time that Arrow can represent in microseconds."""

_U64: Final = 1 << 64
_I64_MAX: Final = (1 << 63) - 1


class UndecodableEntry(QuireError):
    """Error for an entry that cannot be decoded, with topic, ledger and entry."""

    def __init__(self, topic: str, ledger_id: int, entry_id: int, reason: str) -> None:
        super().__init__(
            f"entry {ledger_id}:{entry_id} of {topic} cannot be decoded: {reason}; "
            "option on_undecodable=raw keeps such entries as they are"
        )


class LostEntries(QuireError):
    """Error for entries that were lost, and given up by an operator."""

    def __init__(self, topic: str, ledger_id: int, first: int, last: int) -> None:
        super().__init__(
            f"entries {first} to {last} of ledger {ledger_id} of {topic} were lost and given up; option on_lost=skip "
            "reads the topic without them"
        )


def rows(entry: memoryview, of_chunk: Callable[[memoryview], Iterable[Row]] | None = None) -> Iterator[Row]:
    """Yield the rows of one entry, without its position (topic, ledger, and so on). A batch may have a million rows.

    Raises `Undecodable`, before the first row. `of_chunk` yields the rows of a chunk; if it is None, a chunk is a row.
    """
    metadata, payload = message.read_metadata(entry)
    try:
        payload = message.plain_payload(metadata, payload)
    except Chunk:
        yield from [_chunk(entry)] if of_chunk is None else of_chunk(entry)
        return
    if not message.is_batch(metadata):
        yield from map(row, message.messages_of(metadata, payload))
        return
    for _ in _batch(metadata, payload):
        pass  # errors at its end are raised before its first row
    yield from _batch(metadata, payload)


def _batch(metadata: pb.MessageMetadata, payload: memoryview) -> Iterator[Row]:
    """Yield the rows of a batch in the format of `row`, without holding all its messages in memory."""
    publish_time, producer, first = (
        time_us(metadata.publish_time),
        metadata.producer_name,
        metadata.sequence_id,
    )
    for index, (one, body) in enumerate(message.split_batch(metadata, payload)):
        key = one.partition_key if one.HasField("partition_key") else None
        value = None if one.null_value else body.tobytes()
        yield {
            "batch_index": index,
            "key": key_bytes(key, one.partition_key_b64_encoded),
            "value": value,
            "properties": list({p.key: p.value for p in one.properties}.items()),
            "publish_time": publish_time,
            "event_time": event_time_us(one.event_time),
            "producer": producer,
            "sequence": as_i64(one.sequence_id if one.HasField("sequence_id") else first + index),
            "compacted_out": one.compacted_out,
            "removes": not value,
        }


def schema_version(entry: memoryview) -> bytes | None:
    """Return the schema version that an entry was written with, if any. The entry must be decodable by `rows`."""
    metadata, _ = message.read_metadata(entry)
    return metadata.schema_version if metadata.HasField("schema_version") else None


def raw(entry: memoryview, reason: str) -> Row:
    """Return the row of an undecodable entry, with the entry's bytes as its value."""
    return {
        "batch_index": -1,
        "value": entry.tobytes(),
        "undecoded": reason,
        "properties": None,
        "removes": False,
    }


def row(one: DecodedMessage) -> Row:
    """Return the row of one message, without its position."""
    return {
        "batch_index": one.batch_index,
        "key": key_bytes(one.key, one.key_is_base64),
        "value": one.payload,
        "properties": list(one.properties.items()),
        "publish_time": time_us(one.publish_time_ms),
        "event_time": event_time_us(one.event_time_ms),
        "producer": one.producer_name,
        "sequence": as_i64(one.sequence_id),
        "compacted_out": one.compacted_out,
        "removes": not one.payload,
    }


def _chunk(entry: memoryview) -> Row:
    metadata, payload = message.read_metadata(entry)
    properties: Mapping[str, str] = {p.key: p.value for p in metadata.properties} | {
        "quire.chunk.uuid": metadata.uuid,
        "quire.chunk.id": str(metadata.chunk_id),
        "quire.chunk.count": str(metadata.num_chunks_from_msg),
        "quire.chunk.compression": pb.CompressionType.Name(metadata.compression).lower(),
    }
    key = metadata.partition_key if metadata.HasField("partition_key") else None
    return {
        "batch_index": -1,
        "key": key_bytes(key, metadata.partition_key_b64_encoded),
        "value": payload.tobytes(),
        "properties": list(properties.items()),
        "publish_time": time_us(metadata.publish_time),
        "event_time": event_time_us(metadata.event_time),
        "producer": metadata.producer_name,
        "sequence": as_i64(metadata.sequence_id),
        "removes": False,
    }


def key_bytes(key: str | None, is_base64: bool) -> bytes | None:
    """Return a key's bytes. A key that is marked as base64, but is not valid base64, is returned undecoded."""
    if key is None or not is_base64:
        return None if key is None else key.encode()
    try:
        return b64decode(key, validate=True)
    except ValueError:
        return key.encode()


def time_us(time_ms: int) -> int:
    """Return microseconds since 1970. Raises `Undecodable` for a time that a timestamp cannot represent."""
    if time_ms > TIME_MS_MAX:
        raise Undecodable(f"time {time_ms} ms is beyond any timestamp")
    return time_ms * 1000


def event_time_us(time_ms: int) -> int | None:
    """Return an event time in microseconds since 1970; None if it is not set, or a timestamp cannot represent it.

    An application may set it to any number, such as a time in nanoseconds.
    """
    return time_ms * 1000 if 0 < time_ms <= TIME_MS_MAX else None


def as_i64(number: int) -> int:
    """Return a u64 as the i64 with the same bits, because a producer's initial sequence id is -1."""
    return number - _U64 if number > _I64_MAX else number
