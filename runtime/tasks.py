"""Background tasks with an owner, whose failures are logged; and `promise`, for callers that await a callback.

asyncio keeps only a weak reference to a task, and reports its exception only when the garbage collector frees it. A
`TaskGroup` waits for its tasks, which is wrong for a server's background work. So each owner has a `Tasks`, which
references its tasks, logs their failures, and cancels and awaits them when the owner stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from quire.runtime.errors import QuireError

T = TypeVar("T")


class Tasks:
    """Background tasks of one owner."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """Running tasks in order of their start, so that the order of a stop is deterministic."""
        self._log = logging.getLogger(f"quire.{owner}")

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T], what: str) -> asyncio.Task[T]:
        """Run `work` in the background; a failure is logged with `what`, unless a caller awaits the task too."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {what}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def start_every(self, seconds: float, act: Callable[[], Awaitable[None]], what: str) -> None:
        """Call `act` every `seconds`. Its exceptions are logged, and the calls continue."""
        self.start(self._every(seconds, act, what), what)

    async def _every(self, seconds: float, act: Callable[[], Awaitable[None]], what: str) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await act()
            except Exception:
                self._log.exception("%s failed; it runs again in %g s", what, seconds)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._log.error("%s failed: %s", task.get_name(), error, exc_info=error)

    async def stop(self) -> None:
        """Cancel the running tasks, and wait for their end."""
        current = asyncio.current_task()
        running = [task for task in self._tasks if task is not current]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def promise() -> tuple[asyncio.Future[None], Callable[[QuireError | None], None]]:
    """Return a future, and the callback that completes it: with None on success, else with the error."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: QuireError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return future, done
