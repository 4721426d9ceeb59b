"""The topics of a namespace as clients see them: kept up by watches, for all clients that watch it or ask for it.

A namespace is listed when a client watches it or asks for it, and followed until the last watcher is gone and no client
has asked for a while: a client that asks does so every minute mostly. A change of the folder is one list; of what is
new in it the records are read, for they say how many partitions a topic has. A topic with partitions is watched by
itself, since more of them do not change the folder. So an idle list costs nothing, a topic that comes costs a list and
a read, however many watchers there are, and a question a list and the records of topics with partitions.

Names are full ones, partitions each, their parents not; those of topics that keep nothing are not among them.
A partition that was used has a record of its own and is in the folder, too: it is listed once.

Known gap: a topic without partitions that is deleted and made anew with partitions, all between two lists, is taken
for the earlier one until one of its partitions is used.
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
"""After a list, so that a thousand topics that are made one by one are not a thousand lists."""

READS_AT_ONCE: Final = 200
NAMES_A_TURN: Final = 1_000
"""A millisecond or two of work on names (`slices`)."""

LINGER_S: Final = 150.0
"""How long a list is followed for a client that asked: longer than the minute after which it asks again."""

Listener = Callable[[frozenset[str], frozenset[str]], None]
"""Called on the loop with the names that came, and those that went."""


class Watched(NamedTuple):
    """What was there when the listener was taken, and how to end that."""

    names: frozenset[str]
    stop: Callable[[], None]


class TopicList:
    """The topics of one namespace; see the top of the file."""

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
        """By local name; 0 for a topic that has none."""
        self._watches: dict[str, Callable[[], None]] = {}
        """Of the folder, and of topics with partitions, by path."""
        self._told: dict[str, int] = {}
        """What `names` was made of."""
        self._stale: set[str] = set()
        """Local names of topics whose number of partitions may have changed."""
        self._changed = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._next: asyncio.Future[frozenset[str]] | None = None
        """The list that begins when the one that is being made is there."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read it and follow it from now on. Raises `Unavailable`."""
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
        """The names as they are now, whether or not watches have told of it. Raises `Unavailable`.

        All who ask while the folder is being listed share the next list, so that many questions are few lists.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._list_anew())
        return await asyncio.shield(self._next)

    async def _list_anew(self) -> frozenset[str]:
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
        if self._partitions != self._told:
            self._told = dict(self._partitions)
            self._tell(await self._full_names())

    async def _parents(self, names: Iterable[str]) -> set[str]:
        """Topics that are not known to have partitions, and of which one was made."""
        found: set[str] = set()
        async for some in self._slices.parts(list(names), NAMES_A_TURN):
            found |= {parent.local for name in some if (parent := self._named(name).parent) is not None}
        return {name for name in found if not self._partitions.get(name)}

    async def _read(self, names: Iterable[str]) -> None:
        """How many partitions they have, read now: what changes from now on is told by a watch."""
        wanted = sorted(names)
        async for some in self._slices.parts(wanted, READS_AT_ONCE):
            counts = await asyncio.gather(*map(self._count, some))
            self._partitions.update(
                (name, count) for name, count in zip(some, counts, strict=True) if count >= 0
            )
        self._stale -= set(wanted)

    async def _count(self, name: str) -> int:
        """-1 for a topic that is gone by now."""
        if self._named(name).partition >= 0:
            return 0  # a partition has none
        path = self._named(name).path
        try:
            count = await self._read_record(path)
            if count and path not in self._watches:
                self._watches[path] = self._store.watch(path, lambda _: self._grew(name))
                count = await self._read_record(path)  # it may have grown before it was watched
        except NotFound:
            self._unwatch(name)
            return -1
        return count

    async def _read_record(self, path: str) -> int:
        return decode(TopicRecord, (await self._store.get(path)).value, path).partitions

    def _grew(self, name: str) -> None:
        self._stale.add(name)
        self._changed.set()

    def _unwatch(self, name: str) -> None:
        unwatch = self._watches.pop(self._named(name).path, None)
        if unwatch is not None:
            unwatch()

    def _named(self, local: str) -> TopicName:
        return self._prefix._replace(local=local)

    async def _full_names(self) -> frozenset[str]:
        """Of all topics that are shown. Nothing else changes them meanwhile (`_refreshing`)."""
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

    def _tell(self, names: frozenset[str]) -> None:
        came, went, self.names = names - self.names, self.names - names, names
        if came or went:
            for listener in list(self.listeners.values()):
                listener(came, went)


class TopicLists:
    """The namespaces that clients watch."""

    def __init__(self, store: MetadataStore, tasks: Tasks, slices: Slices) -> None:
        self._store = store
        self._tasks = tasks
        self._slices = slices
        self._lists: dict[tuple[str, str], asyncio.Future[TopicList]] = {}
        self._users: dict[tuple[str, str], int] = {}
        self._asked: dict[tuple[str, str], asyncio.TimerHandle] = {}
        """Namespaces that are followed because a client asked for them, and what ends that."""

    def __len__(self) -> int:
        """How many namespaces are followed."""
        return len(self._lists)

    async def watch(self, tenant: str, namespace: str, listener: Listener) -> Watched:
        """The names now; every change from then on is told to `listener`. Raises `Unavailable`."""
        key = tenant, namespace
        followed = await self._join(key)
        token = object()
        followed.listeners[token] = listener

        def stop() -> None:
            if followed.listeners.pop(token, None) is not None:
                self._leave(key)

        return Watched(followed.names, stop)

    async def names(self, tenant: str, namespace: str) -> frozenset[str]:
        """The names as they are now. Raises `Unavailable`."""
        key = tenant, namespace
        followed = await self._join(key)
        try:
            return await followed.now()
        finally:
            self._linger(key)

    def _linger(self, key: tuple[str, str]) -> None:
        """A client that asked counts as a user for some time; once, however many ask."""

        def forget() -> None:
            del self._asked[key]
            self._leave(key)

        earlier = self._asked.pop(key, None)
        if earlier is not None:
            earlier.cancel()
            self._leave(key)
        self._asked[key] = asyncio.get_running_loop().call_later(LINGER_S, forget)

    async def _join(self, key: tuple[str, str]) -> TopicList:
        """The list of a namespace, with one user more."""
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
        """One user less; a namespace without users is not followed."""
        self._users[key] -= 1
        if self._users[key] == 0:
            del self._users[key]
            followed = self._lists.pop(key, None)
            if followed is not None:
                followed.add_done_callback(_stop)


def _stop(started: asyncio.Future[TopicList]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().stop()
