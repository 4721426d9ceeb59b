"""Objects that nobody needs any more, deleted by and by.

A deletion that fails is tried again and harms nobody; where a store bars us, with the next ones that come. One that a
death prevents leaves a stray, which the collector finds when the WAL is closed.
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
NAMES_MAX: Final = 100_000
"""Of some hours; of a store that forbids deletions for longer the oldest are left as strays."""


class Trash:
    def __init__(self, store: ObjectStore, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._names: deque[str] = deque(maxlen=NAMES_MAX)
        self._emptying: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._names)

    def add(self, names: Iterable[str]) -> None:
        """Have these deleted; nothing names them any more."""
        self._names += names
        if self._names and self._emptying is None:
            self._emptying = self._tasks.start(self._empty(), "delete objects that nobody needs")

    async def emptied(self) -> None:
        """Return when all of it is deleted."""
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
            _log.warning("%d objects that nobody needs stay for now: %s", len(self), error)
        finally:
            self._emptying = None

    async def _delete(self, name: str) -> None:
        await until_answered(lambda: self._store.delete(name), f"deletion of {name}")
