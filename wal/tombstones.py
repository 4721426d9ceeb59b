"""Tombstones that processes other than the keeper record for a WAL.

A broker that has become the owner of a topic may delete a ledger whose blocks are in another broker's WAL. Only the
keeper changes the catalogue: the writer of an open WAL, the collector of a closed one. So the deleting broker creates a
node in the metadata store before it removes the ledger's record. The keeper watches for such nodes, copies them into
the next catalogue, and removes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quire.metadata import paths
from quire.metadata.store import MetadataStore
from quire.runtime.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from quire.runtime.tasks import Tasks
from quire.wal.patience import as_quire_error

RETRY_S: Final = 1.0
"""Delay in seconds before tombstones are read again after an error."""


async def lay(store: MetadataStore, uuid: str, ledger_id: int, version: int) -> None:
    """Record for the WAL's keeper that the ledger was deleted. Raises `Unavailable`, `OutcomeUnknown`."""
    try:
        await store.create(paths.wal_tombstone(uuid, ledger_id), str(version).encode())
    except AlreadyExists:
        pass


async def laid(store: MetadataStore, uuid: str) -> dict[int, int]:
    """Return the tombstones that wait for the keeper: version by ledger. Raises `Unavailable`."""
    found = {}
    for name in await store.children(paths.wal_tombstones(uuid)):
        ledger_id = int(name, 16)
        try:
            found[ledger_id] = int((await store.get(paths.wal_tombstone(uuid, ledger_id))).value)
        except NotFound:
            continue
    return found


async def take_away(store: MetadataStore, uuid: str, ledger_ids: list[int]) -> None:
    """Remove the nodes of tombstones that the catalogue contains. If that fails, the keeper copies them again later."""
    for ledger_id in ledger_ids:
        try:
            await store.delete(paths.wal_tombstone(uuid, ledger_id))
        except (NotFound, Unavailable, OutcomeUnknown):
            continue


class LaidByOthers:
    """Watch on tombstones that other processes record for an open WAL.

    `waiting` contains the tombstones that are in no catalogue yet: version by ledger.
    """

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
            except Exception as error:
                as_quire_error(error, f"the read of tombstones of WAL {self._uuid}")
                await asyncio.sleep(RETRY_S)
                continue
            await self._woken.wait()
            self._woken.clear()

    async def recorded(self, ledger_ids: list[int]) -> None:
        """Delete the nodes of `ledger_ids`, and remove these ledgers from `waiting`.

        The catalogue now contains their tombstones.
        """
        await take_away(self._store, self._uuid, ledger_ids)
        for ledger_id in ledger_ids:
            self.waiting.pop(ledger_id, None)
