"""Calls and watches of a store, over successive sessions: the shell of `zookeeper_session`.

**Calls** are sent at once and answered in order; many may be in flight. When the session becomes in doubt, calls in
flight fail: reads with `Unavailable`, changes with `OutcomeUnknown`. Until it continues, every new call raises
`Unavailable` at once.

**Watches** are ZooKeeper's one-shot watches. After each event, a watch is armed again and *then* its callback runs. So
a read in the callback sees all changes before the arming, and each later change is a new event. (kazoo does not support
persistent watches.) After a reconnection, all watches are armed and their callbacks run, because events may have been
missed. The same applies to a watch that an overloaded server refused to arm. An idle watch costs nothing.

**Sessions.** After LOST, a new session begins as soon as a server answers. Until then calls are `Unavailable`; then
all watchers are called. A session that this process gave up by its own clock is ended before the new one begins. The
watchdog ends the session of a process that still answers ZooKeeper but does nothing else (`give_up`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from ssl import SSLContext
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType

from quire.metadata.store import OperationCounts, SessionEvent, WatchCallback
from quire.metadata.tree import ROOT, assert_path
from quire.metadata.watches import Watches
from quire.metadata.zookeeper_client import Answer, Client, Connected, in_our_words, is_answer
from quire.metadata.zookeeper_session import SessionCore, SessionState
from quire.metadata.zookeeper_url import ZooKeeperUrl
from quire.runtime import slow
from quire.runtime.credentials import Credentials
from quire.runtime.errors import NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.runtime.tasks import Tasks

ARM_AGAIN_S: Final = 1.0
"""Delay in seconds before a watch that a server refused to arm is requested again."""

_DATA_EVENTS: Final = {EventType.CREATED, EventType.CHANGED, EventType.DELETED}
_CHILD_EVENTS: Final = {EventType.CREATED, EventType.CHILD, EventType.DELETED}
_LOG: Final = logging.getLogger("quire.metadata")
_WORDS: Final = {
    SessionEvent.SUSPENDED: "the connection to ZooKeeper is in doubt",
    SessionEvent.RESUMED: "ZooKeeper answers again, and the session continues",
    SessionEvent.LOST: "the ZooKeeper session is over; a new one begins as soon as a server answers",
}


class ZooKeeperWatches(Watches):
    """Watchers of one store, and the ZooKeeper watches that notify them."""

    def __init__(self, connection: ZooKeeperConnection) -> None:
        super().__init__()
        self._connection = connection
        self._all_armed = 0
        """Number of times that all watches were armed."""

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        cancel = super().watch(path, callback)
        if self._connection.is_usable:
            self._arm(path)
        return cancel

    def watch_fired(self, kind: str, full: str) -> None:
        path = full.removeprefix(self._connection.url.chroot) or ROOT
        if not self.has(path):
            return
        self._connection.counts.watch_events += 1
        if self._connection.is_usable:
            self._arm(path, data=kind in _DATA_EVENTS, children=kind in _CHILD_EVENTS, tell=True)

    def _arm(self, path: str, *, data: bool = True, children: bool = True, tell: bool = False) -> None:
        """Request the ZooKeeper watches of a path. If `tell`, call the path's watchers after the server's responses."""
        connection = self._connection
        full, client = connection.full(path), connection.client
        requests = []
        try:
            if data:
                requests.append(
                    connection.ask(path, lambda kazoo: kazoo.exists_async(full, client.data_watcher))
                )
            if children:
                requests.append(
                    connection.ask(path, lambda kazoo: kazoo.get_children_async(full, client.child_watcher))
                )
        except Unavailable:
            pass  # after the reconnection, all watches are armed and all watchers called
        connection.counts.reads += len(requests)
        armed = asyncio.gather(*requests, return_exceptions=True)
        armed.add_done_callback(lambda done: self._armed(path, done, tell))

    def _armed(self, path: str, armed: asyncio.Future[list[Any]], tell: bool) -> None:
        results = [] if armed.cancelled() else armed.result()
        for result in results:
            if isinstance(result, QuireError) and not isinstance(result, NotFound | Unavailable):
                _LOG.error("metadata node %s cannot be watched: %s", path, result)
        if tell:
            self.notify([path])
        if any(isinstance(result, Unavailable) for result in results):
            asyncio.get_running_loop().call_later(ARM_AGAIN_S, self._arm_again, path, self._all_armed)

    def _arm_again(self, path: str, all_armed: int) -> None:
        """Request again a watch that the server refused, unless a reconnection has armed all watches meanwhile."""
        if self._connection.is_usable and all_armed == self._all_armed and self.has(path):
            self._arm(path, tell=True)

    def arm_all(self) -> None:
        self._all_armed += 1
        for path in self.paths():
            self._arm(path, tell=True)


class ZooKeeperConnection:
    """Connection of one store. Its client is replaced after a session was given up."""

    def __init__(self, url: ZooKeeperUrl, tls: Callable[[], SSLContext] | None, login: Credentials) -> None:
        self._loop = asyncio.get_running_loop()
        self.url = url
        self.counts = OperationCounts()
        self.watches = ZooKeeperWatches(self)
        self.session = SessionCore(url.session_timeout_ms / 1000)
        self.decided = asyncio.Event()
        """Set unless the session is in doubt."""
        self.first: asyncio.Future[None] = self._loop.create_future()
        """Done after the first connection."""
        self.is_closed = False
        self._tasks = Tasks("metadata")
        self._on_their_way: dict[asyncio.Future[Any], tuple[str, bool]] = {}
        self._replacing = False
        self._begin = partial(
            Client, url.hosts, url.session_timeout_ms / 1000, self, tls if url.is_tls else None, login.data()
        )
        self.client = self._begin()
        self._timer = self._loop.call_later(self.session.wake_in(time.monotonic()), self._tick)

    @property
    def is_usable(self) -> bool:
        """Return whether the session is alive, so that calls may be sent."""
        return not self.is_closed and self.session.state is SessionState.CONNECTED

    async def close(self) -> None:
        self.is_closed = True
        self.decided.set()
        self._timer.cancel()
        self.watches.clear()
        await self._tasks.stop()
        await self.client.end()
        self._fail_what_is_on_its_way()

    # -- asking ----------------------------------------------------------------------------------------
    def full(self, path: str) -> str:
        assert_path(path)
        return self.url.chroot + path if path != ROOT else self.url.chroot or ROOT

    def ask(
        self, path: str, request: Callable[[KazooClient], Any], *, change: bool = False
    ) -> asyncio.Future[Any]:
        """Send a request now; the future gets the result or a QuireError. Raises `Unavailable`."""
        self._look_at_the_clock()
        if not self.is_usable:
            raise Unavailable(
                f"ZooKeeper at {self.url.hosts} cannot be reached at the moment; try again in a while"
            )
        future = self.client.ask(request)
        self._on_their_way[future] = path, change
        return future

    def change(self, path: str, request: Callable[[KazooClient], Any]) -> asyncio.Future[Any]:
        return self.ask(path, request, change=True)

    def client_answered(self, client: Client, answer: Answer) -> None:
        if client is self.client and is_answer(answer.error):
            resumed = self.session.answered(answer.asked_at)
            self._tell(resumed)
            if resumed is not None:
                self.watches.arm_all()  # some watchers may have been called before their watch was armed
        path, change = self._on_their_way.pop(answer.future, ("", False))
        if (took_s := time.monotonic() - answer.asked_at) > slow.BOUND.s:
            slow.tell("metadata", f"{'a change' if change else 'a read'} of {path}", took_s, path=path)
        if answer.future.done():
            return
        if answer.error is None:
            answer.future.set_result(answer.result)
        else:
            answer.future.set_exception(in_our_words(answer.error, path, change=change))

    def _fail_what_is_on_its_way(self) -> None:
        for future, (path, change) in self._on_their_way.items():
            if not future.done():
                kind = OutcomeUnknown if change else Unavailable
                future.set_exception(kind(f"ZooKeeper did not answer in time about {path}; look again later"))
        self._on_their_way.clear()

    # -- the session -----------------------------------------------------------------------------------
    def client_watch(self, client: Client, kind: str, full: str) -> None:
        if client is self.client:
            self.watches.watch_fired(kind, full)

    def client_connected(self, client: Client, connected: Connected) -> None:
        if client is not self.client or self.is_closed:
            return
        if connected.session_id == self.session.gave_up:
            self._replace_client()
            return
        self._tell(self.session.connected(*connected))
        self.decided.set()
        if not self.first.done():
            self.first.set_result(None)
        _LOG.info("connected to ZooKeeper, session %x", connected.session_id)
        self.watches.arm_all()

    def client_dropped(self, client: Client) -> None:
        if client is self.client:
            self._tell(self.session.dropped())

    def client_expired(self, client: Client) -> None:
        if client is self.client:
            self._tell(self.session.expired())

    def _tick(self) -> None:
        self._look_at_the_clock()
        now = time.monotonic()
        if self.client.is_dead:
            self._replace_client()
        elif self.session.should_ask(now):
            heard = self.client.ask(lambda kazoo: kazoo.exists_async(ROOT))
            heard.add_done_callback(asyncio.Future.exception)  # a failure becomes an event of the session
            self._on_their_way[heard] = ROOT, False
        self._timer = self._loop.call_later(self.session.wake_in(now), self._tick)

    def give_up(self) -> None:
        """End the session, because the loop is blocked and other processes need its leases. Thread-safe.

        Otherwise, kazoo's own thread would keep the session alive. When the loop runs again, the session is reported as
        lost, and a new one begins.
        """
        if not self.is_closed:
            self.client.give_up()

    def _look_at_the_clock(self) -> None:
        if self.client.was_given_up and not self.is_closed:
            self._tell(self.session.expired())
            self._replace_client()
            return
        event = self.session.tick(time.monotonic())
        if event is not None:
            self._tell(event)
            if event is SessionEvent.LOST and not self.is_closed:
                self._loop.call_soon(self._end_if_connected)

    def _end_if_connected(self) -> None:
        """End the session that was given up, if the client seems connected; otherwise, `client_connected` ends it."""
        if self.client.thinks_it_is_connected:
            self._replace_client()

    def _tell(self, event: SessionEvent | None) -> None:
        if event is None or self.is_closed:
            return
        _LOG.log(logging.INFO if event is SessionEvent.RESUMED else logging.WARNING, _WORDS[event])
        if event is SessionEvent.SUSPENDED:
            self.decided.clear()
        else:
            self.decided.set()
        if event is not SessionEvent.RESUMED:
            self._fail_what_is_on_its_way()
        self.counts.sessions_lost += event is SessionEvent.LOST
        self.watches.notify_session(event)

    def _replace_client(self) -> None:
        if not self._replacing and not self.is_closed:
            self._replacing = True
            self._tasks.start(self._end_and_begin(), "new ZooKeeper session")

    async def _end_and_begin(self) -> None:
        try:
            await self.client.end()
        finally:
            self._replacing = False
        self.session.gave_up = 0
        self.client = self._begin()
