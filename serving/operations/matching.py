"""Scan of blocks for the messages that match a filter, on helper threads.

An entry is decoded only if its publish time fits and its bytes, or a batch's decompressed bytes, contain every text of
the filter. So a scan for rare texts mostly searches bytes. Values are compared as bytes: a value matches if it contains
the UTF-8 text, whatever its schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from quire.runtime.limits import METADATA_LOOKED_INTO_BYTES_MAX
from quire.runtime.threads import Breather
from quire.serving.model.ports import Position
from quire.wire import block as blocks
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.message import (
    MAGIC,
    DecodedMessage,
    Undecodable,
    is_batch,
    is_chunk,
    is_encrypted,
    messages_of,
    plain_payload,
    read_metadata,
)

DECODED_BYTES_MAX: Final = 32 << 20
"""Limit, in bytes, of one entry's decompressed payload, and of the total after which no further entry is decompressed.
"""

ENTRIES_A_BREATH: Final = 32

_METADATA_OFFSET: Final = 10
_opening: Final = Struct(">H4xI").unpack_from
_parse: Final = pb.MessageMetadata.FromString


class Place(NamedTuple):
    """Place of a message: its entry, and its index if the entry is a batch."""

    position: Position
    batch_index: int = 0


class Found(NamedTuple):
    """Message, and the version number of its schema; None if it has no version."""

    place: Place
    message: DecodedMessage | None = None
    version: int | None = None
    problem: str = ""
    """Reason why the entry cannot be decoded; then there is no message."""

    def __str__(self) -> str:
        at = "{}:{}".format(*self.place.position)
        return (
            at if self.message is None or self.message.batch_index < 0 else f"{at}:{self.message.batch_index}"
        )


class Filter(NamedTuple):
    """Conditions, all of which a message must fulfil; empty ones are fulfilled by every message."""

    key: str = ""
    """The message's key."""
    value: str = ""
    """Part of the value."""
    prop: str = ""
    """Name of a property, or `NAME=VALUE`."""
    since_ms: int = 0
    until_ms: int = 0
    """Publish times, in ms since 1970: `since_ms` is included, `until_ms` excluded."""

    @property
    def texts(self) -> list[bytes]:
        """Bytes that an uncompressed batch contains if one of its messages matches."""
        return [one.encode() for one in (self.key, self.value, *self.prop.split("=")) if one]

    @property
    def is_empty(self) -> bool:
        return self == Filter()

    def is_in_time(self, publish_time_ms: int) -> bool:
        return self.since_ms <= publish_time_ms and (not self.until_ms or publish_time_ms < self.until_ms)

    def matches(self, message: DecodedMessage) -> bool:
        if self.key and message.key != self.key:
            return False
        if self.value and self.value.encode() not in (message.payload or b""):
            return False
        prop = self.prop
        return not prop or any(
            prop in (name, f"{name}={value}") for name, value in message.properties.items()
        )


class Scanned(NamedTuple):
    found: list[Found]
    place: Place
    """Place from which to continue."""
    next_index: int
    """Topic-wide index of the message there."""


class Scan:
    """Scan of consecutive blocks from a place on, up to `count` found messages."""

    def __init__(self, wanted: Filter, count: int) -> None:
        self._wanted = wanted
        self._is_empty = wanted.is_empty
        self._texts = wanted.texts
        self._count = count
        self._found: list[Found] = []
        self._decompressed_bytes = 0
        """Size of all payloads that were decompressed, whether their messages match or not."""

    def of(self, some: Sequence[Buffer], start: Place) -> Scanned:
        """Scan blocks of one segment; the first one contains `start`."""
        breathe, place, index = Breather(), start, 0
        for block in some:
            header = blocks.peek(block)
            counts = blocks.message_counts(block, header)
            first = max(header.first_entry, place.position.entry_id)
            entries = (
                () if blocks.is_blank(header) else blocks.entries(block, header)[first - header.first_entry :]
            )
            for entry_id, entry in enumerate(entries, first):
                if entry_id % ENTRIES_A_BREATH == 0:
                    breathe()
                if self._is_ruled_out(entry):
                    continue
                at = Place(
                    Position(header.ledger_id, entry_id),
                    start.batch_index * (start.position.entry_id == entry_id),
                )
                decompressed_bytes = self._decompressed_bytes
                end = self._scan_entry(at, entry)
                if end is not None:
                    before = sum(counts[: entry_id - header.first_entry])
                    return Scanned(self._found, end, header.first_index + before + end.batch_index)
                if self._decompressed_bytes > decompressed_bytes:
                    breathe()
            index = header.first_index + sum(counts)
            place = Place(Position(header.ledger_id, header.last_entry + 1))
            if self._is_full:
                break
        return Scanned(self._found, place, index)

    def _scan_entry(self, at: Place, entry: Buffer) -> Place | None:
        """Add the matching messages of an entry. Return the place before which the scan ends, or None if it goes on."""
        if self._decompressed_bytes >= DECODED_BYTES_MAX:
            return at
        for one in self._of_entry(at, entry):
            if self._is_full:
                return one.place
            self._found.append(one)
        return None

    def _is_ruled_out(self, entry: Buffer) -> bool:
        """Return whether an entry surely has no message that matches. This takes a tenth of the time of decoding it."""
        if self._is_empty:
            return False
        raw = bytes(entry)
        try:
            magic, size = _opening(raw)
            if magic != MAGIC or size > METADATA_LOOKED_INTO_BYTES_MAX:
                return False
            metadata = _parse(raw[_METADATA_OFFSET : _METADATA_OFFSET + size])
        except (StructError, DecodeError):
            return False
        if not self._wanted.is_in_time(metadata.publish_time):
            return True
        if metadata.compression:
            return False
        for text in self._texts:  # noqa: SIM110  a generator would take as long as all of the above
            if text not in raw:
                return True
        return False

    @property
    def _is_full(self) -> bool:
        return len(self._found) >= self._count or decoded_bytes(self._found) > DECODED_BYTES_MAX

    def _of_entry(self, place: Place, entry: Buffer) -> Iterator[Found]:
        """Yield the matching messages of an entry, from `place` on; without a filter, also an undecodable entry."""
        wanted = self._wanted
        try:
            metadata, payload = read_metadata(entry, METADATA_LOOKED_INTO_BYTES_MAX)
            if not wanted.is_in_time(metadata.publish_time):
                return
            self._decompressed_bytes += _to_decompress(metadata)
            plain = plain_of(metadata, payload)
            if is_batch(metadata) and self._texts:
                raw = plain.tobytes()
                if any(text not in raw for text in self._texts):
                    return
            every = messages_of(metadata, plain)
        except Undecodable as error:
            if self._is_empty:
                yield Found(place, problem=str(error))
            return
        for one in every:
            index = max(0, one.batch_index)
            if index >= place.batch_index and not one.compacted_out and wanted.matches(one):
                yield Found(Place(place.position, index), one, version_of(metadata))


def decoded_bytes(found: Sequence[Found]) -> int:
    """Return the size of the values in memory, in bytes."""
    return sum(len(one.message.payload or b"") for one in found if one.message is not None)


def _to_decompress(metadata: pb.MessageMetadata) -> int:
    """Return the number of bytes that `plain_of` makes by decompressing."""
    is_unread = not metadata.compression or is_encrypted(metadata) or is_chunk(metadata)
    return 0 if is_unread or metadata.uncompressed_size > DECODED_BYTES_MAX else metadata.uncompressed_size


def plain_of(metadata: pb.MessageMetadata, payload: memoryview) -> memoryview:
    """Decompress a payload of a size that can be shown. Raises `Undecodable`."""
    if metadata.compression and metadata.uncompressed_size > DECODED_BYTES_MAX:
        raise Undecodable(
            f"its decompressed size is {metadata.uncompressed_size} bytes, which is too large to show"
        )
    return plain_payload(metadata, payload)


def version_of(metadata: pb.MessageMetadata) -> int | None:
    return int.from_bytes(metadata.schema_version, "big") if metadata.schema_version else None
