"""An authority of the tests' own, and what it has signed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from quire.security.certs import Authority


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """TLS is another one in each, and users of the client have either."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an authority, a certificate `node` for 127.0.0.1 and localhost, and one of the user `alice`."""
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority.make(directory)
    authority.sign_process("node", ["127.0.0.1", "localhost"], 30)
    authority.sign_user("alice", 30)
    return directory


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of another authority."""
    directory = tmp_path_factory.mktemp("strangers")
    authority = Authority.make(directory, "somebody else's")
    authority.sign_process("node", ["127.0.0.1", "localhost"], 30)
    authority.sign_user("alice", 30)
    return directory
