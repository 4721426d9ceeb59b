"""Listening socket whose connections begin with TLS.

    socket ─▶ accept ─▶ handshake, in a task of its own ─▶ connection_made of the protocol, as for a plain connection

A connection is anonymous until its handshake ends, so its cost is limited: to `HANDSHAKE_S` seconds, and
`HANDSHAKES_MAX` handshakes at once. Above that, each new one replaces the oldest of the network with the most
handshakes (`runtime/sources`), so a flood from one network drops its own connections. `ACCEPTS_A_TURN` limits the
handshakes per event loop iteration, because each takes about 1 ms.

asyncio's own TLS servers neither limit nor drop handshakes, and keep the context that they were started with.

A listener that `takes_plain` also accepts connections without TLS, distinguished by their first byte. So a cluster
can introduce TLS without downtime; see `configuration.Internal`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from quire.runtime.limits import HANDSHAKE_S
from quire.runtime.settings import format_address
from quire.runtime.sources import BySource
from quire.runtime.tls import why_failed
from quire.security.tls import FollowedContext

HANDSHAKES_MAX: Final = 1_000
ACCEPTS_A_TURN: Final = 4
PAUSE_S: Final = 0.5
"""Seconds for which no connections are accepted after the process has reached its limit of open files."""

SHUTDOWN_S: Final = 5.0
"""Seconds to wait for the peer's close_notify when a connection is closed."""

_TLS_HANDSHAKE: Final = b"\x16"
"""First byte of a TLS handshake. A plain frame that began with it would be 369 MB long, above the maximum."""

_log = logging.getLogger(__name__)

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


def _nobody_asks(address: str, why: str) -> None: ...


class TlsListener:
    """TLS listener on a bound, non-blocking socket. It accepts connections after `start`."""

    def __init__(self, sock: socket.socket, context: FollowedContext, *, takes_plain: bool = False) -> None:
        self._socket = sock
        self._context = context
        self._takes_plain = takes_plain
        self._loop = asyncio.get_running_loop()
        self._factory: ProtocolFactory | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._handshakes: BySource[asyncio.Task[None]] = BySource()
        self.on_bad_certificate: Callable[[str, str], None] = _nobody_asks
        """Called with `/host:port` and the reason if a client presents an untrusted certificate."""
        self.handshakes_total = 0
        self.handshakes_failed_total = 0

    @property
    def address(self) -> str:
        """`host:port`."""
        return format_address(*self._socket.getsockname()[:2])

    @property
    def handshakes_under_way(self) -> int:
        return len(self._handshakes)

    def start(self, factory: ProtocolFactory) -> None:
        """Start accepting connections; `factory` returns the protocol of each."""
        self._factory = factory
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stop accepting, and cancel unfinished handshakes; established connections stay open."""
        if self._factory is not None:
            self._factory = None
            self._loop.remove_reader(self._socket)
        if self._pause is not None:
            self._pause.cancel()
        for handshake in self._handshakes:
            handshake.cancel()
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("cannot accept connections for 0.5 s: %s", error.strerror or error)
                self._loop.remove_reader(self._socket)
                self._pause = self._loop.call_later(PAUSE_S, self._go_on)
                return
            sock.setblocking(False)
            self._begin(sock, format_address(*address[:2]))

    def _go_on(self) -> None:
        if self._factory is not None:
            self._loop.add_reader(self._socket, self._accept)

    def _begin(self, sock: socket.socket, peer: str) -> None:
        if len(self._handshakes) >= HANDSHAKES_MAX:
            oldest = self._handshakes.crowded()
            assert oldest is not None
            self._handshakes.remove(oldest)
            oldest.cancel()
        self.handshakes_total += 1
        task = self._loop.create_task(self._shake_hands(sock, peer))
        self._handshakes.add(task, f"/{peer}")
        task.add_done_callback(self._handshakes.remove)

    async def _shake_hands(self, sock: socket.socket, peer: str) -> None:
        factory = self._factory
        assert factory is not None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                options: dict[str, Any] = {}
                if not self._takes_plain or await self._first_byte(sock) == _TLS_HANDSHAKE:
                    options = {
                        "ssl": self._context.current(),
                        "ssl_handshake_timeout": HANDSHAKE_S,
                        "ssl_shutdown_timeout": SHUTDOWN_S,
                    }
                await self._loop.connect_accepted_socket(factory, sock, **options)
        except (OSError, TimeoutError) as error:  # `ssl.SSLError` is an OSError
            self.handshakes_failed_total += 1
            why = (
                f"not finished within {HANDSHAKE_S:g} s"
                if isinstance(error, TimeoutError)
                else why_failed(error)
            )
            # a ConnectionError means that the client only closed the connection
            level = logging.DEBUG if isinstance(error, ConnectionError) else logging.INFO
            _log.log(level, "TLS handshake with /%s failed: %s", peer, why)
            if isinstance(error, ssl.SSLCertVerificationError):
                self.on_bad_certificate(f"/{peer}", why)
            sock.close()
        except asyncio.CancelledError:
            self.handshakes_failed_total += 1
            sock.close()
            raise

    async def _first_byte(self, sock: socket.socket) -> bytes:
        """Return the first byte without consuming it, or b"" if the peer has closed the connection."""
        readable = asyncio.Event()
        self._loop.add_reader(sock, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(sock)
        return sock.recv(1, socket.MSG_PEEK)
