"""The hashes that Pulsar's clients and brokers share, bit for bit.

Routers of partitioned topics hash a message's key with Java's string hash (the default of stock Java and of
our client) or murmur3; Key_Shared subscriptions hash the sticky key's bytes with murmur3 into slots. Both drop
the sign bit, so that a remainder is never negative.
"""

from typing import Final

SLOTS: Final = 65_536
"""Key_Shared's hash range; slots are 0 .. 65535."""

_U32: Final = 0xFFFFFFFF
_I31: Final = 0x7FFFFFFF


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode` over UTF-16 units, without its sign bit: 0 .. 2^31-1."""
    result = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(raw), 2):
        result = (31 * result + (raw[i] << 8 | raw[i + 1])) & _U32
    return result & _I31


def murmur3_32(data: bytes) -> int:
    """MurmurHash3 x86 32 with seed 0, without its sign bit: 0 .. 2^31-1."""
    result = 0
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        result ^= _mix(int.from_bytes(data[i : i + 4], "little"))
        result = (_rotate(result, 13) * 5 + 0xE6546B64) & _U32
    if whole < len(data):
        result ^= _mix(int.from_bytes(data[whole:], "little"))
    result ^= len(data)
    result = (result ^ result >> 16) * 0x85EBCA6B & _U32
    result = (result ^ result >> 13) * 0xC2B2AE35 & _U32
    return (result ^ result >> 16) & _I31


def key_slot(key: bytes) -> int:
    """The Key_Shared slot of a sticky key."""
    return murmur3_32(key) % SLOTS


def _mix(k: int) -> int:
    return _rotate(k * 0xCC9E2D51 & _U32, 15) * 0x1B873593 & _U32


def _rotate(x: int, n: int) -> int:
    return (x << n | x >> 32 - n) & _U32
