"""Hash functions that Pulsar's clients and brokers share, with identical results.

Routers of partitioned topics hash a message's key with Java's string hash (the default of Pulsar's Java client and of
Quire's client) or murmur3; Key_Shared subscriptions hash the sticky key's bytes with murmur3 into slots. Both functions
drop the sign bit, so that a remainder is never negative.
"""

from typing import Final

import mmh3

SLOTS: Final = 65_536
"""Number of slots of Key_Shared's hash range; slots are 0 .. 65535."""

_U32: Final = 0xFFFFFFFF
_I31: Final = 0x7FFFFFFF


def java_string_hash(text: str) -> int:
    """Compute Java's `String.hashCode` over UTF-16 units, without its sign bit: 0 .. 2^31-1."""
    result = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(raw), 2):
        result = (31 * result + (raw[i] << 8 | raw[i + 1])) & _U32
    return result & _I31


def murmur3_32(data: bytes) -> int:
    """Compute MurmurHash3 x86 32 with seed 0, without its sign bit: 0 .. 2^31-1. The longest key takes 10 ms."""
    return mmh3.hash(data, 0, False) & _I31


def key_slot(key: bytes) -> int:
    """Return the Key_Shared slot of a sticky key."""
    return murmur3_32(key) % SLOTS
