"""A broker in this process for jobs to write to, beside the made-up one that they read from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from quire.client import EARLIEST, Client, Message
from quire.serving.admin.app import make_app
from quire.serving.broker import Broker
from tests.serving.conftest import BrokerHouse, house

__all__ = ["house"]


class Target:
    """It drops duplicates."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.url = broker.addresses.http_url

    async def read(self, topic: str) -> list[Message[bytes]]:
        """All messages, in order."""
        found = []
        async with (
            Client(self.broker.service_url) as client,
            client.reader(topic, start=EARLIEST, inclusive=True) as reader,
        ):
            while await reader.has_next():
                found.append(await reader.read(10))
        return found


@pytest.fixture
async def target(house: BrokerHouse) -> AsyncIterator[Target]:
    made = await house.start(deduplication=True)
    runner = web.AppRunner(make_app(made), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    made.addresses.http_url = f"http://{host}:{port}"
    yield Target(made)
    await runner.cleanup()
