"""Topic names in a broker: `wire.topic_name` made whole, the record's path, and partitions.

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
    """Of whatever a client names. Raises `ConfigurationError`."""
    if len(name) > NAME_CHARS_MAX:
        raise ConfigurationError(f"{what} of {len(name)} characters is too long; {NAME_CHARS_MAX} is most")
    if topic_name.has_control(name):
        raise ConfigurationError(f"{what} {name!r} has control characters; use others")


class TopicName(NamedTuple):
    """The four parts of a topic's name; `str` gives the full form."""

    domain: str
    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Raises `ConfigurationError` for what is no topic name."""
        check_name("the topic name", text)
        return cls(*topic_name.split(text))

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def is_persistent(self) -> bool:
        return self.domain != NON_PERSISTENT

    @property
    def path(self) -> str:
        """Where its record lies in the metadata store."""
        return paths.topic(self.tenant, self.namespace, self.local, self.domain)

    @property
    def partition(self) -> int:
        """The number behind `-partition-`, -1 when it has none."""
        match = _PARTITION.fullmatch(self.local)
        return int(match[2]) if match else -1

    @property
    def parent(self) -> TopicName | None:
        """The partitioned topic that this is a partition of, by its name."""
        match = _PARTITION.fullmatch(self.local)
        return self._replace(local=match[1]) if match else None

    def is_prepared(self, shown: Callable[[TopicName], int]) -> bool:
        """Whether it is a partition that its parent is only being given; `shown`: how many that shows, 0: none."""
        parent = self.parent
        return parent is not None and 0 < shown(parent) <= self.partition

    def of_partition(self, index: int) -> TopicName:
        return self._replace(local=f"{self.local}-partition-{index}")
