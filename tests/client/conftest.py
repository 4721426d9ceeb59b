"""A fake broker and a client that is quick to try again."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from quire.client import Client, ClientSettings
from tests.client.fake_broker import FakeBroker

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
