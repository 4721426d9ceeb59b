"""Event loop in a thread of its own, for work that must continue while a test is busy, such as proxies.

Objects of this loop are used only on it: `call` and `run` execute work on the loop, and return its result.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Daemon thread with an event loop, which runs from its creation until `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call `function` on the loop, and return its result. The caller blocks, so the call must be short."""
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(work)
        return answer.result(timeout=10)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on this loop, and await its result on the caller's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()
