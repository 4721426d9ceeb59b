"""Registered brokers, the only addresses that a gateway connects to.

The list follows the metadata store; while the store is unreadable, the last list is used.
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
    """Return `broker:6650` for `pulsar://broker:6650` or `broker:6650`."""
    return url.partition("://")[2] or url


class Brokers:
    """List of the registered brokers."""

    def __init__(
        self, store: MetadataStore, rng: Random, gone: Callable[[str], None], tls: FollowedContext | None
    ) -> None:
        """Create an empty list.

        `gone` is called with the address of a broker that is no longer registered. `tls` is the context for connections
        to brokers by TLS.
        """
        self._gone = gone
        self._rng = rng
        self.tls = tls
        self._tasks = Tasks("gateway brokers")
        self._followed = Followed(store, paths.BROKERS, BrokerRecord, self._tasks, self._look)
        self._known: list[BrokerRecord] = []

    async def start(self) -> None:
        """Read the registered brokers, and follow changes. Raises `Unavailable`."""
        await self._followed.start()

    async def stop(self) -> None:
        self._followed.stop()
        await self._tasks.stop()

    def _look(self) -> None:
        before, self._known = self._known, list(self._followed.records.values())
        for address in map(self.address_of, before):
            if not self.knows_service(address):
                self._gone(address)

    # -- the registered brokers ----------------------------------------------------------------------------------

    def all(self) -> Sequence[BrokerRecord]:
        return self._known

    def choose(self, but: str = "") -> BrokerRecord:
        """Return a random broker, but not the one at the address `but` if there is another. Raises `Unavailable`."""
        if not self._known:
            raise Unavailable(
                "no broker is registered in the metadata store; start one, or check the gateway's --metadata"
            )
        others = [one for one in self._known if self.address_of(one) != but]
        return self._rng.choice(others or self._known)

    def address_of(self, broker: BrokerRecord) -> str:
        """Return the URL at which the gateway connects to a broker: by TLS if both support it."""
        return (
            broker.service_url_tls if broker.service_url_tls and self.tls is not None else broker.service_url
        )

    def http_url_of(self, broker: BrokerRecord) -> str:
        """Return the URL of a broker's REST interface, without a trailing slash."""
        is_tls = broker.http_url_tls and self.tls is not None
        return (broker.http_url_tls if is_tls else broker.http_url).rstrip("/")

    def address(self, url: str) -> str:
        """Return the URL at which the gateway connects to the broker whose URL for clients is `url`.

        `url` may lack the scheme, and may be the URL of an advertised listener. Returns "" if no registered broker has
        it.
        """
        wanted = host_and_port(url)
        for one in self._known:
            listeners = (*one.listeners.values(), *one.listeners_tls.values())
            if wanted and wanted in map(host_and_port, (one.service_url, one.service_url_tls, *listeners)):
                return self.address_of(one)
        return ""

    def knows_service(self, url: str) -> bool:
        """Return whether `url` (with or without scheme) is a registered broker's address for clients."""
        return bool(self.address(url))

    def knows_http(self, url: str) -> bool:
        """Return whether `url` is a registered broker's REST interface."""
        origin = urlsplit(url)[:2]
        return any(
            origin == urlsplit(known)[:2]
            for one in self._known
            for known in (one.http_url, one.http_url_tls)
            if known
        )
