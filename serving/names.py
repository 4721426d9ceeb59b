"""Topic names: parsing, checks, the path of a topic's metadata record, and the suffix of partitions.

NAME-partition-3 is partition 3 of the partitioned topic NAME.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from quire.metadata import paths
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import NAME_CHARS_MAX
from quire.wire import topic_name

_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})")
NON_PERSISTENT: Final = "non-persistent"


def check_name(what: str, name: str) -> None:
    """Check the length and the characters of a name that a client sent. Raises `ConfigurationError`."""
    if len(name) > NAME_CHARS_MAX:
        raise ConfigurationError(
            f"{what} of {len(name)} characters is too long; the limit is {NAME_CHARS_MAX}"
        )
    if topic_name.has_control(name):
        raise ConfigurationError(f"{what} {name!r} contains control characters; remove them")


def refuse_dots(what: str, name: str) -> None:
    """Reject a new name with a segment `.` or `..`, which browsers and proxies resolve. Raises `ConfigurationError`."""
    if not {".", ".."}.isdisjoint(name.split("/")):
        raise ConfigurationError(
            f"invalid name {name!r} of a {what}: it contains . or .., which URL libraries resolve in paths"
        )


class TopicName(NamedTuple):
    """Four parts of a topic name; `str` returns the full name."""

    domain: str
    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parse a topic name. Raises `ConfigurationError` if it is invalid."""
        check_name("the topic name", text)
        return cls(*topic_name.split(text))

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def is_persistent(self) -> bool:
        return self.domain != NON_PERSISTENT

    @property
    def path(self) -> str:
        """Path of the topic's record in the metadata store."""
        return paths.topic(self.tenant, self.namespace, self.local, self.domain)

    @property
    def partition(self) -> int:
        """Index of the partition, from the suffix `-partition-N`; -1 if there is none."""
        match = _PARTITION.fullmatch(self.local)
        return int(match[2]) if match else -1

    @property
    def parent(self) -> TopicName | None:
        """Name of the partitioned topic that this partition belongs to; None if there is no suffix `-partition-N`."""
        match = _PARTITION.fullmatch(self.local)
        return self._replace(local=match[1]) if match else None

    def is_prepared(self, shown: Callable[[TopicName], int]) -> bool:
        """Return whether this is a new partition that its partitioned topic, which is growing, does not list yet.

        `shown` returns the number of partitions that a topic lists, 0 if it is not partitioned.
        """
        parent = self.parent
        return parent is not None and 0 < shown(parent) <= self.partition

    def of_partition(self, index: int) -> TopicName:
        return self._replace(local=f"{self.local}-partition-{index}")
