"""The metadata store of a cluster: ZooKeeper, behind the same interface as the others.

    zookeeper_client    one kazoo client; its callbacks on the loop, its exceptions in our words
    zookeeper_session   is the session alive, in doubt or over: a core
    this file           paths, parents, transactions, watches, and a new client when the old session was given up

**Calls.** Sent at once, answered in order; many may be on their way. While the session is in doubt every call is
`Unavailable` at once; what was on its way then fails, a change with `OutcomeUnknown`. One unknown outcome is resolved
here: an ephemeral node that our session owns afterwards was made, and one of a session that ended is gone.

**Parents** are made when the server says that one is missing, in one transaction with what needs them: a topic's
creation is one request when its namespace is known to the server, and a refused transaction leaves nothing.

**Watches** are ZooKeeper's one-shot watches, armed again after each event and *then* told: whoever reads on being told
sees all that came before the arming, and what comes after it makes a new event. (kazoo knows no persistent watches.)
After a reconnection all are armed again and told, for nobody knows what they missed; so is one that a server did not
take in the midst of a session, as one that is too busy. An idle watch costs nothing.

**Sessions.** After LOST a new session begins as soon as a server answers; until then calls are `Unavailable`, then the
watchers are told. A session that we gave up by our own clock is ended before the new one begins. The watchdog ends one
whose process still answers ZooKeeper but does nothing else (`give_up_session`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from ssl import SSLContext
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType

from quire.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EphemeralParent,
    Node,
    OperationCounts,
    Put,
    SessionCallback,
    SessionEvent,
    Step,
    WatchCallback,
)
from quire.metadata.tree import ROOT, assert_path, parent_of
from quire.metadata.watches import Watches
from quire.metadata.zookeeper_client import (
    Answer,
    Client,
    Connected,
    in_our_words,
    is_answer,
    was_rolled_back,
)
from quire.metadata.zookeeper_session import SessionCore, SessionState
from quire.metadata.zookeeper_url import ZooKeeperUrl, parse_url
from quire.runtime import slow
from quire.runtime.credentials import NOBODY, Credentials
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    QuireError,
    Unavailable,
)
from quire.runtime.tasks import Tasks

CONNECT_TIMEOUT_S: Final = 15.0
"""How long a start waits for a server."""

NODE_BYTES_MAX: Final = 1_000_000
"""ZooKeeper cuts the connection of whoever sends more than 1 MiB (`jute.maxbuffer`)."""

PARENT_RACES_MAX: Final = 10
"""How often others may make or delete the parents that we are about to make, before we give up."""

ARM_AGAIN_S: Final = 1.0
"""How long a server that did not take a watch is left alone."""

_DATA_EVENTS: Final = {EventType.CREATED, EventType.CHANGED, EventType.DELETED}
_CHILD_EVENTS: Final = {EventType.CREATED, EventType.CHILD, EventType.DELETED}
_LOG: Final = logging.getLogger("quire.metadata")


class ZooKeeperStore:
    """A `MetadataStore`; make one with `open`."""

    def __init__(
        self,
        url: ZooKeeperUrl,
        tls: Callable[[], SSLContext] | None = None,
        login: Credentials = NOBODY,
    ) -> None:
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._session = SessionCore(url.session_timeout_ms / 1000)
        self.counts = OperationCounts()
        self._watches = Watches()
        self._all_armed = 0
        """How often all watches were armed."""
        self._tasks = Tasks("metadata")
        self._on_their_way: dict[asyncio.Future[Any], tuple[str, bool]] = {}
        self._decided = asyncio.Event()
        """Set unless the session is in doubt."""
        self._replacing = False
        self._closed = False
        self._first_connection = self._loop.create_future()
        self._begin = partial(
            Client, url.hosts, url.session_timeout_ms / 1000, self, tls if url.is_tls else None, login.data()
        )
        self._client = self._begin()
        self._timer = self._loop.call_later(self._session.wake_in(time.monotonic()), self._tick)

    @classmethod
    async def open(
        cls,
        url: str,
        tls: Callable[[], SSLContext] | None = None,
        login: Credentials = NOBODY,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> ZooKeeperStore:
        """Connect and make the chroot; `tls` for a URL that wants it. Raises `ConfigurationError`, `Unavailable`."""
        store = cls(parse_url(url), tls, login)
        try:
            await asyncio.wait_for(asyncio.shield(store._first_connection), connect_timeout_s)
            await store._make_chroot()
            if login != NOBODY:
                await store._look_who_may()
        except TimeoutError:
            refused = store._client.refused
            await store.close()
            raise await _why_unreachable(store._url, connect_timeout_s, refused) from None
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session_timeout_ms(self) -> int:
        return int(self._session.timeout_s * 1000)

    async def get(self, path: str) -> Node:
        full = self._full(path)
        self.counts.reads += 1
        value, stat = await self._ask(path, lambda kazoo: kazoo.get_async(full))
        return Node(value or b"", stat.version, stat.ephemeralOwner != 0)

    async def children(self, path: str) -> list[str]:
        full = self._full(path)
        self.counts.reads += 1
        try:
            names = await self._ask(path, lambda kazoo: kazoo.get_children_async(full))
        except NotFound:
            return []
        return sorted(names)

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        _check_size(path, value)
        self.counts.changes += 1
        session_id = self._session.session_id
        try:
            made = await self._create(path, value, ephemeral, sequential)
        except OutcomeUnknown:
            if not ephemeral or sequential:
                raise
            return await self._was_made(path, session_id)
        return made.removeprefix(self._url.chroot)

    async def _create(self, path: str, value: bytes, ephemeral: bool, sequential: bool) -> str:
        full = self._full(path)
        try:
            made: str = await self._change(
                path,
                lambda kazoo: kazoo.create_async(full, value, ephemeral=ephemeral, sequence=sequential),
            )
        except NotFound:
            results = await self._transact([Create(path, value, ephemeral)], sequential=sequential)
            made = results[-1]
        return made

    async def put(self, path: str, value: bytes, version: int) -> int:
        full = self._full(path)
        _check_size(path, value)
        self.counts.changes += 1
        stat = await self._change(path, lambda kazoo: kazoo.set_async(full, value, version))
        return int(stat.version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        full = self._full(path)
        self.counts.changes += 1
        await self._change(path, lambda kazoo: kazoo.delete_async(full, version))

    async def transact(self, steps: Sequence[Step]) -> None:
        self.counts.changes += 1
        if steps:
            await self._transact(list(steps))

    async def sync(self) -> None:
        full = self._full(ROOT)
        self.counts.reads += 1
        await self._ask(ROOT, lambda kazoo: kazoo.sync_async(full))

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        cancel = self._watches.watch(path, callback)
        if self._session.state is SessionState.CONNECTED:
            self._arm(path)
        return cancel

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        return self._watches.on_session(callback)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._decided.set()
        self._timer.cancel()
        self._watches.clear()
        await self._tasks.stop()
        await self._client.end()
        self._fail_what_is_on_its_way()

    # -- asking ----------------------------------------------------------------------------------------
    def _full(self, path: str) -> str:
        assert_path(path)
        return self._url.chroot + path if path != ROOT else self._url.chroot or ROOT

    def _ask(
        self, path: str, request: Callable[[KazooClient], Any], *, change: bool = False
    ) -> asyncio.Future[Any]:
        """Send a request now; the future has the result or an error of ours. Raises `Unavailable`."""
        self._look_at_the_clock()
        if self._closed or self._session.state is not SessionState.CONNECTED:
            raise Unavailable(
                f"ZooKeeper at {self._url.hosts} cannot be reached at the moment; try again in a while"
            )
        future = self._client.ask(request)
        self._on_their_way[future] = path, change
        return future

    def _change(self, path: str, request: Callable[[KazooClient], Any]) -> asyncio.Future[Any]:
        return self._ask(path, request, change=True)

    def client_answered(self, client: Client, answer: Answer) -> None:
        if client is self._client and is_answer(answer.error):
            resumed = self._session.answered(answer.asked_at)
            self._tell(resumed)
            if resumed is not None:
                self._arm_all()  # what was on its way to be armed was told too early
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

    # -- transactions and parents ----------------------------------------------------------------------
    async def _transact(self, steps: list[Step], *, sequential: bool = False) -> list[Any]:
        """The result of each step, among them those that make missing parents. `sequential` is the last step's."""
        for step in steps:
            _check_size(step.path, getattr(step, "value", b""))
        parents: list[Step] = []
        for _ in range(PARENT_RACES_MAX):
            whole = parents + steps
            results = await self._commit(whole, sequential)
            refused = _refused_step(results)
            if refused is None:
                return list(results)
            error = in_our_words(results[refused], whole[refused].path, change=True)
            about_parents = isinstance(error, NotFound) and isinstance(whole[refused], Create)
            if not about_parents and not (isinstance(error, AlreadyExists) and refused < len(parents)):
                raise error
            parents = await self._missing_parents(steps)
        raise Unavailable(f"the parents of metadata node {steps[0].path} come and go; try again")

    def _commit(self, steps: list[Step], sequential: bool) -> asyncio.Future[Any]:
        return self._change(
            steps[0].path, lambda kazoo: self._filled(kazoo, steps, sequential).commit_async()
        )

    def _filled(self, kazoo: KazooClient, steps: list[Step], sequential: bool) -> Any:
        transaction = kazoo.transaction()
        for step in steps:
            full = self._full(step.path)
            match step:
                case Create(_, value, ephemeral):
                    numbered = sequential and step is steps[-1]
                    transaction.create(full, value, ephemeral=ephemeral, sequence=numbered)
                case Put(_, value, version):
                    transaction.set_data(full, value, version)
                case Delete(_, version):
                    transaction.delete(full, version)
                case Check(_, version):
                    transaction.check(full, version)
        return transaction

    async def _missing_parents(self, steps: list[Step]) -> list[Step]:
        """What must be made before `steps`, top down."""
        made = {step.path for step in steps if isinstance(step, Create)} | {ROOT}
        missing: list[Step] = []
        for step in steps:
            above: list[Step] = []
            parent = parent_of(step.path)
            while isinstance(step, Create) and parent not in made:
                made.add(parent)
                if await self._stat(parent) is not None:
                    break
                above.append(Create(parent, b""))
                parent = parent_of(parent)
            missing += reversed(above)
        return missing

    def _stat(self, path: str) -> asyncio.Future[Any]:
        """ZooKeeper's record of the node, or None."""
        full = self._full(path)
        self.counts.reads += 1
        return self._ask(path, lambda kazoo: kazoo.exists_async(full))

    async def _was_made(self, path: str, session_id: int) -> str:
        """After an unknown outcome: whether our session has made the ephemeral node."""
        while not self._closed:
            await self._decided.wait()
            if (self._session.session_id, self._session.state) != (session_id, SessionState.CONNECTED):
                raise Unavailable(f"the session that was to own metadata node {path} is over; try again")
            try:
                stat = await self._stat(path)
            except Unavailable:
                continue  # in doubt again, or not yet known to be
            if stat is None:
                raise Unavailable(f"metadata node {path} was not made, as the connection broke; try again")
            if stat.ephemeralOwner != session_id:
                raise AlreadyExists(f"metadata node {path} exists already")
            return path
        raise OutcomeUnknown(
            f"the store was closed before it was known whether metadata node {path} was made"
        )

    async def _make_chroot(self) -> None:
        above = ""
        for part in self._url.chroot.split("/")[1:]:
            above += f"/{part}"
            try:
                await self._change(above, _creation(above))
            except AlreadyExists:
                continue
            except OutcomeUnknown as error:
                raise Unavailable(f"ZooKeeper at {self._url.hosts} went away; start again") from error
            except (EphemeralParent, NotFound, ConfigurationError) as error:
                raise ConfigurationError(
                    f"the chroot {self._url.chroot} cannot be made in ZooKeeper at {self._url.hosts}: {error}"
                ) from error

    async def _look_who_may(self) -> None:
        """Raises `ConfigurationError` where the chroot is another user's; tells of one that is open to everybody."""
        await self.get(ROOT)
        acls, _ = await self._ask(ROOT, lambda kazoo: kazoo.get_acls_async(self._full(ROOT)))
        if any(acl.id.scheme == "world" for acl in acls):
            _LOG.warning(
                "%s in ZooKeeper is open to everybody who reaches it, for it was made without a password: close it "
                "with zkCli.sh: addauth digest USER:PASSWORD, then setAcl -R %s auth::cdrwa",
                *(self._full(ROOT),) * 2,
            )

    # -- watches ---------------------------------------------------------------------------------------
    def client_watch(self, client: Client, kind: str, full: str) -> None:
        path = full.removeprefix(self._url.chroot) or ROOT
        if client is not self._client or not self._watches.has(path):
            return
        self.counts.watch_events += 1
        if self._session.state is SessionState.CONNECTED:
            self._arm(path, data=kind in _DATA_EVENTS, children=kind in _CHILD_EVENTS, tell=True)

    def _arm(self, path: str, *, data: bool = True, children: bool = True, tell: bool = False) -> None:
        """Ask the server to tell of the next change; when it has heard, `tell` the watchers of the last one."""
        full, client = self._full(path), self._client
        requests = []
        try:
            if data:
                requests.append(self._ask(path, lambda kazoo: kazoo.exists_async(full, client.data_watcher)))
            if children:
                requests.append(
                    self._ask(path, lambda kazoo: kazoo.get_children_async(full, client.child_watcher))
                )
        except Unavailable:
            pass  # once connected again, all are armed and told
        self.counts.reads += len(requests)
        armed = asyncio.gather(*requests, return_exceptions=True)
        armed.add_done_callback(lambda done: self._armed(path, done, tell))

    def _armed(self, path: str, armed: asyncio.Future[list[Any]], tell: bool) -> None:
        results = [] if armed.cancelled() else armed.result()
        for result in results:
            if isinstance(result, QuireError) and not isinstance(result, NotFound | Unavailable):
                _LOG.error("metadata node %s cannot be watched: %s", path, result)
        if tell:
            self._watches.notify([path])
        if any(isinstance(result, Unavailable) for result in results):
            self._loop.call_later(ARM_AGAIN_S, self._arm_again, path, self._all_armed)

    def _arm_again(self, path: str, all_armed: int) -> None:
        """The server did not take the watch, and unless the connection broke nothing else arms it."""
        is_connected = self._session.state is SessionState.CONNECTED
        if is_connected and all_armed == self._all_armed and self._watches.has(path):
            self._arm(path, tell=True)

    def _arm_all(self) -> None:
        self._all_armed += 1
        for path in self._watches.paths():
            self._arm(path, tell=True)

    # -- the session -----------------------------------------------------------------------------------
    def client_connected(self, client: Client, connected: Connected) -> None:
        if client is not self._client or self._closed:
            return
        if connected.session_id == self._session.gave_up:
            self._replace_client()
            return
        self._tell(self._session.connected(*connected))
        self._decided.set()
        if not self._first_connection.done():
            self._first_connection.set_result(None)
        _LOG.info("connected to ZooKeeper, session %x", connected.session_id)
        self._arm_all()

    def client_dropped(self, client: Client) -> None:
        if client is self._client:
            self._tell(self._session.dropped())

    def client_expired(self, client: Client) -> None:
        if client is self._client:
            self._tell(self._session.expired())

    def _tick(self) -> None:
        self._look_at_the_clock()
        now = time.monotonic()
        if self._client.is_dead:
            self._replace_client()
        elif self._session.should_ask(now):
            heard = self._client.ask(lambda kazoo: kazoo.exists_async(ROOT))
            heard.add_done_callback(asyncio.Future.exception)  # its failure is told as the session's
            self._on_their_way[heard] = ROOT, False
        self._timer = self._loop.call_later(self._session.wake_in(now), self._tick)

    def give_up_session(self) -> None:
        """End the session, for the loop stands: whoever waits for what it holds shall have it. From any thread.

        kazoo's own thread would keep it alive, as long as the process computes. When the loop turns again it hears
        that the session is lost, and a new one begins.
        """
        if not self._closed:
            self._client.give_up()

    def _look_at_the_clock(self) -> None:
        if self._client.was_given_up and not self._closed:
            self._tell(self._session.expired())
            self._replace_client()
            return
        event = self._session.tick(time.monotonic())
        if event is not None:
            self._tell(event)
            if event is SessionEvent.LOST and not self._closed:
                self._loop.call_soon(self._end_if_connected)

    def _end_if_connected(self) -> None:
        """The session that we gave up: end it now if the client thinks that it is connected, else when it is."""
        if self._client.thinks_it_is_connected:
            self._replace_client()

    def _tell(self, event: SessionEvent | None) -> None:
        if event is None or self._closed:
            return
        _LOG.log(logging.INFO if event is SessionEvent.RESUMED else logging.WARNING, _WORDS[event])
        if event is SessionEvent.SUSPENDED:
            self._decided.clear()
        else:
            self._decided.set()
        if event is not SessionEvent.RESUMED:
            self._fail_what_is_on_its_way()
        self.counts.sessions_lost += event is SessionEvent.LOST
        self._watches.notify_session(event)

    def _replace_client(self) -> None:
        if not self._replacing and not self._closed:
            self._replacing = True
            self._tasks.start(self._end_and_begin(), "new ZooKeeper session")

    async def _end_and_begin(self) -> None:
        try:
            await self._client.end()
        finally:
            self._replacing = False
        self._session.gave_up = 0
        self._client = self._begin()


_WORDS: Final = {
    SessionEvent.SUSPENDED: "the connection to ZooKeeper is in doubt",
    SessionEvent.RESUMED: "ZooKeeper answers again, and the session lives",
    SessionEvent.LOST: "the ZooKeeper session is over; a new one begins as soon as a server answers",
}


def _creation(full: str) -> Callable[[KazooClient], Any]:
    return lambda kazoo: kazoo.create_async(full, b"")


def _refused_step(results: Sequence[object]) -> int | None:
    """Which step made a transaction fail: the one whose error is its own."""
    failed = [at for at, result in enumerate(results) if isinstance(result, Exception)]
    return next((at for at in failed if not was_rolled_back(results[at])), failed[0] if failed else None)


def _check_size(path: str, value: bytes) -> None:
    if len(value) > NODE_BYTES_MAX:
        raise LimitExceeded(
            f"metadata node {path} would hold {len(value)} bytes; ZooKeeper takes {NODE_BYTES_MAX}"
        )


async def _why_unreachable(url: ZooKeeperUrl, waited_s: float, refused: str) -> QuireError:
    names = [host.rpartition(":")[0].strip("[]") for host in url.hosts.split(",")]
    loop = asyncio.get_running_loop()
    found = await asyncio.gather(*(loop.getaddrinfo(name, None) for name in names), return_exceptions=True)
    if all(isinstance(result, OSError) for result in found):
        return ConfigurationError(f"no host of zk://{url.hosts} has an address; correct the metadata URL")
    why = f" ({refused})" if refused else ""
    return Unavailable(
        f"no ZooKeeper answered at {url.hosts} within {waited_s:g} s{why}; start it or correct the metadata URL"
    )
