"""Event loop on virtual time, for many simulated processes.

When nothing is ready, time jumps to the next timer. An iteration that ran callbacks takes a few microseconds, so that
busy loops cannot stop the clock. Callbacks of one process keep asyncio's order (FIFO, and timers by their time). Timers
of different processes that are due in the same iteration are interleaved at random.

The context of everything that a process starts contains its `Process`, which the loop checks before each callback. It
runs nothing of a dead process, not even `finally` and `except` blocks, and postpones everything of a paused process.
Handles of dead processes are kept to the end, so that garbage collection does not run their `finally` blocks during the
history.

There are no threads and no sockets: connections are made by `connect` and `serve`, which the network provides.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import BaseEventLoop, Handle, TimerHandle
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Final

TURN_S: Final = 5e-6
TURNS_MAX: Final = 3_000_000

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Stuck(Exception):
    """Raised if no callback or timer is left, or if there were too many iterations."""


class Process:
    """Simulated process. `host` is its address in the simulated network."""

    def __init__(self, loop: SimulatedLoop, name: str, host: str = "") -> None:
        self.loop = loop
        self.name = name
        self.host = host or name
        self.is_halted = False
        self.is_dead = False
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)
        self.parked: list[Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.on_death: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return self.name

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as a part of this process. An unexpected exception is passed to the loop's exception handler."""
        task = self.loop.create_task(work, context=self.context)
        task.add_done_callback(self._ended, context=self.loop.outside)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.loop.call_exception_handler({"message": f"{self} failed", "exception": error})

    def pause(self) -> None:
        self.is_halted = True

    def resume(self) -> None:
        if not self.is_dead:
            self.is_halted = False
            parked, self.parked = self.parked, []
            self.loop.make_ready(parked)

    def kill(self) -> None:
        """Kill the process, as `kill -9` does: none of its callbacks runs any more."""
        if not self.is_dead:
            self.is_halted = self.is_dead = True
            for callback in self.on_death:
                callback()


class SimulatedLoop(BaseEventLoop):
    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng
        self._now = 0.0
        self.turns = 0
        self.outside = Context()
        """Context of callbacks that belong to no process."""
        self.connect: Callable[..., Coroutine[Any, Any, Any]]
        self.serve: Callable[..., Any]
        self.everything: list[asyncio.Task[Any]] = []
        self._timers: list[tuple[float, TimerHandle]] = []
        """Heap of (time, handle). Comparing handles in Python code would take 4 % of a history's time."""
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now

    def forget_all(self) -> None:
        """Drop all callbacks and timers."""
        self._ready.clear()  # type: ignore[attr-defined]
        self._timers.clear()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> TimerHandle:
        self._check_closed()  # type: ignore[attr-defined]
        handle = TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, handle))
        return handle

    def make_ready(self, handles: list[Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **how: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **how)
        self.everything.append(task)
        return task

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers  # type: ignore[attr-defined]
        while timers and timers[0][1].cancelled():
            heapq.heappop(timers)
        if ready:
            self._now += TURN_S
        elif timers:
            self._now = max(self._now, timers[0][0])
        else:
            raise Stuck("nothing will ever happen again")
        if timers and timers[0][0] <= self._now:
            ready.extend(self._due(timers))
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise Stuck(f"more than {TURNS_MAX} turns of the loop")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is not None and process.is_halted:
                process.parked.append(handle)
            else:
                handle._run()

    def _due(self, timers: list[tuple[float, TimerHandle]]) -> list[TimerHandle]:
        due = []
        while timers and timers[0][0] <= self._now:
            _, handle = heapq.heappop(timers)
            if not handle.cancelled():
                due.append(handle)
        return due if len(due) < 2 else self._interleave(due)

    def _interleave(self, due: list[TimerHandle]) -> list[TimerHandle]:
        """Return the due timers in a random order that keeps the order within each process."""
        lanes: dict[Any, list[TimerHandle]] = {}
        for handle in due:
            lanes.setdefault(handle._context.get(PROCESS), []).append(handle)  # type: ignore[attr-defined]
        if len(lanes) == 1:
            return due
        turns = [lane for lane in lanes.values() for _ in lane]
        self._rng.shuffle(turns)
        iterators = {id(lane): iter(lane) for lane in lanes.values()}
        return [next(iterators[id(lane)]) for lane in turns]

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        pass

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run `func` later on the loop."""
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_later(self._rng.expovariate(500), work)
        return future

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **how: Any
    ) -> Any:
        return await self.connect(protocol_factory, host, port)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **how: Any
    ) -> Any:
        return self.serve(protocol_factory, host, port)
