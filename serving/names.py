"""Topic names: `persistent://tenant/namespace/name`, and the short forms that clients allow.

name                        persistent://public/default/name
tenant/namespace/name       persistent://tenant/namespace/name
NAME-partition-3            partition 3 of the partitioned topic NAME
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from quire.metadata import paths
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import NAME_CHARS_MAX

_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})")
NON_PERSISTENT: Final = "non-persistent"
DOMAINS: Final = ("persistent", NON_PERSISTENT)


class TopicName(NamedTuple):
    """The four parts of a topic's name; `str` gives the full form."""

    domain: str
    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Raises `ConfigurationError` for what is no topic name."""
        domain, separator, rest = text.partition("://")
        if not separator:
            parts = text.split("/")
            if len(parts) == 1:
                parts = ["public", "default", text]
            domain, rest = "persistent", "/".join(parts)
        tenant, _, rest = rest.partition("/")
        namespace, _, local = rest.partition("/")
        if domain not in DOMAINS or not (tenant and namespace and local) or len(text) > NAME_CHARS_MAX:
            raise ConfigurationError(f"{text!r} is no topic name; write persistent://tenant/namespace/topic")
        return cls(domain, tenant, namespace, local)

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

    def of_partition(self, index: int) -> TopicName:
        return self._replace(local=f"{self.local}-partition-{index}")
