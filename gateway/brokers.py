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
from quire.security.tls import FollowedContext


def host_and_port(url: str) -> str:
    """`pulsar://broker:6650` or `broker:6650` as `broker:6650`."""
    return url.partition("://")[2] or url


class Brokers:
    """The registered brokers."""

    def __init__(
        self, store: MetadataStore, rng: Random, gone: Callable[[str], None], tls: FollowedContext | None
    ) -> None:
        """`gone` is told the address of a broker that is no longer registered; `tls`: brokers are called by it."""
        self._gone = gone
        self._rng = rng
        self.tls = tls
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
        for address in map(self.address_of, before):
            if not self.knows_service(address):
                self._gone(address)

    # -- who is there ----------------------------------------------------------------------------------

    def all(self) -> Sequence[BrokerRecord]:
        return self._known

    def choose(self, but: str = "") -> BrokerRecord:
        """Any broker, another one than that at the address `but` where there is one. Raises `Unavailable`."""
        if not self._known:
            raise Unavailable("no broker is registered in the metadata store; is one running?")
        others = [one for one in self._known if self.address_of(one) != but]
        return self._rng.choice(others or self._known)

    def address_of(self, broker: BrokerRecord) -> str:
        """The URL at which this gateway reaches it: by TLS where both can."""
        return (
            broker.service_url_tls if broker.service_url_tls and self.tls is not None else broker.service_url
        )

    def http_url_of(self, broker: BrokerRecord) -> str:
        """The same for its REST interface, without a slash at its end."""
        is_tls = broker.http_url_tls and self.tls is not None
        return (broker.http_url_tls if is_tls else broker.http_url).rstrip("/")

    def address(self, url: str) -> str:
        """The URL at which the broker is reached that clients know by `url` (scheme left out or not).

        It may be the URL of one of its listeners, which leads there from other networks only; empty: a stranger's.
        """
        wanted = host_and_port(url)
        for one in self._known:
            listeners = (*one.listeners.values(), *one.listeners_tls.values())
            if wanted and wanted in map(host_and_port, (one.service_url, one.service_url_tls, *listeners)):
                return self.address_of(one)
        return ""

    def knows_service(self, url: str) -> bool:
        """Whether `url` (scheme left out or not) is a registered broker's address for clients."""
        return bool(self.address(url))

    def knows_http(self, url: str) -> bool:
        """Whether `url` leads to a registered broker's REST interface."""
        origin = urlsplit(url)[:2]
        return any(
            origin == urlsplit(known)[:2]
            for one in self._known
            for known in (one.http_url, one.http_url_tls)
            if known
        )
