"""Which open ledgers of this process have a copy that was reported as damaged, and which bookies were given up.

Repair must not touch the record of an open ledger, so its owner has to hear of the damage, too. A report comes together
with a change of one node, which is watched; then the queue is listed (`metadata.underreplicated`), and only the records
of own ledgers are read: there may be very many of others, and a ledger that is not open here never will be. Nothing is
asked while there is no news. That an operator gives a bookie up is news of the same node.
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
    """`own`: ids of the open ledgers of this process, as they are now."""

    def __init__(self, store: MetadataStore, tasks: Tasks, own: Container[int]) -> None:
        self._store = store
        self._tasks = tasks
        self._own = own
        self._unwatch: Callable[[], None] | None = None
        self._is_stale = False
        self._reading: asyncio.Task[None] | None = None
        self._copies: tuple[tuple[str, int], ...] = ()
        self.given_up: frozenset[str] = frozenset()
        """UUIDs of bookies that an operator gave up, as far as is known."""

    def start(self) -> None:
        self._unwatch = self._store.watch(paths.UNDERREPLICATED, self._on_news)
        self._is_stale = True
        self.copies()

    def copies(self) -> tuple[tuple[str, int], ...]:
        """UUID of the bookie and id of the ledger, as far as is known; after news more is known soon."""
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
            _log.info("which copies are damaged cannot be read now, trying again: %s", error)
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
