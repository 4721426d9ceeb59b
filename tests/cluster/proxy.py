"""A TCP proxy that does what networks do: holds bytes back in one direction or both, delays them, drops connections.

    proxy = Proxy("127.0.0.1:3181")
    address = await proxy.start()
    proxy.answers.cut()         # what the target says does not arrive; the connection stays open, as with a cut cable
    proxy.answers.mend()        # ... and now it does, in order
    proxy.requests.delay_s = 0.3
    proxy.reset()               # every connection is lost, new ones are taken

It reads no more than a little ahead of what it may pass on, so back-pressure goes through it.
"""

from __future__ import annotations

import asyncio

_CHUNK_BYTES = 1 << 18


class Direction:
    """One way through the proxy, for all its connections."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        """Between arrival and departure of each piece; pieces do not overtake each other."""
        self._open = asyncio.Event()
        self._open.set()
        self.bytes = 0

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the reader's side ends."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def take() -> None:
            data = b"more"
            while data:
                data = await reader.read(_CHUNK_BYTES)
                await pieces.put((loop.time() + self.delay_s, data))

        async def pass_on() -> None:
            while True:
                due, data = await pieces.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                await self._open.wait()
                if not data:
                    return writer.close()
                self.bytes += len(data)
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as both:
            both.create_task(take())
            both.create_task(pass_on())


class Proxy:
    """See the top of the file. `target` is `host:port`; it need not listen yet."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self.requests = Direction()
        self.answers = Direction()
        self.address = ""
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> str:
        """Listen; the address to connect to instead of the target's."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.address

    async def stop(self) -> None:
        self._server.close()
        self.reset()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Both ways."""
        self.requests.cut()
        self.answers.cut()

    def mend(self) -> None:
        self.requests.mend()
        self.answers.mend()

    def reset(self) -> None:
        """Lose every connection."""
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            ends.append(far_writer)
            self._writers.add(far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self.requests.carry(reader, far_writer))
                both.create_task(self.answers.carry(far_reader, writer))
        except* (OSError, asyncio.CancelledError):
            pass  # either way broke, so the connection is over
        finally:
            for end in ends:
                self._writers.discard(end)
                end.transport.abort()
