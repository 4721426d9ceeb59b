"""A gateway in this process, before brokers that a test registers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

import pytest

from quire.gateway.gateway import Gateway
from quire.metadata import paths
from quire.metadata.records import BrokerRecord, encode
from quire.process.listeners import listen, url_of
from quire.security.security import Security
from quire.testing.metadata import MemoryStore
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

from .raw import Raw


class Front:
    """A running gateway and the metadata store that tells it of brokers."""

    def __init__(self, security: Security | None = None) -> None:
        self.store = MemoryStore()
        self.gateways_store = self.store.join()
        self.gateway = Gateway(self.gateways_store, Random(1), connections_max=10, security=security)
        self.service_url = ""
        self.http_url = ""

    async def register(
        self,
        name: str,
        service_url: str,
        http_url: str = "http://127.0.0.1:1",
        listeners: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        record = BrokerRecord(
            broker_id=name, service_url=service_url, http_url=http_url, listeners=dict(listeners)
        )
        await self.store.create(paths.broker(name), encode(record), ephemeral=True)
        await self.follow()

    async def unregister(self, name: str) -> None:
        await self.store.delete(paths.broker(name))
        await self.follow()

    async def follow(self) -> None:
        """Wait until the gateway has read what its watches tell it of."""
        names = set(await self.store.children(paths.BROKERS))
        for _ in range(1000):
            if {paths.encode(one.broker_id) for one in self.gateway.brokers.all()} == names:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"the gateway does not know the brokers {names}")

    async def start(self) -> None:
        clients, rest = listen("127.0.0.1:0"), listen("127.0.0.1:0")
        await self.gateway.start(clients, rest)
        self.service_url, self.http_url = url_of("pulsar", clients), url_of("http", rest)

    async def connect(self, proxy_to: str = "") -> Raw:
        raw = await Raw.open(self.service_url)
        raw.write(commands.connect("test", proxy_to_url=proxy_to))
        return raw

    async def lookups(self) -> Raw:
        """A connection that may ask."""
        raw = await self.connect()
        assert (await raw.next()).kind == pb.BaseCommand.CONNECTED
        return raw

    async def stop(self) -> None:
        await self.gateway.stop()
        await self.store.close()


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    made = Front()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def script() -> AsyncIterator[Any]:
    """Makes brokers that answer as they are told; see `raw.ScriptedBroker`."""
    from .raw import ScriptedBroker

    made: list[ScriptedBroker] = []

    async def start(*answers: Any) -> ScriptedBroker:
        made.append(ScriptedBroker(list(answers)))
        await made[-1].start()
        return made[-1]

    yield start
    for broker in made:
        await broker.stop()
