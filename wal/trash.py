"""Deletion of unneeded objects of a WAL, in the background.

A failed deletion is retried. If the store denies access, it is retried together with the next deletions. After a crash,
the collector finds the remaining objects when the WAL is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from quire.objects.store import ObjectStore
from quire.runtime.errors import QuireError
from quire.runtime.tasks import Tasks
from quire.wal.patience import until_answered

_log = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""Number of concurrent deletions."""
NAMES_MAX: Final = 100_000
"""Maximum length of the queue: the objects of a few hours. A full queue drops its oldest names; the collector deletes
their objects.
"""


class Trash:
    """Queue of objects to delete."""

    def __init__(self, store: ObjectStore, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._names: deque[str] = deque(maxlen=NAMES_MAX)
        self._emptying: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._names)

    def add(self, names: Iterable[str]) -> None:
        """Queue the deletion of objects that no record names any more."""
        self._names += names
        if self._names and self._emptying is None:
            self._emptying = self._tasks.start(self._empty(), "delete unneeded objects")

    async def emptied(self) -> None:
        """Wait until the queue is empty."""
        if self._emptying is not None:
            await asyncio.wait([self._emptying])

    async def _empty(self) -> None:
        try:
            while self._names:
                batch = list(islice(self._names, AT_ONCE))
                await asyncio.gather(*map(self._delete, batch))
                for _ in batch:
                    self._names.popleft()
        except QuireError as error:
            _log.warning("cannot delete %d unneeded objects now, trying again later: %s", len(self), error)
        finally:
            self._emptying = None

    async def _delete(self, name: str) -> None:
        await until_answered(lambda: self._store.delete(name), f"deletion of {name}")
