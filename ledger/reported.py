"""Damage reports about open ledgers of this process, and bookies that an operator gave up, read from the store.

Repair must not change the record of an open ledger, so the ledger's owner must react to the damage. Each report also
changes the node `paths.UNDERREPLICATED`, which every process watches. After a change, this process lists the queue
(`metadata.underreplicated`), and reads only the reports about its own ledgers. An operator's order to give up a bookie
changes the same node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container

from quire.ledger.retiring import known_bookies
from quire.metadata import paths, underreplicated
from quire.metadata.records import BookieIntent
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound, QuireError
from quire.runtime.tasks import Tasks

_log = logging.getLogger(__name__)


class Reported:
    """Damaged copies of this process's open ledgers; `own` is the live collection of their ids."""

    def __init__(self, store: MetadataStore, tasks: Tasks, own: Container[int]) -> None:
        self._store = store
        self._tasks = tasks
        self._own = own
        self._unwatch: Callable[[], None] | None = None
        self._is_stale = False
        self._reading: asyncio.Task[None] | None = None
        self._copies: tuple[tuple[str, int], ...] = ()
        self.given_up: frozenset[str] = frozenset()
        """UUIDs of bookies that an operator gave up, as of the last read."""

    def start(self) -> None:
        self._unwatch = self._store.watch(paths.UNDERREPLICATED, self._on_news)
        self._is_stale = True
        self.copies()

    def copies(self) -> tuple[tuple[str, int], ...]:
        """Return the known damaged copies, as (UUID of the bookie, ledger id).

        If the reports have changed, start to read them for a later call.
        """
        if self._is_stale and self._reading is None:
            self._is_stale = False
            self._reading = self._tasks.start(self._read(), "read which copies are damaged")
        return self._copies

    def stop(self) -> None:
        if self._unwatch is not None:
            self._unwatch()

    def _on_news(self, _path: str) -> None:
        self._is_stale = True

    async def _read(self) -> None:
        try:
            known = await known_bookies(self._store)
            self.given_up = frozenset(
                uuid for uuid, record in known.items() if record.intent is BookieIntent.GIVE_UP
            )
            own = [each async for each in underreplicated.listed(self._store) if each in self._own]
            found = [copy for ledger_id in own for copy in await self._damaged(ledger_id)]
        except QuireError as error:
            self._is_stale = True
            _log.info("cannot read the reports of damaged copies, trying again: %s", error)
        else:
            self._copies = tuple(found)
        finally:
            self._reading = None

    async def _damaged(self, ledger_id: int) -> list[tuple[str, int]]:
        try:
            record, _ = await underreplicated.read(self._store, ledger_id)
        except NotFound:
            return []
        return [(each.bookie.rpartition(":")[0], ledger_id) for each in record.damage]
