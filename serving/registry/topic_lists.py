"""Lists of a namespace's topics, updated by metadata watches and shared by all clients that watch or request a list.

A namespace is listed when a client watches or requests it. The list is kept current until the last client stops
watching and no client has requested it for `LINGER_S`, because a client that requests a list usually repeats the
request every minute. A change of the folder costs one list operation; the records of new topics are read for their
numbers of partitions. A partitioned topic's record is watched separately, because new partitions do not change the
folder. So an unchanged list costs nothing. A new topic costs a list operation and a read for any number of watching
clients. A request costs a list operation, and a read of the record of each partitioned topic.

A list contains the full names of persistent topics and of each partition, but not of partitioned topics. A used
partition also has its own record in the folder; it is listed once.

Known limitation: a topic without partitions may be deleted and created again with partitions between two list
operations. It is mistaken for the earlier topic until one of its partitions is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from quire.metadata import paths
from quire.metadata.followed import keep_reading
from quire.metadata.records import TopicRecord, decode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound
from quire.runtime.slices import Slices
from quire.runtime.tasks import Tasks
from quire.serving.names import TopicName

PAUSE_S: Final = 0.05
"""Pause, in seconds, after a list, so that creating a thousand topics does not cost a thousand list operations."""

READS_AT_ONCE: Final = 200
NAMES_A_TURN: Final = 1_000
"""Number of names processed in one time slice (`slices`); they take a millisecond or two."""

LINGER_S: Final = 150.0
"""Seconds for which a requested list is kept current: longer than the minute after which clients repeat the request."""

Listener = Callable[[frozenset[str], frozenset[str]], None]
"""Callback on the event loop with the added and the removed names."""


class TopicWatch(NamedTuple):
    """Names at the time when a listener was added, and a function that removes the listener."""

    names: frozenset[str]
    stop: Callable[[], None]


class TopicList:
    """List of the topics of one namespace; see the module's docstring."""

    def __init__(
        self, store: MetadataStore, tenant: str, namespace: str, tasks: Tasks, slices: Slices
    ) -> None:
        self.names: frozenset[str] = frozenset()
        self.listeners: dict[object, Listener] = {}
        self._store = store
        self._prefix = TopicName("persistent", tenant, namespace, "")
        self._folder = paths.topics_of(tenant, namespace)
        self._tasks = tasks
        self._slices = slices
        self._partitions: dict[str, int] = {}
        """Number of partitions by local name; 0 for a topic without partitions."""
        self._watches: dict[str, Callable[[], None]] = {}
        """Watches of the folder and of partitioned topics, by path."""
        self._listed: dict[str, int] = {}
        """Value of `_partitions` from which `names` was computed."""
        self._stale: set[str] = set()
        """Local names of topics that may have more partitions now."""
        self._changed = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._next: asyncio.Future[frozenset[str]] | None = None
        """Next list operation, which begins after the current one."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the list, and keep it current from now on. Raises `Unavailable`."""
        self._watches[self._folder] = self._store.watch(self._folder, lambda _: self._changed.set())
        try:
            await self._refresh()
        except BaseException:
            self.stop()
            raise
        work = keep_reading(self._changed, self._refresh, self._folder, PAUSE_S)
        self._task = self._tasks.start(work, f"follow {self._folder}")

    def stop(self) -> None:
        for unwatch in self._watches.values():
            unwatch()
        self._watches.clear()
        if self._task is not None:
            self._task.cancel()

    async def now(self) -> frozenset[str]:
        """Return the current names, even if watches have not fired yet. Raises `Unavailable`.

        All requests during a list operation share the next one, so that many requests cost few operations.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._list_again())
        return await asyncio.shield(self._next)

    async def _list_again(self) -> frozenset[str]:
        async with self._refreshing:
            self._next = None
            self._stale |= {name for name, count in self._partitions.items() if count}
            await self._read_folder()
            return self.names

    async def _refresh(self) -> None:
        async with self._refreshing:
            await self._read_folder()

    async def _read_folder(self) -> None:
        listed, there = await self._store.children(self._folder), set[str]()
        async for some in self._slices.parts(listed, NAMES_A_TURN):
            there.update(map(paths.decode, some))
        async for some in self._slices.parts(list(self._partitions.keys() - there), NAMES_A_TURN):
            for gone in some:
                del self._partitions[gone]
                self._unwatch(gone)
        new = there - self._partitions.keys()
        await self._read(new | (self._stale & there) | (await self._parents(new) & there))
        if self._partitions != self._listed:
            self._listed = dict(self._partitions)
            self._notify(await self._full_names())

    async def _parents(self, names: Iterable[str]) -> set[str]:
        """Return the parents of partitions in `names` that are not known as partitioned topics."""
        found: set[str] = set()
        async for some in self._slices.parts(list(names), NAMES_A_TURN):
            found |= {parent.local for name in some if (parent := self._named(name).parent) is not None}
        return {name for name in found if not self._partitions.get(name)}

    async def _read(self, names: Iterable[str]) -> None:
        """Read the numbers of partitions; watches report changes from now on."""
        wanted = sorted(names)
        async for some in self._slices.parts(wanted, READS_AT_ONCE):
            counts = await asyncio.gather(*map(self._count, some))
            self._partitions.update(
                (name, count) for name, count in zip(some, counts, strict=True) if count >= 0
            )
        self._stale -= set(wanted)

    async def _count(self, name: str) -> int:
        """Read and watch the number of partitions of a topic; return -1 if the topic was deleted."""
        if self._named(name).partition >= 0:
            return 0  # a partition is not partitioned itself
        path = self._named(name).path
        try:
            count = await self._read_record(path)
            if count and path not in self._watches:
                self._watches[path] = self._store.watch(path, lambda _: self._on_grown(name))
                count = await self._read_record(
                    path
                )  # partitions may have been added before the watch was set
        except NotFound:
            self._unwatch(name)
            return -1
        return count

    async def _read_record(self, path: str) -> int:
        return decode(TopicRecord, (await self._store.get(path)).value, path).partitions

    def _on_grown(self, name: str) -> None:
        self._stale.add(name)
        self._changed.set()

    def _unwatch(self, name: str) -> None:
        unwatch = self._watches.pop(self._named(name).path, None)
        if unwatch is not None:
            unwatch()

    def _named(self, local: str) -> TopicName:
        return self._prefix._replace(local=local)

    async def _full_names(self) -> frozenset[str]:
        """Return the full names of all listed topics. The caller holds `_refreshing`, so the list does not change."""
        found: list[str] = []
        async for some in self._slices.parts(list(self._partitions.items()), NAMES_A_TURN):
            for local, count in some:
                name = self._named(local)
                if count == 0 and not name.is_prepared(self._shown):
                    found.append(str(name))
                found += [str(name.of_partition(index)) for index in range(count)]
        return frozenset(found)

    def _shown(self, parent: TopicName) -> int:
        return self._partitions.get(parent.local, 0)

    def _notify(self, names: frozenset[str]) -> None:
        added, removed, self.names = names - self.names, self.names - names, names
        if added or removed:
            for listener in list(self.listeners.values()):
                listener(added, removed)


class TopicLists:
    """Topic lists of the namespaces that clients watch or have requested."""

    def __init__(self, store: MetadataStore, tasks: Tasks, slices: Slices) -> None:
        self._store = store
        self._tasks = tasks
        self._slices = slices
        self._lists: dict[tuple[str, str], asyncio.Future[TopicList]] = {}
        self._users: dict[tuple[str, str], int] = {}
        self._requested: dict[tuple[str, str], asyncio.TimerHandle] = {}
        """Timers after which the lists of requested namespaces are no longer kept current."""

    def __len__(self) -> int:
        """Return the number of namespaces whose lists are kept current."""
        return len(self._lists)

    async def watch(self, tenant: str, namespace: str, listener: Listener) -> TopicWatch:
        """Return the current names of a namespace's topics, and call `listener` with every later change.

        Raises `Unavailable`.
        """
        key = tenant, namespace
        followed = await self._join(key)
        token = object()
        followed.listeners[token] = listener

        def stop() -> None:
            if followed.listeners.pop(token, None) is not None:
                self._leave(key)

        return TopicWatch(followed.names, stop)

    async def names(self, tenant: str, namespace: str) -> frozenset[str]:
        """Return the current names of a namespace's topics. Raises `Unavailable`."""
        key = tenant, namespace
        followed = await self._join(key)
        try:
            return await followed.now()
        finally:
            self._linger(key)

    def _linger(self, key: tuple[str, str]) -> None:
        """Count a requested namespace as used for `LINGER_S`; one timer serves all requests."""

        def forget() -> None:
            del self._requested[key]
            self._leave(key)

        earlier = self._requested.pop(key, None)
        if earlier is not None:
            earlier.cancel()
            self._leave(key)
        self._requested[key] = asyncio.get_running_loop().call_later(LINGER_S, forget)

    async def _join(self, key: tuple[str, str]) -> TopicList:
        """Return the list of a namespace, and increase its number of users."""
        self._users[key] = self._users.get(key, 0) + 1
        starting = self._lists.get(key)
        if starting is None:
            starting = self._lists[key] = asyncio.ensure_future(self._start(*key))
        try:
            return await asyncio.shield(starting)
        except BaseException:
            if starting.done() and self._lists.get(key) is starting:
                del self._lists[key]
            self._leave(key)
            raise

    async def _start(self, tenant: str, namespace: str) -> TopicList:
        followed = TopicList(self._store, tenant, namespace, self._tasks, self._slices)
        await followed.start()
        return followed

    def _leave(self, key: tuple[str, str]) -> None:
        """Decrease the number of users; stop following a namespace without users."""
        self._users[key] -= 1
        if self._users[key] == 0:
            del self._users[key]
            followed = self._lists.pop(key, None)
            if followed is not None:
                followed.add_done_callback(_stop)


def _stop(started: asyncio.Future[TopicList]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().stop()
