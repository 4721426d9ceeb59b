"""Tombstones that are laid in a WAL by others than its keeper.

A ledger of an open WAL may be deleted by another broker: the one that owns its topic now. The WAL's catalogue is its
writer's alone, so a tombstone of another's is a node of the metadata store, made before the ledger's record goes. The
keeper (its writer while the WAL is open, the collector when it is closed) watches for such nodes, takes them over into
the next catalogue, and removes them after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quire.metadata import paths
from quire.metadata.store import MetadataStore
from quire.runtime.errors import AlreadyExists, NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.runtime.tasks import Tasks

RETRY_S: Final = 1.0


async def lay(store: MetadataStore, uuid: str, ledger_id: int, version: int) -> None:
    """Have the keeper of a WAL know that the ledger was deleted. Raises `Unavailable`, `OutcomeUnknown`."""
    try:
        await store.create(paths.wal_tombstone(uuid, ledger_id), str(version).encode())
    except AlreadyExists:
        pass


async def laid(store: MetadataStore, uuid: str) -> dict[int, int]:
    """Tombstones that wait for the keeper: ledger and version. Raises `Unavailable`."""
    found = {}
    for name in await store.children(paths.wal_tombstones(uuid)):
        ledger_id = int(name, 16)
        try:
            found[ledger_id] = int((await store.get(paths.wal_tombstone(uuid, ledger_id))).value)
        except NotFound:
            continue
    return found


async def take_away(store: MetadataStore, uuid: str, ledger_ids: list[int]) -> None:
    """The catalogue has them. What cannot be removed now is taken over once more."""
    for ledger_id in ledger_ids:
        try:
            await store.delete(paths.wal_tombstone(uuid, ledger_id))
        except (NotFound, Unavailable, OutcomeUnknown):
            continue


class LaidByOthers:
    """Follows the tombstones that others lay in an open WAL; `waiting` are those that no catalogue has yet."""

    def __init__(self, store: MetadataStore, uuid: str, tasks: Tasks) -> None:
        self.waiting: dict[int, int] = {}
        self._store = store
        self._uuid = uuid
        self._tasks = tasks
        self._woken = asyncio.Event()
        self._unwatch: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._unwatch = self._store.watch(paths.wal_tombstones(self._uuid), lambda _: self._woken.set())
        self._tasks.start(self._follow(), "follow tombstones")

    def stop(self) -> None:
        self._unwatch()

    async def _follow(self) -> None:
        while True:
            try:
                self.waiting = await laid(self._store, self._uuid)
            except QuireError:
                await asyncio.sleep(RETRY_S)
                continue
            await self._woken.wait()
            self._woken.clear()

    async def recorded(self, ledger_ids: list[int]) -> None:
        """The catalogue has these."""
        await take_away(self._store, self._uuid, ledger_ids)
        for ledger_id in ledger_ids:
            self.waiting.pop(ledger_id, None)
