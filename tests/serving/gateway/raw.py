"""Both ends of a gateway by hand: a client that reads commands, a broker that answers by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from quire.gateway.frames import CommandCutter
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command

Answer = Callable[[Any], bytes]
WAIT_S = 10.0


class Raw:
    """One connection, and the commands that arrive on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._cutter = CommandCutter()
        self.write = writer.write

    @classmethod
    async def open(cls, url: str) -> Raw:
        host, _, port = url.partition("://")[2].rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def next(self) -> Command:
        """The next command. Raises `EOFError` when the other side has closed."""
        async with asyncio.timeout(WAIT_S):
            while (command := self._cutter.next()) is None:
                data = await self._reader.read(65536)
                if not data:
                    raise EOFError
                self._cutter.feed(data)
        return command

    async def bytes(self, count: int) -> bytes:
        """Bytes as they are."""
        rest = self._cutter.take_rest()
        async with asyncio.timeout(WAIT_S):
            return rest + await self._reader.readexactly(count - len(rest))

    def close(self) -> None:
        self._writer.close()


class ScriptedBroker:
    """Answers CONNECT, then each question with the next of `answers`; keeps what it was sent."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._connections: list[Raw] = []
        self.received: list[Command] = []
        self.arrived: asyncio.Queue[Raw] = asyncio.Queue()
        """Connections whose CONNECT was answered: a test may go on with one by hand."""

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = Raw(reader, writer)
        self._connections.append(raw)
        hello = await raw.next()
        self.received.append(hello)
        raw.write(commands.connected("scripted", 19, 5 << 20))
        self.arrived.put_nowait(raw)
        if not self._answers:
            return
        try:
            while True:
                question = await raw.next()
                self.received.append(question)
                raw.write(self._answers.pop(0)(question.body))
        except (EOFError, ConnectionError, TimeoutError):
            writer.close()


def owner(url: str) -> Answer:
    return lambda asked: commands.lookup_found(asked.request_id, url)


def redirect(url: str) -> Answer:
    return lambda asked: commands.lookup_found(asked.request_id, url, redirect=True, authoritative=True)


def not_now(asked: Any) -> bytes:
    return commands.lookup_failed(asked.request_id, pb.ServiceNotReady, "in doubt")
