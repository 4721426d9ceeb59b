"""Which entries are chunks: pieces of a message that was too large for one entry.

A producer gives all chunks of a message one uuid, a number from 0 and their count (`MessageMetadata`), and sends them
in order; other producers' entries may lie between them. Only who has all of them can join them, so a broker that
dispatches one entry here and the next one there must know which belong together.

Nearly no entry is a chunk, and what is none must cost next to nothing. The tag of the number is two bytes, 0xe8 0x01:
only metadata that holds these is parsed, which cannot be fooled. They are looked for in the metadata of many entries,
laid side by side (half a µs an entry). A first chunk is as large as its producer may send, so who looks for those alone
looks into large entries only.
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
    """What an entry says of the message that it is a piece of."""

    uuid: str
    is_first: bool
    is_last: bool


def chunks_of(entries: Sequence[memoryview]) -> dict[int, Chunk]:
    """Those of `entries` that are chunks, by their place among them."""
    if not _occurs(entries):
        return {}
    found = {at: chunk_of(entry) for at, entry in enumerate(entries)}
    return {at: chunk for at, chunk in found.items() if chunk is not None}


def _occurs(entries: Sequence[memoryview]) -> bool:
    """Whether the two bytes are in any metadata; true as well when they only meet where two lie side by side."""
    size_of = _SIZE.unpack_from
    try:
        pieces = [entry[_METADATA_OFFSET : _METADATA_OFFSET + size_of(entry)[0]] for entry in entries]
    except StructError:
        return True  # Some entry is no message: they are looked at one by one.
    return _TAG in b"".join(pieces)


def chunk_of(entry: memoryview) -> Chunk | None:
    """None for an entry that is no chunk, or is not to be read."""
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
