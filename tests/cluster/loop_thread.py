"""An event loop in a thread of its own, for what must go on while a test is busy: the network between processes.

Whoever works there is touched by nobody else: `call` and `run` bring the work to the loop and the answer back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs from its making until `stop`; a daemon, so a test that forgets it ends all the same."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """What `function` answers on the loop. Blocks: for what is done in a moment and waits for nobody."""
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(work)
        return answer.result(timeout=10)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` on the loop, from another one."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()
