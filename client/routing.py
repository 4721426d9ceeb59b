"""Names of topics and partitions, and the selection of a message's partition.

A message with a key goes to the partition of the key's hash, so that messages of a key stay in order. Messages without
a key are distributed round robin, but the partition changes only when its batch is full or due, because otherwise each
batch would be small. The hashes are Pulsar's, so that all clients select the same partition for a key.
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
    """Expand `orders` or `tenant/namespace/orders` to a full name. Raises `ConfigurationError`."""
    domain, *parts = topic_name.split(topic)
    name = f"{domain}://{'/'.join(parts)}"
    if len(name) > NAME_CHARS_MAX:
        raise ConfigurationError(
            f"the topic name has {len(name)} characters; at most {NAME_CHARS_MAX} are allowed"
        )
    return name


def partition_name(topic: str, index: int) -> str:
    return f"{topic}{_PARTITION}{index}"


def partition_index(topic: str) -> int:
    """Return the partition index in a full name, or -1 if it does not name a partition."""
    _, separator, digits = topic.rpartition(_PARTITION)
    return int(digits) if separator and digits.isdigit() else -1


def parent_name(topic: str) -> str:
    """Return the name of the partitioned topic, or `topic` itself if it is not a partition."""
    parent, separator, digits = topic.rpartition(_PARTITION)
    return parent if separator and digits.isdigit() else topic


class Target(Protocol):
    """Interface of a partition to the router."""

    @property
    def is_gathering(self) -> bool:
        """True while a batch is open."""
        ...


T = TypeVar("T", bound=Target)

_HASHES: Final[dict[str, Callable[[str], int]]] = {
    "java": lru_cache(1 << 16)(java_string_hash),
    "murmur3": lru_cache(1 << 16)(lambda key: murmur3_32(key.encode())),
}


class Router:
    """Selects a partition for each message. `first` is the first partition's index (random, to distribute clients)."""

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
