"""Who is there, and how to reach them.

A `BookieDirectory` answers two questions at once and without waiting: which bookies are up, and which port leads to
a given one. Identity is UUID and incarnation, never an address. A port leads to a UUID; every request names the
incarnation, and the bookie itself judges what it can still say for an earlier one. A bookie that nobody knows has a
port as well, which says `UNREACHABLE`.

`LocalDirectory` has ports that were put into it (one process, tests); `ClusterDirectory` follows the metadata store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from quire.metadata import paths
from quire.metadata.followed import Followed
from quire.metadata.records import BookieRecord, Storage
from quire.metadata.store import MetadataStore
from quire.runtime.tasks import Tasks
from quire.wire.bookie import AddDone, AddRequest, BookieId, BookiePort, Request, Status

R = TypeVar("R")


class BookieDirectory(Protocol):
    def available(self) -> Sequence[BookieRecord]:
        """Bookies that are up, read-only ones among them."""
        ...

    def port(self, bookie: BookieId) -> BookiePort:
        """The way to `bookie`; one that answers `UNREACHABLE` when there is none."""
        ...

    @property
    def storage(self) -> Storage:
        """Where ledgers are kept whose creator says nothing else."""
        ...

    def own_wal(self) -> BookieId | None:
        """The write-ahead log on object storage that this process writes now."""
        ...


class UnreachablePort:
    """The port of a bookie that nobody knows: every outcome is unknown. A `BookiePort`."""

    def add(self, request: AddRequest, done: AddDone) -> None:
        asyncio.get_running_loop().call_soon(done, [Status.UNREACHABLE] * len(request.blocks))

    async def ask(self, request: Request[R]) -> R:
        return request.refused(Status.UNREACHABLE)


_NOBODY = UnreachablePort()


class BookiesAlone:
    """The part of a `BookieDirectory` that knows of no object storage."""

    storage: Final = Storage.BOOKIES

    def own_wal(self) -> BookieId | None:
        return None


class LocalDirectory(BookiesAlone):
    """Bookies of this process. A `BookieDirectory`."""

    def __init__(self) -> None:
        self._records: dict[str, Callable[[], BookieRecord]] = {}
        self._ports: dict[str, BookiePort] = {}

    def join(self, record: BookieRecord | Callable[[], BookieRecord], port: BookiePort) -> None:
        """A bookie is up; a callable record is asked each time (it may turn read-only)."""
        describe = record if callable(record) else (lambda: record)
        uuid = describe().uuid
        self._records[uuid] = describe
        self._ports[uuid] = port

    def leave(self, uuid: str) -> None:
        self._records.pop(uuid, None)
        self._ports.pop(uuid, None)

    def available(self) -> Sequence[BookieRecord]:
        return [describe() for describe in self._records.values()]

    def port(self, bookie: BookieId) -> BookiePort:
        return self._ports.get(bookie.uuid, _NOBODY)


class ClosablePort(BookiePort, Protocol):
    """A port with a connection behind it."""

    async def close(self) -> None: ...


class ClusterDirectory(BookiesAlone):
    """Follows `bookies-available` in the metadata store and opens a port per bookie when it is first needed.

    A port outlives its bookie's registration: a bookie whose session is over may still answer, and its answers are
    as good as ever. It is closed when the same UUID registers under another address, or with TLS.
    """

    def __init__(self, store: MetadataStore, connect: Callable[[BookieRecord], ClosablePort]) -> None:
        self._connect = connect
        self._tasks = Tasks("bookie directory")
        self._available = Followed(store, paths.BOOKIES_AVAILABLE, BookieRecord, self._tasks, self._learn_all)
        self._known: dict[str, BookieRecord] = {}
        self._ports: dict[str, ClosablePort] = {}

    async def start(self) -> None:
        """Read who is there and follow it from now on. Raises `Unavailable`."""
        await self._available.start()

    async def stop(self) -> None:
        self._available.stop()
        await self._tasks.stop()
        for port in self._ports.values():
            await port.close()
        self._ports.clear()

    def available(self) -> Sequence[BookieRecord]:
        return list(self._available.records.values())

    def port(self, bookie: BookieId) -> BookiePort:
        port = self._ports.get(bookie.uuid)
        if port is not None:
            return port
        record = self._known.get(bookie.uuid)
        if record is None:
            return _NOBODY
        port = self._ports[bookie.uuid] = self._connect(record)
        return port

    def _learn_all(self) -> None:
        for record in self._available.records.values():
            self._learn(record)

    def _learn(self, record: BookieRecord) -> None:
        before = self._known.get(record.uuid)
        self._known[record.uuid] = record
        if before is None or (before.address, before.tls) == (record.address, record.tls):
            return
        port = self._ports.pop(record.uuid, None)
        if port is not None:
            self._tasks.start(port.close(), f"close the port of {record.uuid}")
