"""What every process is made of: parts that end in reverse order, and as many open files as it may have connections."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.cli.broker import broker, load
from quire.cli.gateway import GatewaySettings, gateway
from quire.cli.parts import Parts
from quire.cli.settings import Given
from quire.metadata.cluster import begin_cluster
from quire.metadata.open import open_store

FREE = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
FEW = 400


@pytest.fixture
async def metadata(tmp_path: Path) -> str:
    url = f"sqlite://{tmp_path}/metadata.db"
    store = await open_store(url)
    await begin_cluster(store, 0)
    await store.close()
    return url


@pytest.fixture
def few_files() -> Iterator[None]:
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))


def files_allowed() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def test_a_broker_may_open_a_file_for_each_connection(metadata: str, few_files: None) -> None:
    async with broker(load(Given({**FREE, "metadata": metadata}, None))):
        assert files_allowed() > FEW


async def test_a_gateway_may_open_two_files_for_each_connection(metadata: str, few_files: None) -> None:
    async with gateway(GatewaySettings(metadata=metadata, connections_max=1_000, **FREE)):
        assert files_allowed() >= 3_000


class Noted:
    """A part that says what happens to it."""

    def __init__(self, name: str, told: list[str], *, fails: bool = False) -> None:
        self.name, self.told, self.fails = name, told, fails

    async def start(self) -> None:
        if self.fails:
            raise RuntimeError(self.name)
        self.told.append(f"{self.name} started")

    async def stop(self) -> None:
        self.told.append(f"{self.name} stopped")


async def test_what_was_begun_is_undone_in_reverse_order_when_a_later_part_fails() -> None:
    told: list[str] = []
    with pytest.raises(RuntimeError, match="third"):
        async with Parts() as parts:
            await parts.start(Noted("first", told))
            await parts.start(Noted("second", told))
            await parts.start(Noted("third", told, fails=True))
    assert told == ["first started", "second started", "second stopped", "first stopped"]
