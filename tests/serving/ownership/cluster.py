"""Several brokers in this process on one cluster in memory, each with a session of its own, for stock clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pulsar
from aiohttp import web

from quire.ledger.ledgers import Ledgers
from quire.metadata.store import Node
from quire.metadata.watches import Watches
from quire.runtime.clock import SystemClock
from quire.security.security import Security
from quire.serving.admin.app import make_app
from quire.serving.broker import Broker
from quire.serving.ownership.cluster_ownership import ClusterOwnership
from quire.serving.settings import BrokerSettings
from quire.serving.topic.services import Services
from quire.testing.cluster import MemoryCluster
from quire.testing.metadata import MemoryStore
from quire.tiering.archive import Archive
from tests.serving.conftest import BrokerHouse


class Member:
    """One broker with what it stands on."""

    def __init__(self, name: str, broker: Broker, ledgers: Ledgers, rest: web.AppRunner) -> None:
        self.name = name
        self.broker = broker
        self.ledgers = ledgers
        self.rest = rest

    @property
    def store(self) -> MemoryStore:
        assert isinstance(self.ledgers.store, MemoryStore)
        return self.ledgers.store

    @property
    def url(self) -> str:
        return self.broker.service_url

    @property
    def ownership(self) -> ClusterOwnership:
        assert isinstance(self.broker.ownership, ClusterOwnership)
        return self.broker.ownership

    def fall_asleep(self) -> None:
        """The process hears of nothing while its session ends; it still holds what it held, by its own memory."""
        store = self.store
        self._deaf = store.watches
        store.watches = Watches()
        store.expire()

    def wake(self) -> None:
        """It hears that its session is over."""
        self.store.watches = self._deaf
        self.store.expire()

    def answer_late(self, dice: Random) -> None:
        """Reads take some turns of the loop, each its own number, as they do over a network."""
        read = self.store.get

        async def get(path: str) -> Node:
            try:
                return await read(path)
            finally:
                for _ in range(dice.randrange(20)):
                    await asyncio.sleep(0)

        self.store.get = get  # type: ignore[method-assign]

    def topics(self) -> list[str]:
        return sorted(topic.name for topic in self.broker.registry.persistent())


class Brokers:
    """`start`, `stop`, `kill` and `freeze` brokers; `client` makes a stock client that knows all that were started."""

    def __init__(
        self,
        session_timeout_ms: int = 1_000,
        archive: Archive | None = None,
        security: Security | None = None,
    ) -> None:
        self.archive = archive
        self.security = security
        self.cluster = MemoryCluster(3)
        self.cluster.store = MemoryStore(session_timeout_ms=session_timeout_ms)
        self.members: list[Member] = []
        self.clients: list[pulsar.Client] = []

    async def start(self, **settings: Any) -> Member:
        ledgers = self.cluster.join()
        clock = SystemClock()
        name = f"broker-{len(self.members)}"
        ownership = ClusterOwnership(ledgers.store, clock, name)
        chosen = BrokerSettings(**{"listen": "127.0.0.1:0", "namespace_bundles": 8, **settings})
        broker = Broker(
            Services(chosen, ledgers.store, ledgers, self.archive, clock, security=self.security), ownership
        )
        rest = web.AppRunner(make_app(broker), access_log=None, shutdown_timeout=0.1)
        await rest.setup()
        site = web.TCPSite(rest, "127.0.0.1", 0)
        await site.start()
        broker.addresses.http_url = f"http://127.0.0.1:{rest.addresses[0][1]}"
        await broker.start()
        self.members.append(Member(name, broker, ledgers, rest))
        return self.members[-1]

    async def stop(self, member: Member) -> None:
        self.members.remove(member)
        await member.broker.stop()
        await self._end(member)

    async def kill(self, member: Member) -> None:
        """As SIGKILL: connections break at once, the session ends by its time-out alone."""
        self.members.remove(member)
        house = BrokerHouse()
        house.running.append(member.broker)
        member.store.watches.clear()
        await house.kill(member.broker)
        await member.ownership._tasks.stop()
        asyncio.get_running_loop().call_later(
            member.store.session_timeout_ms / 1000, lambda: asyncio.ensure_future(self._end(member))
        )

    async def _end(self, member: Member) -> None:
        await member.ledgers.stop()
        await member.rest.cleanup()
        await member.store.close()

    def client(self, *through: Member, authentication: Any = None) -> pulsar.Client:
        urls = ",".join(member.url.removeprefix("pulsar://") for member in through or self.members)
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.clients.append(
            pulsar.Client(f"pulsar://{urls}", authentication, logger=quiet, operation_timeout_seconds=20)
        )
        return self.clients[-1]

    def owner(self, topic: str) -> Member | None:
        return next((member for member in self.members if topic in member.topics()), None)

    async def close(self) -> None:
        for client in self.clients:
            await asyncio.to_thread(client.close)
        for member in list(self.members):
            await self.stop(member)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until `condition` holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what a stock client's threads do makes no event here
            await asyncio.sleep(0.005)
