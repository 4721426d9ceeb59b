"""Folder of the metadata store with one record per node, kept in memory by watches.

After `start`, the folder is listed only after a change, and only changed nodes are read. While the store does not
answer, the last known state stays in effect, so an outage of the store does not spread. If a record cannot be decoded,
for example because a newer version wrote it, its last version also stays in effect until its next change; the error is
logged. A caller that must distinguish a missing record from one that was never decoded uses `get`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from quire.metadata import paths
from quire.metadata.records import Record, decode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import CorruptionError, NotFound, QuireError
from quire.runtime.tasks import Tasks

R = TypeVar("R", bound=Record)
RETRY_S: Final = 0.5
"""Delay in seconds before another read after an error."""

_log = logging.getLogger(__name__)


async def keep_reading(
    changed: asyncio.Event, read: Callable[[], Awaitable[None]], folder: str, pause_s: float = 0.0
) -> None:
    """Wait in a loop until `changed` is set, then call `read` until the store answers, then pause for `pause_s`."""
    while True:
        await changed.wait()
        changed.clear()
        try:
            await read()
        except QuireError as error:
            _log.warning("cannot read %s, its last known state stays in effect: %s", folder, error)
            await asyncio.sleep(RETRY_S)
            changed.set()
        else:
            if pause_s:
                await asyncio.sleep(pause_s)


class Followed(Generic[R]):
    """Records of one folder, by decoded node name. `changed` is called after changed nodes were read again."""

    def __init__(
        self,
        store: MetadataStore,
        folder: str,
        kind: type[R],
        tasks: Tasks,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.records: dict[str, R] = {}
        self._store = store
        self._folder = folder
        self._kind = kind
        self._tasks = tasks
        self._tell = changed
        self._watches: dict[str, Callable[[], None]] = {}
        self._stale: dict[str, None] = {}
        """Paths to read again, in the order of their changes."""
        self._unreadable: dict[str, str] = {}
        """Decoding errors, by name."""
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Read the folder and follow it from now on. Raises `Unavailable`."""
        self._watches[self._folder] = self._store.watch(self._folder, self._on_change)
        self._stale[self._folder] = None
        await self._refresh()
        work = keep_reading(self._changed, self._refresh, self._folder)
        self._tasks.start(work, f"follow {self._folder}")

    def stop(self) -> None:
        for unwatch in self._watches.values():
            unwatch()
        self._watches.clear()

    def get(self, name: str, default: R) -> R:
        """Return the node's record, or its last version that could be decoded; `default` if the node does not exist.

        Raises `CorruptionError` if the node exists but no version of it could be decoded.
        """
        if name in self._unreadable and name not in self.records:
            raise CorruptionError(self._unreadable[name])
        return self.records.get(name, default)

    async def refresh(self, name: str) -> None:
        """Read one record now, without waiting for an event of its watch. Raises `CorruptionError`, `Unavailable`."""
        path = f"{self._folder}/{paths.encode(name)}"
        self._follow_node(path)
        await self._read(path)

    def _on_change(self, path: str) -> None:
        self._stale[path] = None
        self._changed.set()

    async def _refresh(self) -> None:
        if self._folder in self._stale:
            del self._stale[self._folder]
            try:
                await self._list()
            except QuireError:
                self._stale[self._folder] = None
                raise
        while (path := next((each for each in self._stale if each != self._folder), None)) is not None:
            del self._stale[path]
            try:
                await self._read(path)
            except CorruptionError as error:
                _log.error("ignoring an invalid record, its last valid version stays in effect: %s", error)
            except QuireError:
                self._stale[path] = None
                raise
        self._tell()

    async def _list(self) -> None:
        there = [f"{self._folder}/{name}" for name in await self._store.children(self._folder)]
        for path in there:
            self._follow_node(path)
        for path in [each for each in self._watches if each not in {*there, self._folder}]:
            self._watches.pop(path)()
            self._stale.pop(path, None)
            self._forget(self._name(path))

    def _follow_node(self, path: str) -> None:
        if path not in self._watches:
            self._watches[path] = self._store.watch(path, self._on_change)
            self._stale[path] = None

    async def _read(self, path: str) -> None:
        name = self._name(path)
        try:
            value = (await self._store.get(path)).value
        except NotFound:
            self._forget(name)
        else:
            if path in self._watches:
                self._learn(name, value, path)

    def _learn(self, name: str, value: bytes, path: str) -> None:
        try:
            self.records[name] = decode(self._kind, value, path)
        except CorruptionError as error:
            self._unreadable[name] = str(error)
            raise
        self._unreadable.pop(name, None)

    def _forget(self, name: str) -> None:
        self.records.pop(name, None)
        self._unreadable.pop(name, None)

    def _name(self, path: str) -> str:
        return paths.decode(path.removeprefix(f"{self._folder}/"))
