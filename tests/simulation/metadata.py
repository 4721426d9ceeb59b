"""Simulated ZooKeeper: one tree, a session per process, delays, lost connections and stale reads.

A change is sent to the server, applied there in one step (by the rules of `Tree`), and its result is sent back. If the
connection is lost meanwhile, the change was not applied, or was applied, or *will* be applied shortly after the caller
got an unknown outcome. The server decides when a session ends: after its time-out without contact, later (a slow
server), or early (`expire`). The process learns of it when it reconnects.

Results and watch events reach a session in order, as in ZooKeeper. With a `lag`, each session reads from a follower,
whose tree is older than the leader's. It is never older than what the session has seen or changed itself, or than its
last `sync`, and never newer than the events that were sent to the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from quire.metadata.store import (
    ANY_VERSION,
    Delete,
    Node,
    OperationCounts,
    Put,
    SessionCallback,
    SessionEvent,
    Step,
    WatchCallback,
)
from quire.metadata.tree import PERSISTENT, Tree
from quire.metadata.watches import Watches
from quire.runtime.errors import NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.testing.metadata import MemoryRows, MemoryStore

from .loop import Process
from .world import World

R = TypeVar("R")

LATENCY_S: Final = 0.0007
LATE_S: Final = 0.3
"""Time within which a change may still be applied after its caller gave it up."""

RECONNECT_S: Final = 0.2


Change = Callable[[Tree], tuple[R, set[str]]]
"""Function that changes a tree. It returns its result and the changed paths."""


class MetadataServer:
    """Server with the tree and its sessions. `observers` are called with each changed path."""

    def __init__(self, world: World, session_timeout_ms: int, lag_ms: float = 0.0) -> None:
        self.world = world
        self.rng = world.rng("metadata")
        self.session_timeout_ms = session_timeout_ms
        self.lag_s = lag_ms / 1000
        self.rows = MemoryRows()
        self.tree = Tree(self.rows)
        self.log: list[tuple[Change[Any], list[str]]] = []
        """Log of changes with their changed paths, for lagging followers."""
        self.stores: list[SimulatedStore] = []
        self.observers: list[Callable[[str], None]] = []
        self.loss = 0.0
        """Probability that a call loses its connection."""
        self.sessions = PERSISTENT

    def next_session(self) -> int:
        self.sessions += 1
        return self.sessions

    def find(self, path: str) -> Node | None:
        """Return the current node at `path`, for observers; None if it does not exist."""
        try:
            return self.tree.get(path)
        except NotFound:
            return None

    def delay(self) -> float:
        return LATENCY_S * (0.5 + self.rng.expovariate(1.0))

    def make(self, change: Change[R], told: str) -> R:
        """Apply a change to the tree. Raises the error with which the tree refuses it."""
        result, changed = change(self.tree)
        self.world.note(told)
        paths = sorted(changed)
        self.log.append((change, paths))
        for path in paths:
            for observer in self.observers:
                observer(path)
        for store in self.stores:
            store.hear()
        return result

    def end_session(self, session: int) -> None:
        self.make(lambda tree: (None, tree.end_session(session)), f"metadata: session {session} is over")


def persistent_rows(metadata: MetadataServer) -> MemoryRows:
    """Return a copy of the tree without ephemeral nodes."""
    copy = metadata.rows.copy()
    tree = Tree(copy)
    for session in sorted({row.session for row in copy._rows.values()} - {PERSISTENT}):
        tree.end_session(session)
    return copy


def beside(rows: MemoryRows) -> MemoryStore:
    """Return a separate store with a copy of these rows, like a backup that a second server serves."""
    store = MemoryStore()
    store._shared.tree = Tree(rows.copy())
    return store


class SimulatedStore:
    """Session of one process; a `MetadataStore`. See the module's docstring."""

    def __init__(self, server: MetadataServer, process: Process) -> None:
        self.server = server
        self.process = process
        self.world = server.world
        self.counts = OperationCounts()
        self.watches = Watches()
        self.session = server.next_session()
        self.is_connected = True
        self.is_expired = False
        self.is_closed = False
        self._last_at = 0.0
        self._last_arrival = 0.0
        self.absences = 0
        """Number of disconnections so far. It shows whether a scheduled expiry still applies."""
        self.is_away = False
        """True while nothing that the session sends reaches the server."""
        self._tree = server.tree if not server.lag_s else Tree(server.rows.copy())
        self._seen = len(server.log)
        """Number of the changes in the server's log that this session's follower has applied."""
        self._lag_s = server.lag_s and server.rng.choice((0.0, 1.0, 1.0)) * server.lag_s
        server.stores.append(self)
        process.on_death.append(lambda: self.away(for_ever=True))

    # -- MetadataStore ---------------------------------------------------------------------------------
    @property
    def session_timeout_ms(self) -> int:
        return self.server.session_timeout_ms

    async def get(self, path: str) -> Node:
        return await self._call(f"get {path}", lambda: self._tree.get(path))

    async def children(self, path: str) -> list[str]:
        return await self._call(f"children {path}", lambda: self._tree.children(path))

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        session = self.session if ephemeral else PERSISTENT
        return await self._change(
            f"create {path}", lambda tree: tree.create(path, value, session, sequential=sequential)
        )

    async def put(self, path: str, value: bytes, version: int) -> int:
        session = self.session
        versions = await self._change(
            f"put {path} at {version}", lambda tree: tree.transact([Put(path, value, version)], session)
        )
        return versions[0]

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        session = self.session
        await self._change(
            f"delete {path} at {version}", lambda tree: tree.transact([Delete(path, version)], session)
        )

    async def transact(self, steps: Sequence[Step]) -> None:
        session = self.session
        what = ", ".join(f"{type(step).__name__} {step.path}" for step in steps)
        await self._change(what, lambda tree: tree.transact(steps, session))

    async def sync(self) -> None:
        await self._call("sync", self._catch_up)

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        return self.watches.watch(path, callback)

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        return self.watches.on_session(callback)

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.is_connected = False
            self.watches.clear()
            self.server.stores.remove(self)
            self.world.later(self.server.delay(), self.server.end_session, self.session)

    # -- faults ----------------------------------------------------------------------------------------
    def away(self, *, for_ever: bool = False) -> None:
        """Disconnect the session from the server: its process is dead or paused, or the link is cut."""
        if self.is_closed:
            return
        if not self.is_away:
            self.is_away = True
            self.absences += 1
            timeout_s = self.session_timeout_ms / 1000 * self.server.rng.choice((1.0, 1.0, 1.3, 2.5))
            self.world.later(timeout_s, self._expire_if_away, self.absences)
        if for_ever:
            self.is_closed = True
            if self in self.server.stores:
                self.server.stores.remove(self)
        elif self.is_connected:
            self.is_connected = False
            self._tell(0.0, SessionEvent.SUSPENDED)

    def back(self) -> None:
        if self.is_away and not self.is_closed:
            self.is_away = False
            self._reconnect_soon()

    def expire(self) -> None:
        """End the session at the server. The process learns of it when it reconnects."""
        if not self.is_closed and not self.is_expired:
            self.is_expired = True
            self.server.end_session(self.session)
            if not self.is_away:
                self._lose_connection()

    def see_another_tree(self) -> None:
        """Follow the server's new tree after it was replaced, which ends the session."""
        self._tree = self.server.tree if not self.server.lag_s else Tree(self.server.rows.copy())
        self._seen = len(self.server.log)
        self.expire()

    def _expire_if_away(self, absence: int) -> None:
        if self.is_away and absence == self.absences and not self.is_expired:
            self.is_expired = True
            self.server.end_session(self.session)

    def _lose_connection(self) -> None:
        if self.is_connected and not self.is_closed:
            self.is_connected = False
            self._tell(0.0, SessionEvent.SUSPENDED)
            self._reconnect_soon()

    def _reconnect_soon(self) -> None:
        self.world.later(self.server.rng.random() * RECONNECT_S, self._reconnect)

    def _reconnect(self) -> None:
        if self.is_away or self.is_connected or self.is_closed:
            return
        self.is_connected = True
        if self.is_expired:
            self.is_expired = False
            self.session = self.server.next_session()
            self._catch_up()  # because the begin of a session is also a change
            self.counts.sessions_lost += 1
            self.world.note(f"{self.process}: hears that its session is over")
            self.world.saw("session lost")
            self._tell(self.server.delay(), SessionEvent.LOST)
        else:
            self._tell(self.server.delay(), SessionEvent.RESUMED)
        self._at(self.server.delay(), self.watches.notify_all)

    # -- inside ----------------------------------------------------------------------------------------
    def hear(self) -> None:
        """Learn that the tree has changed: apply the change to this session's view, now or after the lag."""
        if self._lag_s:
            self.world.later(self._lag_s * self.server.rng.random(), self._catch_up, len(self.server.log))
        else:
            self._catch_up()

    def _catch_up(self, behind: int | None = None) -> None:
        """Apply the server's log (all of it, or up to `behind`), and send watch events unless disconnected."""
        log = self.server.log
        for change, paths in log[self._seen : behind]:
            if self._tree is not self.server.tree:
                change(self._tree)
            if self.is_connected and any(self.watches.has(path) for path in paths):
                self.counts.watch_events += 1
                self._at(self.server.delay(), self.watches.notify, paths)
        self._seen = max(self._seen, len(log) if behind is None else behind)

    def _tell(self, delay_s: float, event: SessionEvent) -> None:
        self._at(delay_s, self.watches.notify_session, event)

    def _at(self, delay_s: float, act: Callable[..., Any], *args: Any) -> None:
        """Call `act` in the process after `delay_s`, after all calls scheduled before it."""
        loop = self.world.loop
        self._last_at = max(self._last_at + 1e-9, loop.time() + delay_s)
        loop.call_at(self._last_at, act, *args, context=self.process.context)

    async def _call(self, what: str, work: Callable[[], R]) -> R:
        self.counts.reads += 1
        if self._seen < len(self.server.log):
            self.world.saw("metadata read that lags")
        return await self._travel(
            what, work, Unavailable("the metadata store does not answer; try again"), 0.5
        )

    async def _change(self, what: str, change: Change[R]) -> R:
        self.counts.changes += 1

        def work() -> R:
            try:
                return self.server.make(change, f"{self.process}: {what}")
            finally:
                self._catch_up()  # the follower sends refusals, too, after all earlier changes

        return await self._travel(what, work, OutcomeUnknown("the metadata store did not answer"), 1.0)

    async def _travel(self, what: str, work: Callable[[], R], lost: QuireError, weight: float) -> R:
        if not self.is_connected:
            raise Unavailable("the metadata store cannot be reached; try again")
        server, rng = self.server, self.server.rng
        answer: asyncio.Future[R] = self.world.loop.create_future()
        session = self.session
        fate = rng.choice(("before", "after", "later")) if rng.random() < server.loss * weight else "well"

        def give_up() -> None:
            if not answer.done():
                self.world.saw("metadata outcome unknown" if weight == 1.0 else "metadata read lost")
                self.world.note(f"{self.process}: outcome unknown of {what}")
                answer.set_exception(lost)

        def arrive() -> None:
            if self.is_away or self._is_over(session):
                self._at(0.0, give_up)
                return
            try:
                result, error = work(), None
            except QuireError as refusal:
                result, error = None, refusal
            if fate == "well":
                self._at(server.delay(), _settle, answer, result, error)
            else:
                self._at(server.delay(), give_up)

        if fate == "well" or fate == "after":
            loop = self.world.loop
            self._last_arrival = max(self._last_arrival + 1e-9, loop.time() + server.delay())
            loop.call_at(self._last_arrival, arrive, context=self.world.context)
        else:
            self._at(server.delay(), give_up)
            if fate == "later" and weight == 1.0:
                self.world.later(rng.random() * LATE_S, self._make_late, session, work)
        if fate != "well" and rng.random() < 0.5:
            self.world.later(server.delay(), self._lose_connection)
        return await answer

    def _is_over(self, session: int) -> bool:
        """Return whether the server has ended the session, so that it must not apply the session's changes."""
        return self.is_expired or session != self.session

    def _make_late(self, session: int, work: Callable[[], Any]) -> None:
        if self._is_over(session):
            return
        try:
            work()
            self.world.saw("metadata change made after its maker gave up")
        except QuireError:
            pass


def _settle(answer: asyncio.Future[Any], result: Any, error: QuireError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
