"""What was read from an object store, kept for the next who wants it: bounded in bytes, and each read once for all.

Two readers that want the same make one fetch, and one that goes away does not end it for the other. What is fetched
ahead waits for nobody, and takes half of the fetches at most.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from quire.runtime.limits import OBJECT_FETCHES_MAX

T = TypeVar("T")


class Fetched(Generic[T]):
    """Values by key, least recently used ones dropped first, each fetched once for all who want it."""

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
        """The value, if it is here; it is then the youngest."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    async def fetch(self, key: object, load: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `load()` returns, or the fetch of it that is under way. Raises what it does."""
        task = self._fetches.get(key) or self._begin(key, load)
        return await asyncio.shield(task)

    def fetch_ahead(self, key: object, load: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Begin to fetch it, if there is room for another fetch."""
        busy = len(self._fetches) >= OBJECT_FETCHES_MAX // 2
        if not busy and key not in self._fetches:
            self._begin(key, load)

    def keep(self, key: object, value: T) -> None:
        """Have `value` here for the next who wants it."""
        if key in self._values:
            return
        self._values[key] = value
        self.bytes_held += self._size_of(value)
        while self.bytes_held > self._bytes_max and len(self._values) > 1:
            self.bytes_held -= self._size_of(self._values.popitem(last=False)[1])

    async def close(self) -> None:
        """End what is on its way and forget all."""
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
            return  # whoever waits has it; a fetch ahead that failed is tried again by the read itself
        self.keep(key, task.result())
