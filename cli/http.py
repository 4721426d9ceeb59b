"""The HTTP server of a process.

aiohttp takes as long to import as all that a broker needs beside it, most of it for certificates that only its client
side reads. So a process that need not answer HTTP at once imports this late (`assemble`).
"""

from __future__ import annotations

import socket

from aiohttp import web

from quire.cli.parts import Parts
from quire.runtime.http_door import HttpDoor
from quire.runtime.limits import HTTP_SILENT_S
from quire.security.listener import TlsListener


async def serve_http(
    parts: Parts, application: web.Application, sock: socket.socket | None, tls: TlsListener | None = None
) -> None:
    """Answer HTTP on a bound socket, HTTPS on `tls`, or both."""
    runner = web.AppRunner(
        application, access_log=None, shutdown_timeout=1.0, keepalive_timeout=HTTP_SILENT_S
    )
    await runner.setup()
    parts.push_async_callback(runner.cleanup)
    assert runner.server is not None
    door = HttpDoor(runner.server)
    if sock is not None:
        parts.callback((await door.listen(sock)).close)
    if tls is not None:
        tls.start(door)
