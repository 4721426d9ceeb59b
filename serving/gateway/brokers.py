"""Which brokers there are: the only addresses that a gateway ever connects to.

Followed in the metadata store by watches. When the store cannot be read, what was known last is still answered: a
gateway must not make an outage of the metadata larger than it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from urllib.parse import urlsplit

from quire.metadata import paths
from quire.metadata.records import BrokerRecord, decode
from quire.metadata.store import MetadataStore, SessionEvent
from quire.runtime.errors import NotFound, QuireError, Unavailable
from quire.runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_S = 1.0


def host_and_port(url: str) -> str:
    """`pulsar://broker:6650` or `broker:6650` as `broker:6650`."""
    return url.partition("://")[2] or url


class Brokers:
    """The registered brokers."""

    def __init__(self, store: MetadataStore, rng: Random, gone: Callable[[str], None]) -> None:
        """`gone` is told the `host:port` of a broker that is no longer registered."""
        self._store = store
        self._gone = gone
        self._rng = rng
        self._records: dict[str, BrokerRecord] = {}
        self._node_watches: dict[str, Callable[[], None]] = {}
        self._changed = asyncio.Event()
        self._tasks = Tasks("gateway brokers")
        self._forget: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Read who is there and follow it. Raises `Unavailable`."""
        self._forget.append(self._store.watch(paths.BROKERS, lambda _: self._changed.set()))
        self._forget.append(self._store.on_session(self._on_session))
        await self._refresh()
        self._tasks.start(self._follow(), "follow the brokers")

    async def stop(self) -> None:
        for forget in (*self._forget, *self._node_watches.values()):
            forget()
        await self._tasks.stop()

    # -- who is there ----------------------------------------------------------------------------------

    def all(self) -> Sequence[BrokerRecord]:
        return list(self._records.values())

    def choose(self, but: str = "") -> BrokerRecord:
        """Any broker, another one than `but` (a `host:port`) where there is one. Raises `Unavailable`."""
        if not self._records:
            raise Unavailable("no broker is registered in the metadata store; is one running?")
        others = [one for one in self.all() if host_and_port(one.service_url) != but]
        return self._rng.choice(others or self.all())

    def knows_service(self, url: str) -> bool:
        """Whether `url` (scheme left out or not) is a registered broker's address for clients."""
        wanted = host_and_port(url)
        return any(host_and_port(one.service_url) == wanted for one in self._records.values())

    def knows_http(self, url: str) -> bool:
        """Whether `url` leads to a registered broker's REST interface."""
        origin = urlsplit(url)[:2]
        return any(urlsplit(one.http_url)[:2] == origin for one in self._records.values())

    # -- following -------------------------------------------------------------------------------------

    def _on_session(self, event: SessionEvent) -> None:
        if event is not SessionEvent.SUSPENDED:
            self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._refresh()
            except QuireError as error:
                log.warning("cannot read which brokers are up, going on with those known: %s", error)
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _refresh(self) -> None:
        found: dict[str, BrokerRecord] = {}
        names = await self._store.children(paths.BROKERS)
        for name in names:
            path = f"{paths.BROKERS}/{name}"
            if name not in self._node_watches:
                self._node_watches[name] = self._store.watch(path, lambda _: self._changed.set())
            try:
                found[name] = decode(BrokerRecord, (await self._store.get(path)).value, path)
            except NotFound:
                continue
        for gone in self._node_watches.keys() - set(names):
            self._node_watches.pop(gone)()
        before, self._records = self._records, found
        for one in before.values():
            if not self.knows_service(one.service_url):
                self._gone(host_and_port(one.service_url))
