"""Lease: an ephemeral node that at most one process holds.

A holder that lost contact to the store is in doubt for the session's time-out. It may continue work that its lease
covers, but begins nothing that depends on the lease. By its own clock, without the store, it gives up the lease no
later than the store may give it to another process. Even so, safety never depends on a lease alone: a process may pause
between a check of its lease and an action, so the next owner fences (see [how to do distributed
locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html)).

`LeaseCore` is the state machine, without I/O; `Lease` is the shell that creates and watches the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

from quire.metadata.store import MetadataStore, SessionEvent
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from quire.runtime.transitions import Transitions

_TICK_S: Final = 0.001
"""Minimum delay of a timer in seconds: a shorter timer may fire before the clock advances, and be set again at once."""


class LeaseState(Enum):
    FREE = "free"
    HELD = "held"
    IN_DOUBT = "in doubt"
    LOST = "lost"


class LeaseEvent(Enum):
    """Events of a lease, in addition to those of its session."""

    MADE = "this process's node was created, or found"
    GONE = "the node does not exist, or belongs to another process"
    TIMED_OUT = "the session's time-out has passed, by the monotonic clock"
    RELEASED = "its holder releases it"


TRANSITIONS: Final = Transitions[LeaseState, LeaseEvent | SessionEvent](
    "a lease",
    {
        (LeaseState.FREE, LeaseEvent.MADE): LeaseState.HELD,
        (LeaseState.FREE, LeaseEvent.GONE): LeaseState.FREE,
        (LeaseState.FREE, LeaseEvent.RELEASED): LeaseState.FREE,
        (LeaseState.FREE, SessionEvent.SUSPENDED): LeaseState.FREE,
        (LeaseState.FREE, SessionEvent.RESUMED): LeaseState.FREE,
        (LeaseState.FREE, SessionEvent.LOST): LeaseState.FREE,
        (LeaseState.HELD, LeaseEvent.MADE): LeaseState.HELD,
        (LeaseState.HELD, LeaseEvent.GONE): LeaseState.LOST,
        (LeaseState.HELD, LeaseEvent.RELEASED): LeaseState.FREE,
        (LeaseState.HELD, SessionEvent.SUSPENDED): LeaseState.IN_DOUBT,
        (LeaseState.HELD, SessionEvent.RESUMED): LeaseState.HELD,
        (LeaseState.HELD, SessionEvent.LOST): LeaseState.LOST,
        (LeaseState.IN_DOUBT, LeaseEvent.MADE): LeaseState.HELD,
        (LeaseState.IN_DOUBT, LeaseEvent.TIMED_OUT): LeaseState.LOST,
        (LeaseState.IN_DOUBT, LeaseEvent.GONE): LeaseState.LOST,
        (LeaseState.IN_DOUBT, LeaseEvent.RELEASED): LeaseState.FREE,
        (LeaseState.IN_DOUBT, SessionEvent.SUSPENDED): LeaseState.IN_DOUBT,
        (LeaseState.IN_DOUBT, SessionEvent.RESUMED): LeaseState.HELD,
        (LeaseState.IN_DOUBT, SessionEvent.LOST): LeaseState.LOST,
        (LeaseState.LOST, LeaseEvent.MADE): LeaseState.HELD,
        (LeaseState.LOST, LeaseEvent.GONE): LeaseState.LOST,
        (LeaseState.LOST, LeaseEvent.RELEASED): LeaseState.FREE,
        (LeaseState.LOST, SessionEvent.SUSPENDED): LeaseState.LOST,
        (LeaseState.LOST, SessionEvent.RESUMED): LeaseState.LOST,
        (LeaseState.LOST, SessionEvent.LOST): LeaseState.LOST,
    },
)


class LeaseCore:
    """State of one lease. Times are monotonic seconds."""

    def __init__(self, session_timeout_s: float) -> None:
        self._session_timeout_s = session_timeout_s
        self._state = LeaseState.FREE
        self._deadline = 0.0

    def state(self, now: float) -> LeaseState:
        if self._state is LeaseState.IN_DOUBT and now >= self._deadline:
            self._take(LeaseEvent.TIMED_OUT)
        return self._state

    def doubt_ends_in(self, now: float) -> float:
        """Return the seconds until a lease in doubt is lost."""
        return max(0.0, self._deadline - now)

    def made(self) -> None:
        self._take(LeaseEvent.MADE)

    def gone(self) -> None:
        """Record that the node does not exist, or belongs to another process."""
        self._take(LeaseEvent.GONE)

    def released(self) -> None:
        self._take(LeaseEvent.RELEASED)

    def session(self, event: SessionEvent, now: float) -> None:
        before = self.state(now)
        self._take(event)
        if before is LeaseState.HELD and self._state is LeaseState.IN_DOUBT:
            self._deadline = now + self._session_timeout_s

    def _take(self, event: LeaseEvent | SessionEvent) -> None:
        self._state = TRANSITIONS.next(self._state, event)


class Lease:
    """Lease on `path`. `value` must be unique to this holder (a broker id with a unique part).

    `changed` is called on the event loop with each new state.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        value: bytes,
        clock: Clock,
        changed: Callable[[LeaseState], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._path = path
        self._value = value
        self._clock = clock
        self._changed = changed
        self._core = LeaseCore(store.session_timeout_ms / 1000)
        self._told = LeaseState.FREE
        self._node_changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._look_task: asyncio.Task[None] | None = None
        self._cancels = [store.watch(path, self._node_event), store.on_session(self._session_event)]

    @property
    def state(self) -> LeaseState:
        """Current state, by this process's clock; `changed` may be called a little later."""
        return self._core.state(self._clock.monotonic())

    async def try_acquire(self) -> bool:
        """Acquire the lease if it is free. Raises `Unavailable`, `OutcomeUnknown`."""
        while True:
            try:
                await self._store.create(self._path, self._value, ephemeral=True)
                break
            except (AlreadyExists, OutcomeUnknown):
                holder = await self._holder()
            if holder == self._value:
                break
            if holder is not None:
                return False
            # The lease is free. Try again at once, because no further change of the node may follow.
        self._core.made()
        self._tell()
        return True

    async def acquire(self) -> None:
        """Acquire the lease as soon as it is free. Raises `Unavailable`, `OutcomeUnknown`."""
        while True:
            self._node_changed.clear()
            if await self.try_acquire():
                return
            await self._node_changed.wait()

    async def release(self) -> None:
        """Release the lease and stop watching the node. This object must not be used afterwards."""
        for cancel in self._cancels:
            cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._look_task is not None:
            self._look_task.cancel()
        held = self.state in (LeaseState.HELD, LeaseState.IN_DOUBT)
        self._core.released()
        self._tell()
        if held:
            await self._delete_node()

    async def _delete_node(self) -> None:
        try:
            node = await self._store.get(self._path)
            if node.value == self._value:
                await self._store.delete(self._path, node.version)
        except (NotFound, Unavailable, OutcomeUnknown):
            pass  # the node is deleted with the session

    async def _holder(self) -> bytes | None:
        """Return the holder's value; None if the lease is free."""
        try:
            return (await self._store.get(self._path)).value
        except NotFound:
            return None

    # -- events ----------------------------------------------------------------------------------------
    def _session_event(self, event: SessionEvent) -> None:
        self._core.session(event, self._clock.monotonic())
        if event is SessionEvent.SUSPENDED:
            self._arm()
        self._node_changed.set()
        self._tell()

    def _node_event(self, _: str) -> None:
        self._node_changed.set()
        if self.state is LeaseState.HELD and (self._look_task is None or self._look_task.done()):
            self._look_task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Check after a change of the node whether this process still holds the lease."""
        try:
            ours = await self._holder() == self._value
        except (Unavailable, OutcomeUnknown):
            return  # the session's events decide
        if not ours and self.state is LeaseState.HELD:
            self._core.gone()
            self._tell()

    def _arm(self) -> None:
        remaining = self._core.doubt_ends_in(self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(max(remaining, _TICK_S), self._timeout)

    def _timeout(self) -> None:
        if self.state is LeaseState.IN_DOUBT:
            self._arm()  # the event loop's clock differs from the lease's clock
        self._tell()

    def _tell(self) -> None:
        state = self.state
        if state is not self._told:
            self._told = state
            self._changed(state)
