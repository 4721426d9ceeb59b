"""Progress of repair, which the coordinator records and publishes in the metadata store (`RepairRecord`)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from msgspec.structs import replace

from quire.ledger.repair_copy import Copier
from quire.metadata import paths
from quire.metadata.notify import touch
from quire.metadata.records import RepairRecord, encode
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import QuireError

_log = logging.getLogger(__name__)

_PROGRESS_S: Final = 1.0
"""Interval in seconds at which progress is published."""
_ERROR_CHARS: Final = 500
"""Maximum length of the last error in the record."""


class Progress:
    """Progress of the coordinator in this process, which `name` identifies."""

    def __init__(self, store: MetadataStore, copier: Copier, clock: Clock, name: str) -> None:
        self._store = store
        self._copier = copier
        self._clock = clock
        self.record = RepairRecord(coordinator=name)

    def note(self, **changes: object) -> None:
        """Change these fields of the record; also update its time and its number of copied bytes."""
        self.record = replace(
            self.record,
            bytes_copied=self._copier.bytes_copied,
            updated_ms=self._clock.now_ms(),
            **changes,
        )

    def begin(self, state: str, ledgers: int) -> None:
        self.note(state=state, ledgers=ledgers, checked=0, repaired=0, failed=0, error="")

    def goes_on(self, state: str, ledgers: int) -> None:
        """Add `ledgers` to the number of ledgers of the current pass, and change its state."""
        self.note(state=state, ledgers=self.record.ledgers + ledgers)

    def checked(self) -> None:
        self.note(checked=self.record.checked + 1)

    def repaired(self) -> None:
        self.note(repaired=self.record.repaired + 1)

    def failed(self, error: Exception) -> None:
        self.note(failed=self.record.failed + 1, error=str(error)[:_ERROR_CHARS])

    async def publish_often(self) -> None:
        """Publish the progress every second, until cancelled."""
        while True:
            await asyncio.sleep(_PROGRESS_S)
            self.note()
            await self.publish()

    async def publish(self) -> None:
        try:
            await touch(self._store, paths.REPAIR_PROGRESS, encode(self.record))
        except QuireError as error:
            _log.info("repair: cannot publish the progress: %s", error)
