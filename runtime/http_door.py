"""How many connections an HTTP server has, so that those who only hold them open keep nobody out.

With one too many the oldest goes that has not asked anything yet; when all have, the new one does. So sockets that stay
silent drop one another, and what HTTP may take of a process's open files is known.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from aiohttp import web

from quire.runtime.limits import HTTP_CONNECTIONS_MAX

BACKLOG: Final = 1024


class HttpDoor:
    """Makes the connections of `server`, in place of it. All calls on the loop's thread."""

    def __init__(self, server: web.Server, most: int = HTTP_CONNECTIONS_MAX) -> None:
        self._server = server
        self._most = most
        self._asked: set[Any] = set()
        """Connections that have asked something; some may be gone."""
        self._request: Final = server.request_factory
        server.request_factory = self._note

    def __call__(self) -> asyncio.BaseProtocol:
        there = self._server.connections  # oldest first
        if len(there) < self._most:
            return self._server()
        self._asked.intersection_update(there)
        for one in there:
            if one not in self._asked and one.transport is not None:
                one.force_close()
                return self._server()
        return _Refused()

    def _note(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        self._asked.add(protocol)
        if len(self._asked) > 2 * self._most:
            self._asked.intersection_update(self._server.connections)
        return self._request(message, payload, protocol, writer, task)

    async def listen(self, sock: socket.socket) -> asyncio.Server:
        """On a bound socket."""
        return await asyncio.get_running_loop().create_server(self, sock=sock, backlog=BACKLOG)


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
