"""A TCP proxy that a test puts before ZooKeeper to lose answers, lose requests, or cut all connections."""

from __future__ import annotations

import asyncio


class Proxy:
    """Forwards to `port` on 127.0.0.1; `lose_answers` and `lose_requests` swallow what comes from then on."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.lose_answers = False
        self.lose_requests = False
        self.swallowed = asyncio.Event()
        """Set when something was lost."""
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections; new ones may come."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self.lose_answers = self.lose_requests = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for source, target, requests in ((reader, far_writer, True), (far_reader, writer, False)):
            task = asyncio.create_task(self._carry(source, target, requests))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, requests: bool
    ) -> None:
        try:
            while content := await source.read(65536):
                if self.lose_requests if requests else self.lose_answers:
                    self.swallowed.set()
                    continue
                target.write(content)
                await target.drain()
        except OSError:
            pass
        finally:
            target.transport.abort()
