"""Payloads of measured messages, which begin with the time at which the message was due.

    4 bytes   MAGIC
    8 bytes   time in ns since 1970, big-endian
    the rest  random bytes, text, or zeros

A consumer subtracts the time from the time of arrival. Other programs' messages have no `MAGIC`, and no latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from struct import Struct
from typing import Final

MAGIC: Final = b"qbm1"
_STAMP: Final = Struct(">4sQ")
STAMP_BYTES: Final = _STAMP.size

WORDS: Final = (
    "acknowledge archive batch block bookie broker bundle bytes checksum cluster compact consumer cursor delay "
    "dispatch entry fence gateway journal key lease ledger message offset partition producer quorum read receipt "
    "record repair replica schema seal segment session snapshot subscription tenant topic window write"
).split()


def _text(rng: Random, size: int) -> bytes:
    return " ".join(rng.choices(WORDS, k=size // 3 + 1)).encode()[:size]


BODIES: Final[Mapping[str, Callable[[Random, int], bytes]]] = {
    "random": lambda rng, size: rng.randbytes(size),
    "text": _text,
    "zeros": lambda _, size: bytes(size),
}
"""Contents of the rest, by name. Random bytes do not compress; text does, to about a third."""


def body(kind: str, size: int, seed: int) -> bytes:
    """Return the part of the payload that all messages of a producer share. A smaller payload has no time."""
    return BODIES[kind](Random(seed), size - STAMP_BYTES if size >= STAMP_BYTES else size)


def stamp(due_ns: int) -> bytes:
    """Return the beginning of a payload."""
    return _STAMP.pack(MAGIC, due_ns)


def due_of(payload: bytes | None) -> int | None:
    """Return the time in ns since 1970 at which the message was due; None for another program's message."""
    if payload is None or len(payload) < STAMP_BYTES:
        return None
    magic, due_ns = _STAMP.unpack_from(payload)
    return due_ns if magic == MAGIC else None
