"""Base-128 varints of protobuf, for code that reads or writes one without a protobuf object.

Little-endian groups of seven bits; the high bit of a byte means that more bytes follow; at most ten bytes for a u64.
`LAST` and `MORE` contain the 128 possible final and non-final bytes as objects, so that an encoder of consecutive
numbers only looks up one byte for each (`quire.wire.entry_frames`).
"""

from typing import Final

LAST: Final = tuple(bytes((i,)) for i in range(128))
MORE: Final = tuple(bytes((i | 128,)) for i in range(128))

VARINT_BYTES_MAX: Final = 10
U64_MASK: Final = (1 << 64) - 1


def encode(number: int) -> bytes:
    """Encode `number` (0 .. 2^64-1) as a varint of 1 to 10 bytes."""
    if 0 <= number < 1 << 14:
        return MORE[number & 127] + LAST[number >> 7] if number > 127 else LAST[number]
    assert 0 <= number <= U64_MASK
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def decode(buffer: bytes | bytearray | memoryview, offset: int = 0) -> tuple[int, int]:
    """Decode the varint at `offset`; return the number, cut to 64 bits as in protobuf, and the offset after it.

    Raises ValueError if the varint is truncated or longer than ten bytes.
    """
    try:
        if (low := buffer[offset]) < 128:
            return low, offset + 1
        if (byte := buffer[offset + 1]) < 128:
            return byte << 7 | low & 127, offset + 2
        number = (byte & 127) << 7 | low & 127
        for i in range(2, VARINT_BYTES_MAX):
            byte = buffer[offset + i]
            number |= (byte & 127) << 7 * i
            if byte < 128:
                return number & U64_MASK, offset + i + 1
    except IndexError:
        pass
    raise ValueError("a varint has no end")
