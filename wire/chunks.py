"""Recognition of chunks: entries that are parts of one large message.

This is Pulsar's [PIP-37](https://github.com/apache/pulsar/wiki/PIP-37%3A-Large-message-size-handling-in-Pulsar).
The chunks of a message have the same uuid, a number from 0, and their count (`MessageMetadata`). A producer sends them
in order; other producers' entries may lie between them. A consumer needs all chunks of a message, so a broker that
dispatches entries to several consumers must know which ones belong together.

Few entries are chunks, so the check of the others must be cheap. The protobuf tag of the chunk number is two bytes,
0xe8 0x01: only metadata that contain these are parsed, so no chunk is missed. The tag is searched in the joined
metadata of many entries (0.5 µs per entry). A first chunk has the producer's maximum size, so a search for first chunks
can skip small entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from quire.runtime.limits import CHUNK_UUID_CHARS_MAX, METADATA_LOOKED_INTO_BYTES_MAX
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import is_chunk

_METADATA_OFFSET: Final = 10
_SIZE: Final = Struct(">6xI")
_TAG: Final = b"\xe8\x01"
_parse: Final = pb.MessageMetadata.FromString


class Chunk(NamedTuple):
    """Fields of a chunk that identify its message, and its position in the message."""

    uuid: str
    is_first: bool
    is_last: bool


def chunks_of(entries: Sequence[memoryview]) -> dict[int, Chunk]:
    """Return the chunks among `entries`, by their index."""
    if not _occurs(entries):
        return {}
    found = {at: chunk_of(entry) for at, entry in enumerate(entries)}
    return {at: chunk for at, chunk in found.items() if chunk is not None}


def _occurs(entries: Sequence[memoryview]) -> bool:
    """Return whether the tag occurs in the metadata of any entry, or across a boundary in the joined metadata."""
    size_of = _SIZE.unpack_from
    try:
        pieces = [entry[_METADATA_OFFSET : _METADATA_OFFSET + size_of(entry)[0]] for entry in entries]
    except StructError:
        return True  # Some entry is not a message: parse the entries one by one.
    return _TAG in b"".join(pieces)


def chunk_of(entry: memoryview) -> Chunk | None:
    """Parse a chunk; return None for an entry that is not a chunk, or is unreadable."""
    if len(entry) < _METADATA_OFFSET:
        return None
    (size,) = _SIZE.unpack_from(entry)
    if size > METADATA_LOOKED_INTO_BYTES_MAX:
        return None
    raw = entry[_METADATA_OFFSET : _METADATA_OFFSET + size].tobytes()
    return _parsed(raw) if _TAG in raw else None


def _parsed(raw: bytes) -> Chunk | None:
    try:
        metadata = _parse(raw)
    except DecodeError:
        return None
    uuid, number, count = metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg
    if not is_chunk(metadata) or not 0 <= number < count or not 0 < len(uuid) <= CHUNK_UUID_CHARS_MAX:
        return None
    return Chunk(uuid, number == 0, number == count - 1)
