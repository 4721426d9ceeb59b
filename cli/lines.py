"""Lines from files and standard input, read in a thread so that the event loop does not block.

The thread is a daemon and reads the raw file descriptor, so that a command can end while standard input
waits for the user. At most a few chunks are queued between the thread and the event loop.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import CancelledError
from typing import Final

from quire.runtime.errors import ConfigurationError, LimitExceeded
from quire.runtime.limits import KIB, MESSAGE_BYTES_MAX

CHUNK_BYTES: Final = 256 * KIB
CHUNKS_WAITING_MAX: Final = 4
STANDARD_INPUT: Final = "-"

_Item = bytes | ConfigurationError | None
"""Item from the thread: bytes (empty at the end of a file), an error, or None after the last file."""


class Lines:
    """Lines of several files, in order; `-` is standard input."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files
        self.bytes_read = 0

    @property
    def are_typed(self) -> bool:
        """True if a user types the lines on a terminal."""
        return STANDARD_INPUT in self._files and sys.stdin.isatty()

    def bytes_total(self) -> int | None:
        """Return the files' size in bytes; None if a file has no size, such as a pipe.

        Raises `ConfigurationError` for a missing file.
        """
        total, regular = 0, True
        for file in self._files:
            try:
                found = os.fstat(sys.stdin.fileno()) if file == STANDARD_INPUT else os.stat(file)
            except (OSError, ValueError) as error:
                raise _unreadable(file, error) from None
            if stat.S_ISDIR(found.st_mode):
                raise ConfigurationError(f"cannot read {file}: it is a directory")
            regular = regular and stat.S_ISREG(found.st_mode)
            total += found.st_size
        return total if regular else None

    async def chunks(self) -> AsyncIterator[list[bytes]]:
        """Yield lists of whole lines, without line ends. Raises `ConfigurationError` if a file cannot be read."""
        rest, count = b"", 0
        async for data in self._data():
            self.bytes_read += len(data)
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            if not data and rest:  # the last line may lack a line end
                lines.append(rest)
                rest = b""
            count += len(lines)
            if lines:
                yield lines
            if len(rest) > MESSAGE_BYTES_MAX:
                raise LimitExceeded(
                    f"line {count + 1:,} is longer than a message may be ({MESSAGE_BYTES_MAX:,} bytes); "
                    "the lines before it were published"
                )

    async def _data(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[_Item] = asyncio.Queue()
        room = threading.Semaphore(CHUNKS_WAITING_MAX)

        def put(item: _Item) -> None:
            room.acquire()
            try:
                loop.call_soon_threadsafe(queue.put_nowait, item)
            except RuntimeError:  # the loop is closed
                raise CancelledError from None

        threading.Thread(target=self._read_all, args=(put,), daemon=True, name="lines").start()
        while (item := await queue.get()) is not None:
            room.release()
            if isinstance(item, ConfigurationError):
                raise item
            yield item

    def _read_all(self, put: Callable[[_Item], None]) -> None:
        try:
            for file in self._files:
                self._read(file, put)
            put(None)
        except OSError as error:
            put(_unreadable(str(error.filename or "standard input"), error))
        except CancelledError:
            pass  # the lines are no longer needed

    def _read(self, file: str, put: Callable[[_Item], None]) -> None:
        is_input = file == STANDARD_INPUT
        descriptor = sys.stdin.fileno() if is_input else os.open(file, os.O_RDONLY)
        try:
            while data := os.read(descriptor, CHUNK_BYTES):
                put(data)
            put(b"")
        finally:
            if not is_input:
                os.close(descriptor)


def _unreadable(file: str, error: OSError | ValueError) -> ConfigurationError:
    return ConfigurationError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}")
