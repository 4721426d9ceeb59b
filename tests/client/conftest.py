"""Two brokers to talk to, a fake one and a real one in this process, and clients that are quick to try again."""

from collections.abc import AsyncIterator
from random import Random

import pulsar
import pytest

from quire.client import Client, ClientSettings
from quire.serving.broker import Broker
from tests.client.fake_broker import FakeBroker
from tests.serving.conftest import QUIET, BrokerHouse, house, in_thread

__all__ = ["house"]

QUICK = ClientSettings(operation_timeout_ms=5_000, backoff_first_ms=1, backoff_max_ms=4)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    made = FakeBroker()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[Client]:
    async with Client(broker.url, settings=QUICK, rng=Random(1)) as made:
        yield made


@pytest.fixture
async def real(house: BrokerHouse) -> Broker:
    return await house.start()


@pytest.fixture
async def ours(real: Broker) -> AsyncIterator[Client]:
    """Our client of the real broker."""
    async with Client(real.service_url, settings=QUICK) as made:
        yield made


@pytest.fixture
async def stock(real: Broker) -> AsyncIterator[pulsar.Client]:
    """The stock client of the real broker; use its blocking calls through `in_thread`."""
    made = pulsar.Client(real.service_url, logger=QUIET, operation_timeout_seconds=10)
    yield made
    await in_thread(made.close)
