"""What every process is made of: sockets, the watchdog, the metadata store, and parts that start and stop.

What only those with a broker have is in `broker_parts`: who restarts a gateway has clients wait for what it imports.

`Parts` is the stack of what a process has begun: all of it is undone in reverse order when the process ends, or when a
later part fails. So a process is one function that reads like a list of its parts.
"""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from ssl import SSLContext
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from quire.metadata.open import end_session_when_standing
from quire.metadata.open import open_store as open_metadata
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.credentials import NOBODY, Credentials
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import HTTP_CONNECTIONS_MAX
from quire.runtime.settings import format_address, parse_address
from quire.runtime.watchdog import Watchdog
from quire.security.configuration import Configuration
from quire.security.listener import HANDSHAKES_MAX

if TYPE_CHECKING:
    from quire.security.security import Security

FILES_BESIDE_CONNECTIONS: Final = 1_000 + HTTP_CONNECTIONS_MAX + 2 * HANDSHAKES_MAX
"""Journal, entry logs, index, archive, REST, and handshakes on two ports with TLS."""


class Part(Protocol):
    """What runs between its start and its stop."""

    def start(self) -> Awaitable[None] | None: ...

    async def stop(self) -> None: ...


P = TypeVar("P", bound=Part)


class Parts(AsyncExitStack):
    def listen(self, address: str) -> socket.socket:
        """Raises `ConfigurationError`."""
        sock = listen(address)
        self.callback(sock.close)
        return sock

    def watch_loop(self) -> Watchdog:
        """A watchdog of this process's loop."""
        watchdog = Watchdog()
        watchdog.start()
        self.callback(watchdog.stop)
        return watchdog

    async def metadata(
        self,
        url: str,
        watchdog: Watchdog,
        tls: Callable[[], SSLContext] | None = None,
        login: Credentials = NOBODY,
    ) -> MetadataStore:
        """The store; its session ends when the loop stands. `tls`, `login`: for a ZooKeeper that wants them."""
        store = await open_metadata(url, tls, login)
        self.push_async_callback(store.close)
        end_session_when_standing(store, watchdog)
        return store

    def security(
        self, configuration: Configuration, clock: Clock, *, calls_brokers: bool = False
    ) -> Security | None:
        """What the security file says; None without one. Raises `ConfigurationError`.

        `calls_brokers`: this process is a client of brokers, which ask it who it is.
        """
        if configuration == Configuration():
            return None
        publishes = configuration.audit is not None and bool(configuration.audit.topic)
        if (
            (calls_brokers or publishes)
            and configuration.authentication is not None
            and configuration.client.method == "none"
        ):
            raise ConfigurationError(
                "the security file has [authentication], so brokers ask this process who it is as well: "
                "say under [client] what it presents, such as a token_file"
            )
        from quire.security.security import make_security  # who asks nobody starts without

        made = make_security(configuration, clock)
        self.push_async_callback(made.stop)
        return made

    async def start(self, part: P) -> P:
        """Start it now, and stop it when the process ends."""
        begun = part.start()
        if begun is not None:
            await begun
        self.push_async_callback(part.stop)
        return part


def listen(address: str) -> socket.socket:
    """A bound socket, or a `ConfigurationError` that says what is in the way."""
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        hint = "; choose another with --listen or --http" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(f"cannot listen on {address}: {error.strerror}{hint}") from error
    sock.setblocking(False)
    return sock


def url_of(scheme: str, sock: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://{format_address(host, port)}"


def allow_open_files(connections_max: int) -> None:
    """Each connection is an open file, and the usual 1,024 are soon used up. As many as the machine lets us have."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + FILES_BESIDE_CONNECTIONS
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if wanted > now != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
