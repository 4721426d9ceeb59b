"""ZooKeeper server for tests: a fixture for the test session, with a new root node for each test.

    from tests.cluster.zookeeper import ZooKeeper, zookeeper  # noqa: F401  (outside tests/cluster)

    async def test_it(zookeeper: ZooKeeper) -> None:
        store = await open_store(zookeeper.fresh_url(session_timeout="2s"))

A test that pauses, kills or stops the server must start its own server: `with own_zookeeper(tmp_path) as server`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire.runtime.errors import ConfigurationError
from quire.testing.zookeeper_server import ZooKeeperServer, classpath, java


class ZooKeeper(ZooKeeperServer):
    """ZooKeeper server that gives each test its own root node."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        super().__init__(directory, port)
        self._roots = itertools.count(1)

    def fresh_url(self, session_timeout: str = "4s") -> str:
        """Return a URL with a new root node."""
        return f"{self.url}/test-{next(self._roots)}?session_timeout={session_timeout}"


@contextmanager
def own_zookeeper(directory: Path) -> Iterator[ZooKeeper]:
    """Run a server for one test. Skip the test if Java or PySpark is not installed."""
    try:
        java(), classpath()
    except ConfigurationError as error:
        pytest.skip(str(error))
    server = ZooKeeper(directory / "zookeeper")
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Run one server for all tests of the session that do not stop it."""
    with own_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
