"""What the coordinator of repair hears from the metadata store: bookies, reports of damage, wishes, knocks.

A watch only says that there may be news. They are read at the next look, and at the one after that while the store does
not answer; so a look without news costs the store nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from quire.ledger.retiring import known_bookies
from quire.metadata import paths
from quire.metadata.damage import damage_reports
from quire.metadata.records import BookieRecord
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound, QuireError, VersionConflict

WISH_ALL: Final = b"all"
"""Value of the wish that asks for a round over all ledgers."""


class News:
    """What is known, and whether there is more to read. Between `watch` and `unwatch` the store tells of it."""

    known: dict[str, BookieRecord]
    """Every bookie that was not retired, by UUID."""
    damaged: dict[int, dict[str, int]]
    """Per ledger, the bookies (str of BookieId) that reported damage of it, with the versions of their reports."""
    wants_all: bool
    """A round over all ledgers was asked for, and not had yet."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._unwatch: list[Callable[[], None]] = []
        self.forget()

    def forget(self) -> None:
        """Know nothing: another coordinator may have changed all of it."""
        self.known, self.damaged, self.wants_all = {}, {}, False
        self.is_stale = True
        self._may_be_knock = True
        self._knock_version = -1

    def watch(self, woken: Callable[[], None]) -> None:
        """Hear the store from now on. `woken` is called when it has news that should not wait for the next look."""

        def told(_path: str) -> None:
            self.told()
            woken()

        self._unwatch = [
            self._store.watch(paths.REPAIR_WISH, told),
            self._store.watch(paths.REPAIR_NEWS, told),
            self._store.watch(paths.REPAIR_NARROW, lambda _path: self.knocked()),
        ]

    def unwatch(self) -> None:
        for unwatch in self._unwatch:
            unwatch()

    def told(self) -> None:
        """What is known may have changed."""
        self.is_stale = True

    def knocked(self) -> None:
        """A ledger may have been closed that lacks something."""
        self._may_be_knock = True

    async def read(self) -> set[int]:
        """Know what is there now; answers the ledgers with reports that were not known. Raises what the store does."""
        self.is_stale = False
        try:
            known, damaged = await known_bookies(self._store), await self._read_damage()
            await self._read_wish()
        except QuireError:
            self.is_stale = True
            raise
        before, self.known, self.damaged = self.damaged, known, damaged
        return {
            ledger_id
            for ledger_id, reports in damaged.items()
            if reports.items() - before.get(ledger_id, {}).items()
        }

    async def _read_damage(self) -> dict[int, dict[str, int]]:
        damaged: dict[int, dict[str, int]] = {}
        for report, version in (await damage_reports(self._store)).items():
            damaged.setdefault(report.ledger_id, {})[report.bookie] = version
        return damaged

    async def _read_wish(self) -> None:
        try:
            wish = await self._store.get(paths.REPAIR_WISH)
        except NotFound:
            return  # nobody ever wished
        if wish.value == WISH_ALL:
            self.wants_all = True
            await self._store.put(paths.REPAIR_WISH, b"", wish.version)

    async def read_knock(self) -> bool:
        """Whether a ledger that may lack something was closed since the last time (`Knock`).

        A watch may call for nothing. Raises what the store does.
        """
        if not self._may_be_knock:
            return False
        self._may_be_knock = False
        try:
            version = (await self._store.get(paths.REPAIR_NARROW)).version
        except NotFound:
            return False
        except QuireError:
            self._may_be_knock = True
            raise
        before, self._knock_version = self._knock_version, version
        return version != before

    def retired(self, uuid: str) -> None:
        """The bookie's record was removed."""
        self.known = {other: record for other, record in self.known.items() if other != uuid}

    async def forget_damage(self, ledger_id: int, still_damaged: Collection[str] = ()) -> None:
        """Remove the ledger's reports: the other bookies' copies are whole, or nothing names them any more.

        One report must not outlive its damage because of another: a bookie with a new copy would have to be left.
        One that was written again meanwhile is of damage that may have come behind the mending.
        """
        reports = self.damaged.get(ledger_id, {})
        for bookie, version in sorted(reports.items()):
            uuid = bookie.rpartition(":")[0]
            if uuid not in still_damaged:
                try:
                    await self._store.delete(paths.damage(uuid, ledger_id), version)
                except VersionConflict:
                    self.is_stale = True
                    continue
                except NotFound:
                    pass
                reports.pop(bookie)  # only now: a report that could not be removed is tried again
        if not reports:
            self.damaged.pop(ledger_id, None)
