"""While ZooKeeper is away a process goes on: whatever is asked of it then holds up nobody.

No test here needs a server. What is under test would hold up the test's own loop for good, so each runs on a thread.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState

from quire.metadata.store import SessionEvent
from quire.metadata.zookeeper import ZooKeeperStore
from quire.metadata.zookeeper_client import Client
from quire.metadata.zookeeper_url import parse_url
from quire.metadata.zookeeper_wake import Wake

PATIENCE_S = 30.0
MANY = 1000
"""More than kazoo's own pipe has room for."""


def ends(scenario: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Run it on a loop of its own; whether it came to its end. Its own failure is raised here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(scenario())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if errors:
        raise errors[0]
    return not thread.is_alive()


class Flapping:
    """Grants a session so many times, goes away at once each time, and in the end stays away."""

    def __init__(self, flaps: int) -> None:
        self._left = flaps
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"zk://127.0.0.1:{self._listener.getsockname()[1]}?session_timeout=20s"
        self.is_gone = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        granted = struct.pack(">iiqi", 0, 20_000, 0x77, 16) + bytes(17)
        while self._left:
            connection, _ = self._listener.accept()
            with connection:
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                connection.recv(size, socket.MSG_WAITALL)
                connection.sendall(struct.pack(">i", len(granted)) + granted)
            self._left -= 1
        self._listener.close()
        self.is_gone.set()


class Silent:
    """A listener that only waits for the answers of `count` requests."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.all = asyncio.Event()

    def client_connected(self, *_: object) -> None: ...
    def client_dropped(self, *_: object) -> None: ...
    def client_expired(self, *_: object) -> None: ...
    def client_watch(self, *_: object) -> None: ...

    def client_answered(self, *_: object) -> None:
        self.left -= 1
        if not self.left:
            self.all.set()


async def ask_while_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    listener = Silent(MANY)
    client = Client(f"127.0.0.1:{port}", 20.0, listener)
    while client._kazoo._state != KeeperState.CONNECTING:  # noqa: ASYNC110 - on kazoo's thread
        await asyncio.sleep(0)

    def exists(kazoo: KazooClient) -> Any:
        return kazoo.exists_async("/a")

    for _ in range(MANY):
        client.ask(exists)
    await client.end()
    await listener.all.wait()


def test_requests_without_a_connection_hold_up_nobody_and_are_answered_at_the_end() -> None:
    assert ends(ask_while_away), "the event loop stands still"


@pytest.mark.parametrize(("watches", "flaps"), [(MANY, 1), (50, 8)])
def test_sessions_that_are_dropped_at_once_do_not_stop_the_loop(watches: int, flaps: int) -> None:
    async def scenario() -> None:
        server = Flapping(flaps)
        store = ZooKeeperStore(parse_url(server.url))
        dropped = asyncio.Event()
        store.on_session(lambda event: dropped.set() if event is SessionEvent.SUSPENDED else None)
        for at in range(watches):
            store.watch(f"/n{at}", lambda _: None)
        await asyncio.to_thread(server.is_gone.wait)
        await dropped.wait()
        await store.close()

    assert ends(scenario), "the event loop stands still"


# -- the wake-up by itself -----------------------------------------------------------------------------
def is_readable(wake: Wake) -> bool:
    return bool(select.select([wake], [], [], 0)[0])


def test_there_is_something_to_read_until_each_wake_up_was_taken() -> None:
    wake = Wake()
    assert not is_readable(wake)
    for _ in range(MANY):
        assert wake.send(b"\0") == 1
    for _ in range(MANY):
        assert is_readable(wake)
        assert wake.recv(1) == b"\0"
    assert not is_readable(wake)
    wake.close()


def test_a_wake_up_that_is_not_there_yet_may_be_taken_and_still_comes() -> None:
    wake = Wake()
    wake.recv(1)
    wake.send(b"\0")
    assert is_readable(wake)
    wake.close()


def test_a_closed_one_says_so() -> None:
    wake = Wake()
    wake.send(b"\0")
    wake.close()
    wake.close()
    with pytest.raises(OSError, match="closed"):
        wake.send(b"\0")
