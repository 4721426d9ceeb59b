"""The sticky key of an entry: what a Key_Shared subscription hashes, exactly as Pulsar takes it.

    the metadata has                     the key is
    an ordering key                      that
    a partition key                      its bytes; decoded first when it says that it is base64
    neither                              "PRODUCER-SEQUENCE": no two such entries belong together
    nothing that can be read             "NONE_KEY"

Of a batch the metadata holds the first message's key; clients that want order by key put messages of one key into a
batch. This is the only parse of an entry's metadata on the way out, and it costs about a microsecond: the generated
parser is as fast as reading field by field here, and it cannot be fooled. Slots of keys that come again are looked up.
"""

from __future__ import annotations

from base64 import b64decode
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final

from google.protobuf.message import DecodeError

from quire.runtime.limits import METADATA_LOOKED_INTO_BYTES_MAX
from quire.wire import block as blocks
from quire.wire import hashing
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import BlockHeader, Buffer

NONE_KEY: Final = b"NONE_KEY"
KEYS_CACHED: Final = 16_384
"""Keys whose slot is remembered, for all subscriptions of the process: a few megabytes at most."""

_METADATA_OFFSET: Final = 10
_SIZE: Final = Struct(">6xI")
_parse: Final = pb.MessageMetadata.FromString
_slot = lru_cache(KEYS_CACHED)(hashing.key_slot)


def slots_of(buffer: Buffer, header: BlockHeader) -> list[int]:
    """The slot of each entry of a block."""
    view, begin = memoryview(buffer), header.entries_offset
    if header.entry_count == 1:
        return [slot_at(view, begin)]
    ends = blocks.ends(buffer, header)
    return [slot_at(view, begin), *[slot_at(view, begin + end) for end in ends[:-1]]]


def slot_at(buffer: memoryview, offset: int) -> int:
    """The slot (0 .. 65535) of the entry that begins at `offset`."""
    key = key_at(buffer, offset)
    # A huge key would make the cache one of bytes rather than of keys.
    return _slot(key) if len(key) <= 256 else hashing.key_slot(key)


def key_at(buffer: memoryview, offset: int) -> bytes:
    """The sticky key of the entry that begins at `offset`."""
    try:
        (size,) = _SIZE.unpack_from(buffer, offset)
        begin = offset + _METADATA_OFFSET
        if size > METADATA_LOOKED_INTO_BYTES_MAX:
            return NONE_KEY
        metadata = _parse(buffer[begin : begin + size].tobytes())
        if metadata.HasField("ordering_key"):
            return metadata.ordering_key
        if not metadata.HasField("partition_key"):
            return f"{metadata.producer_name}-{metadata.sequence_id}".encode()
        if metadata.partition_key_b64_encoded:
            return b64decode(metadata.partition_key)
        return metadata.partition_key.encode()
    except (DecodeError, StructError, ValueError, AttributeError):
        # The bytes are a client's own. Text that is not UTF-8 comes as bytes, which cannot be encoded.
        return NONE_KEY
