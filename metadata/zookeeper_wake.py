"""The wake-up of kazoo's thread: a request was queued, come and send it.

kazoo writes a byte into a pipe for each request and reads one for each that it sends. The pipe blocks, and it is full
after a few hundred bytes. While ZooKeeper is away nobody reads; bytes of requests that were given up stay in it. So a
session that is dropped as soon as it began, or the fifth one of that kind, left the asker standing in `send` until
ZooKeeper came back: and the asker is the event loop of the whole process.

Here wake-ups are counted, and the pipe holds one byte while there are any. kazoo needs no more: it asks whether there
is something to read, and takes one wake-up at a time. It may take one that is not there yet, for a request is queued
before its wake-up is sent; the wake-up then comes for nothing, which kazoo expects. There are never too few.
"""

from __future__ import annotations

import socket
import threading


class Wake:
    """Both ends of kazoo's pipe in one, safe to use from any thread; no call ever blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._reader, self._writer = socket.socketpair()

    def fileno(self) -> int:
        """Readable while a wake-up waits; -1 when closed."""
        return self._reader.fileno()

    def send(self, data: bytes) -> int:
        """One wake-up more. Raises `OSError` when closed, or kazoo would leave the request unanswered."""
        with self._lock:
            if self.fileno() < 0:
                raise OSError("the connection was closed")
            if not self._count:
                self._writer.send(data[:1])
            self._count += 1
        return len(data)

    def recv(self, _size: int) -> bytes:
        """Take one wake-up, if there is one."""
        with self._lock:
            if self._count == 1:
                self._reader.recv(1)
            self._count = max(0, self._count - 1)
        return b"\0"

    def close(self) -> None:
        """May be called twice: kazoo closes what it takes for two ends."""
        with self._lock:
            self._reader.close()
            self._writer.close()
