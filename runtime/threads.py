"""Helper threads for blocking library calls that may hang, and for long computations.

`ThreadPoolExecutor` waits for its threads at exit, so one hanging call (a connection without a time-out, a dead mount)
would keep a stopped process alive. These threads are daemons: a process exits without them after a time-out. So their
work must tolerate an abrupt end, as by SIGKILL.
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
"""Pause of a helper thread, as a multiple of its working time: it uses the interpreter for at most a quarter."""


class DaemonThreads(Executor):
    """Executor with at most `count` threads; each is started when all others are busy."""

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
                raise RuntimeError(f"executor {self._name} is closed")
            self._queue.put((future, partial(work, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
                thread = threading.Thread(target=self._main, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on one of these threads and return its result.

        No other code may use the data of `work` before it returns. It runs to its end even if the caller is cancelled.
        """
        return await asyncio.get_running_loop().run_in_executor(self, work)

    def close(self, patience_s: float) -> bool:
        """Accept no more work, and wait for the submitted work. Return False if it takes longer than `patience_s`."""
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
            del job, future, work  # an idle thread references no objects
            self._idle.release()


class Breather:
    """Throttle of a long computation on a helper thread: a call sleeps if the computation has run for `WORK_S`.

    A running thread releases the interpreter lock every half millisecond. But a thread that the kernel has preempted
    keeps the lock, and the event loop waits for it. The pauses make this rarer.
    """

    def __init__(self) -> None:
        self._rested_at_s = time.thread_time()

    def __call__(self) -> None:
        worked_s = time.thread_time() - self._rested_at_s
        if worked_s >= WORK_S:
            time.sleep(REST_SHARE * worked_s)
            self._rested_at_s = time.thread_time()
