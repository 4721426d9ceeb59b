"""Key and value in one byte string: payloads of Pulsar's [KeyValue schema], and definitions of such schemas. No I/O.

    4  size of the key     i32, big-endian; -1 is null, as Java's clients write it
       key
    4  size of the value   likewise
       value

[KeyValue schema]: https://pulsar.apache.org/docs/next/schema-understand/#keyvalue-schema
"""

from __future__ import annotations

from struct import Struct
from typing import Final

_SIZE: Final = Struct(">i")


def join(key: bytes, value: bytes) -> bytes:
    """Join a key and a value into a payload, or their definitions into the definition of a KeyValue schema."""
    return b"".join((_SIZE.pack(len(key)), key, _SIZE.pack(len(value)), value))


def split(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Split the result of `join` into key and value; None stands for null. Raises ValueError if it is invalid."""
    key, at = _part(data, 0)
    value, at = _part(data, at)
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes are left over after key and value")
    return key, value


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the part at an offset, and the offset after it."""
    start = at + _SIZE.size
    if start > len(data):
        raise ValueError("key and value are cut short")
    (size,) = _SIZE.unpack_from(data, at)
    if size < 0:
        return None, start
    if start + size > len(data):
        raise ValueError("key and value are cut short")
    return data[start : start + size], start + size
