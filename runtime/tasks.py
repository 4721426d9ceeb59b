"""One way to start a task, so that none is lost and no failure is silent; `promise` for who awaits a callback.

asyncio keeps only a weak reference to a task and tells of its exception when the garbage collector finds it, if
ever. A `TaskGroup` of the standard library waits for its tasks, which a server's background work must not. So:
a `Tasks` belongs to whoever starts tasks; it holds them, logs what fails, and cancels and awaits all of them when
its owner stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from quire.runtime.errors import QuireError

T = TypeVar("T")


class Tasks:
    """The background tasks of one owner."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """In the order in which they were started, so that a stop is the same each time."""
        self._log = logging.getLogger(f"quire.{owner}")

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T], what: str) -> asyncio.Task[T]:
        """Run `work` in the background; a failure is logged with `what`, unless somebody awaits the task too."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {what}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def start_every(self, seconds: float, act: Callable[[], Awaitable[None]], what: str) -> None:
        """Do `act` every so many seconds, for good; what it raises is logged, and it goes on."""
        self.start(self._every(seconds, act, what), what)

    async def _every(self, seconds: float, act: Callable[[], Awaitable[None]], what: str) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await act()
            except Exception:
                self._log.exception("%s failed, which is done every %g s; it goes on", what, seconds)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._log.error("%s failed: %s", task.get_name(), error, exc_info=error)

    async def stop(self) -> None:
        """Cancel what still runs and wait until it has ended. Tasks that end by themselves are no error."""
        current = asyncio.current_task()
        running = [task for task in self._tasks if task is not current]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def promise() -> tuple[asyncio.Future[None], Callable[[QuireError | None], None]]:
    """A future, and the callback that ends it: None when what is awaited is done, else why it is not."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: QuireError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return future, done
