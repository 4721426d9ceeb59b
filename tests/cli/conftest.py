"""A server that all tests of one file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.running import Server, standalone


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("server")) as running:
        yield running
