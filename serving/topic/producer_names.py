"""Generated producer names, CLUSTER-BROKER-NUMBER, for clients that choose none.

Pulsar's [DistributedIdGenerator] uses the same scheme. Names are short, because each entry contains its producer's
name. When a broker starts, it takes `BROKER` from a counter in the metadata store. The counter is at least the number
of hours since 2025. So, even after a loss of all metadata, no name is generated that a producer still uses.

[DistributedIdGenerator]:
https://github.com/apache/pulsar/blob/master/pulsar-broker/src/main/java/org/apache/pulsar/broker/service/DistributedIdGenerator.java
"""

from __future__ import annotations

from typing import Final

from quire.metadata import paths
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, CorruptionError, NotFound, OutcomeUnknown, VersionConflict

SINCE_MS: Final = 1_735_689_600_000
"""2025-01-01T00:00:00Z, in ms since 1970."""

HOUR_MS: Final = 3_600_000
DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class ProducerNames:
    """Generator of one broker's producer names; call `begin` first."""

    def __init__(self, cluster: str, store: MetadataStore, clock: Clock) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._prefix = ""
        self._given = 0

    async def begin(self) -> None:
        """Allocate a number that no earlier start of a broker used. Raises `Unavailable`, `CorruptionError`."""
        self._prefix = f"{self._cluster}-{_letters(await self._take())}"

    def next(self) -> str:
        """Return a name that no other producer of the cluster was given."""
        assert self._prefix, "`begin` must be called before `next`"
        self._given += 1
        return f"{self._prefix}-{self._given}"

    async def _take(self) -> int:
        store, path = self._store, paths.PRODUCER_NAMES
        least = max(0, self._clock.now_ms() - SINCE_MS) // HOUR_MS
        while True:
            try:
                node = await store.get(path)
                taken = max(_number(node.value) + 1, least)
                await store.put(path, b"%d" % taken, node.version)
                return taken
            except NotFound:
                pass
            except (VersionConflict, OutcomeUnknown):
                continue
            try:
                await store.create(path, b"%d" % least)
                return least
            except (AlreadyExists, OutcomeUnknown):
                continue


def _number(value: bytes) -> int:
    if not value.isdigit():
        raise CorruptionError(
            f"metadata node {paths.PRODUCER_NAMES} does not contain a number: {value[:20]!r}"
        )
    return int(value)


def _letters(number: int) -> str:
    """Format a number in base 36."""
    found = ""
    while number or not found:
        number, digit = divmod(number, len(DIGITS))
        found = DIGITS[digit] + found
    return found
