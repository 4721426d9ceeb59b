"""A listening socket whose connections begin with TLS.

    socket ─▶ accept ─▶ handshake, in a task of its own ─▶ connection_made of the protocol, as for a plain connection

Until its handshake is over a connection is nobody, so what it may cost is bounded here: `HANDSHAKE_S` in time, and
`HANDSHAKES_MAX` of them at once. At that many the oldest is dropped for each that comes: an honest one takes a few
round trips, so those who stall drop one another. `ACCEPTS_A_TURN` keep a herd that comes at once from holding up the
loop: a handshake costs a millisecond.

asyncio's own servers do handshakes, too, but count none of them, cannot drop one, and keep the context that they were
begun with.

A listener that `takes_plain` lets in those without TLS as well: the first byte tells. It is how a cluster comes to TLS
without a pause; see `configuration.Internal`.
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
from quire.runtime.tls import why_failed
from quire.security.tls import FollowedContext

HANDSHAKES_MAX: Final = 1_000
ACCEPTS_A_TURN: Final = 4
PAUSE_S: Final = 0.5
"""How long nobody is accepted when the process may open no more files."""

SHUTDOWN_S: Final = 5.0
"""How long a peer may take to say good-bye when its connection is closed."""

_TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of TLS, which no frame of ours begins with: it would be 369 MB long."""

_log = logging.getLogger(__name__)

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


def _nobody_asks(address: str, why: str) -> None: ...


class TlsListener:
    """On a bound, non-blocking socket. Nobody is let in before `start`."""

    def __init__(self, sock: socket.socket, context: FollowedContext, *, takes_plain: bool = False) -> None:
        self._socket = sock
        self._context = context
        self._takes_plain = takes_plain
        self._loop = asyncio.get_running_loop()
        self._factory: ProtocolFactory | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """In the order in which they began."""
        self.on_bad_certificate: Callable[[str, str], None] = _nobody_asks
        """Told of `/host:port` and why, when somebody shows a certificate that is not trusted."""
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
        """Let connections in; `factory` makes the protocol of each."""
        self._factory = factory
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Take no more; those whose handshake is over stay."""
        if self._factory is not None:
            self._factory = None
            self._loop.remove_reader(self._socket)
        if self._pause is not None:
            self._pause.cancel()
        for handshake in list(self._handshakes):
            handshake.cancel()
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("no connection can be accepted for a moment: %s", error.strerror or error)
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
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        self.handshakes_total += 1
        task = self._loop.create_task(self._shake_hands(sock, peer))
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))

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
            why = f"none within {HANDSHAKE_S:g} s" if isinstance(error, TimeoutError) else why_failed(error)
            level = logging.DEBUG if isinstance(error, ConnectionError) else logging.INFO  # it only hung up
            _log.log(level, "no TLS handshake with /%s: %s", peer, why)
            if isinstance(error, ssl.SSLCertVerificationError):
                self.on_bad_certificate(f"/{peer}", why)
            sock.close()
        except asyncio.CancelledError:
            self.handshakes_failed_total += 1
            sock.close()
            raise

    async def _first_byte(self, sock: socket.socket) -> bytes:
        """The byte that will be read first; b"" when the peer is gone."""
        readable = asyncio.Event()
        self._loop.add_reader(sock, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(sock)
        return sock.recv(1, socket.MSG_PEEK)
