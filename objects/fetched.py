"""LRU cache of values read from an object store: bounded in bytes, with one fetch per key for all readers.

Concurrent readers of the same key share one fetch, which continues if one reader is cancelled. Read-ahead, for
which no reader waits, begins no fetch while half of the allowed fetches are in progress.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from quire.runtime.limits import OBJECT_FETCHES_MAX

T = TypeVar("T")


class Fetched(Generic[T]):
    """LRU cache of fetched values by key. `size_of` returns the size of a value in bytes."""

    def __init__(self, bytes_max: int, size_of: Callable[[T], int]) -> None:
        self._bytes_max = bytes_max
        self._size_of = size_of
        self._values: OrderedDict[object, T] = OrderedDict()
        self._fetches: dict[object, asyncio.Task[T]] = {}
        self._slots = asyncio.Semaphore(OBJECT_FETCHES_MAX)
        self.bytes_held = 0

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: object) -> T | None:
        """Return the cached value, and mark it as recently used; None if it is not cached."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    async def fetch(self, key: object, load: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the fetch of `key` in progress, else of `load()`. Raises the errors of `load`."""
        task = self._fetches.get(key) or self._begin(key, load)
        return await asyncio.shield(task)

    def fetch_ahead(self, key: object, load: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Begin to fetch the value of `key`, unless too many fetches are in progress."""
        busy = len(self._fetches) >= OBJECT_FETCHES_MAX // 2
        if not busy and key not in self._fetches:
            self._begin(key, load)

    def keep(self, key: object, value: T) -> None:
        """Cache `value` for later readers."""
        if key in self._values:
            return
        self._values[key] = value
        self.bytes_held += self._size_of(value)
        while self.bytes_held > self._bytes_max and len(self._values) > 1:
            self.bytes_held -= self._size_of(self._values.popitem(last=False)[1])

    async def close(self) -> None:
        """Cancel fetches and drop all values."""
        tasks = list(self._fetches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._values.clear()
        self.bytes_held = 0

    def _begin(self, key: object, load: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        async def run() -> T:
            async with self._slots:
                return await load()

        task = asyncio.get_running_loop().create_task(run())
        self._fetches[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def _ended(self, key: object, task: asyncio.Task[T]) -> None:
        del self._fetches[key]
        if task.cancelled() or task.exception() is not None:
            return  # `fetch` raises the error; after a failed read-ahead, the next `fetch` loads again
        self.keep(key, task.result())
