"""Wake-up of kazoo's thread after a request was queued.

kazoo writes a byte into a pipe for each request, and reads one for each request that it sends. The pipe is blocking,
and full after a few hundred bytes. While ZooKeeper is down, no thread reads it, and bytes of abandoned requests stay in
it. So the event loop could block in `send` until ZooKeeper is up again.

This class counts wake-ups, and keeps one byte in the pipe while the count is not zero. That is enough for kazoo, which
checks whether the pipe is readable, and reads one wake-up per request. kazoo queues a request before it sends the
wake-up, so its thread may handle the request and read before the wake-up is sent. A wake-up without a request then
stays in the pipe, which kazoo expects. So there may be too many wake-ups, but never too few.
"""

from __future__ import annotations

import socket
import threading


class Wake:
    """Pipe for kazoo: both ends in one object, thread-safe and non-blocking."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._reader, self._writer = socket.socketpair()

    def fileno(self) -> int:
        """Return the file descriptor, which is readable while there are wake-ups; -1 after `close`."""
        return self._reader.fileno()

    def send(self, data: bytes) -> int:
        """Add a wake-up. Raises `OSError` if closed, because kazoo would otherwise leave the request unanswered."""
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
        """Close the pipe. It may be called twice, because kazoo closes both ends."""
        with self._lock:
            self._reader.close()
            self._writer.close()
