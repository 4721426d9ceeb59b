"""Helper threads: for calls into libraries that block, and may never come back, and for what takes long to compute.

The standard library's pool waits for its threads when the interpreter ends, so one call that hangs (a network without
a time-out of its own, a mount that is gone) keeps a process alive that was told to stop. These threads are daemons: a
process that has waited long enough ends without them. So what they do must stand being cut off at any point, as by a
kill.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

WORK_S: Final = 0.001
REST_SHARE: Final = 3
"""Of the time that was worked: a helper has a quarter of the interpreter at most."""


class DaemonThreads(Executor):
    """An executor with `count` threads at most, each started when all others are busy."""

    def __init__(self, count: int, name: str) -> None:
        assert count > 0
        self._count = count
        self._name = name
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the threads {self._name} are closed")
            self._queue.put((future, partial(work, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
                thread = threading.Thread(target=self._main, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, done on one of these threads.

        Nobody else touches what it works on meanwhile. It goes on when its caller is cancelled, to its own end.
        """
        return await asyncio.get_running_loop().run_in_executor(self, work)

    def close(self, patience_s: float) -> bool:
        """Take nothing more and wait for what was submitted; False when that takes longer than `patience_s`."""
        with self._lock:
            self._is_closed = True
            for _ in self._threads:
                self._queue.put(None)
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _main(self) -> None:
        while (job := self._queue.get()) is not None:
            future, work = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del job, future, work  # an idle thread holds on to nothing
            self._idle.release()


class Breather:
    """Called now and then by what computes for long on a helper thread: it rests, so that the loop has the interpreter.

    The interpreter is handed over each half millisecond, but only by a thread that runs: one that the machine has put
    aside for others keeps it, and the loop waits for both. The more a thread rests, the rarer that is.
    """

    def __init__(self) -> None:
        self._rested_at_s = time.thread_time()

    def __call__(self) -> None:
        worked_s = time.thread_time() - self._rested_at_s
        if worked_s >= WORK_S:
            time.sleep(REST_SHARE * worked_s)
            self._rested_at_s = time.thread_time()
