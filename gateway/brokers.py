"""Which brokers there are: the only addresses that a gateway ever connects to.

Followed in the metadata store; when that cannot be read, what was known last is still answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from urllib.parse import urlsplit

from quire.metadata import paths
from quire.metadata.followed import Followed
from quire.metadata.records import BrokerRecord
from quire.metadata.store import MetadataStore
from quire.runtime.errors import Unavailable
from quire.runtime.tasks import Tasks


def host_and_port(url: str) -> str:
    """`pulsar://broker:6650` or `broker:6650` as `broker:6650`."""
    return url.partition("://")[2] or url


class Brokers:
    """The registered brokers."""

    def __init__(self, store: MetadataStore, rng: Random, gone: Callable[[str], None]) -> None:
        """`gone` is told the `host:port` of a broker that is no longer registered."""
        self._gone = gone
        self._rng = rng
        self._tasks = Tasks("gateway brokers")
        self._followed = Followed(store, paths.BROKERS, BrokerRecord, self._tasks, self._look)
        self._known: list[BrokerRecord] = []

    async def start(self) -> None:
        """Read who is there and follow it. Raises `Unavailable`."""
        await self._followed.start()

    async def stop(self) -> None:
        self._followed.stop()
        await self._tasks.stop()

    def _look(self) -> None:
        before, self._known = self._known, list(self._followed.records.values())
        for one in before:
            if not self.knows_service(one.service_url):
                self._gone(host_and_port(one.service_url))

    # -- who is there ----------------------------------------------------------------------------------

    def all(self) -> Sequence[BrokerRecord]:
        return self._known

    def choose(self, but: str = "") -> BrokerRecord:
        """Any broker, another one than `but` (a `host:port`) where there is one. Raises `Unavailable`."""
        if not self._known:
            raise Unavailable("no broker is registered in the metadata store; is one running?")
        others = [one for one in self._known if host_and_port(one.service_url) != but]
        return self._rng.choice(others or self._known)

    def address(self, url: str) -> str:
        """The `host:port` at which the broker is reached that clients know by `url` (scheme left out or not).

        It may be the URL of one of its listeners, which leads there from other networks only; empty: a stranger's.
        """
        wanted = host_and_port(url)
        for one in self._known:
            if wanted in map(host_and_port, (one.service_url, *one.listeners.values())):
                return host_and_port(one.service_url)
        return ""

    def knows_service(self, url: str) -> bool:
        """Whether `url` (scheme left out or not) is a registered broker's address for clients."""
        return bool(self.address(url))

    def knows_http(self, url: str) -> bool:
        """Whether `url` leads to a registered broker's REST interface."""
        origin = urlsplit(url)[:2]
        return any(urlsplit(one.http_url)[:2] == origin for one in self._known)
