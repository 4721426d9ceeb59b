"""Names of topics and partitions, and which partition a message goes to.

A message with a key goes where the key's hash says, so that one key's messages stay in order. One without goes round
robin, but stays on a partition until its batch is full or due: spreading single messages would make every
batch small. Hashes are Pulsar's own, so that stock clients agree on every key's partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Protocol, TypeVar

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import NAME_CHARS_MAX
from quire.wire import topic_name
from quire.wire.hashing import java_string_hash, murmur3_32
from quire.wire.message import OutgoingMessage

_PARTITION: Final = "-partition-"


def full_name(topic: str) -> str:
    """`orders`, `tenant/namespace/orders` or a full name as a full name. Raises `ConfigurationError`."""
    domain, *parts = topic_name.split(topic)
    name = f"{domain}://{'/'.join(parts)}"
    if len(name) > NAME_CHARS_MAX:
        raise ConfigurationError(f"a topic's name has {len(name)} characters; allowed are {NAME_CHARS_MAX}")
    return name


def partition_name(topic: str, index: int) -> str:
    return f"{topic}{_PARTITION}{index}"


def partition_index(topic: str) -> int:
    """The partition that the full name names; -1 when it is none."""
    _, separator, digits = topic.rpartition(_PARTITION)
    return int(digits) if separator and digits.isdigit() else -1


def parent_name(topic: str) -> str:
    """The topic that a partition belongs to; a topic that is none, itself."""
    parent, separator, digits = topic.rpartition(_PARTITION)
    return parent if separator and digits.isdigit() else topic


class Target(Protocol):
    """A partition, as a router sees it."""

    @property
    def is_gathering(self) -> bool:
        """A batch is open."""
        ...


T = TypeVar("T", bound=Target)

_HASHES: Final[dict[str, Callable[[str], int]]] = {
    "java": lru_cache(1 << 16)(java_string_hash),
    "murmur3": lru_cache(1 << 16)(lambda key: murmur3_32(key.encode())),
}


class Router:
    """Chooses a partition for each message. `first` says where to begin (random, so that clients spread)."""

    def __init__(self, hashing: str, first: int, *, single: bool = False) -> None:
        self._hash = _HASHES[hashing]
        self._turn = first
        self._single = single

    def choose(self, message: OutgoingMessage, partitions: Sequence[T]) -> T:
        count = len(partitions)
        if count == 1:
            return partitions[0]
        if message.key is not None:
            return partitions[self._hash(message.key) % count]
        here = partitions[self._turn % count]
        if self._single or here.is_gathering:
            return here
        self._turn += 1
        return partitions[self._turn % count]
