"""Sets of one WAL, which contain its blocks after the data objects are deleted, and the catalogue that lists the sets.

A set is one object with the blocks of many data objects, sorted by ledger; see `wal_object` for its bytes. A catalogue
is immutable: each change writes another one, and the WAL's record names the current one. A catalogue also lists the
tombstones of deleted ledgers that still have blocks in an object.

A set is garbage when every ledger in its rows has a tombstone (law 16).

New sets and catalogues have no effect until the WAL's record names them. The caller writes the record, by
compare-and-set, and then calls `adopt`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import uuid4

from quire.metadata.records import WalRecord
from quire.objects.store import ObjectStore
from quire.runtime.errors import QuireError
from quire.wal import wal_object
from quire.wal.run_index import RunIndex, RunTable
from quire.wal.wal_object import SET_ROW, Catalogue, SetEntry
from quire.wire.block import Buffer


class Change(NamedTuple):
    """New catalogue and its content. `name` is "" if there is no set and no tombstone, so no catalogue is written."""

    name: str
    crc: int
    catalogue: Catalogue
    dropped: tuple[str, ...]
    """Names of objects that become unneeded when the record names this catalogue."""


class SetObjects:
    """Sets and catalogue of one WAL. `index` contains the runs of the sets in the catalogue."""

    def __init__(
        self,
        store: ObjectStore,
        wal: str,
        index: RunIndex,
        unique: Callable[[], str] = lambda: uuid4().hex[:16],
    ) -> None:
        self._store = store
        self._wal = wal
        self._index = index
        self._unique = unique
        self._name = ""
        self._written = 0
        self.abandoned: list[str] = []
        """Names of objects that may exist after failed uploads, but are in no catalogue."""
        self.catalogue = Catalogue()

    @property
    def names(self) -> set[str]:
        """Names of the catalogue ("" if there is none) and of its sets."""
        return {self._name, *(entry.name for entry in self.catalogue.sets)}

    # -- reading -----------------------------------------------------------------------------------------
    async def load(self, name: str, crc: int) -> None:
        """Load the catalogue `name` and the rows of its sets.

        Raises `CorruptionError`, `NotFound` (a newer catalogue has replaced it), `Unavailable`.
        """
        if name == self._name:
            return
        catalogue = Catalogue()
        if name:
            size = await self._store.size(name)
            content = await self._store.get_range(name, 0, size)
            catalogue = wal_object.decode_catalogue(content, crc, self._place(name))
        new = [entry for entry in catalogue.sets if entry.name not in self._index]
        for entry, rows in zip(new, await asyncio.gather(*map(self._read_rows, new)), strict=True):
            self._index.add(RunTable(entry.name, rows, SET_ROW))
        self._adopt(name, catalogue)

    async def _read_rows(self, entry: SetEntry) -> bytes:
        guess = min(entry.bytes, wal_object.TAIL_GUESS_BYTES)
        tail = await self._store.get_range(entry.name, entry.bytes - guess, guess)
        needed = wal_object.set_tail_bytes(tail, self._place(entry.name))
        if needed > guess:
            tail = await self._store.get_range(entry.name, entry.bytes - needed, needed)
        return wal_object.read_set_tail(tail, entry.bytes, entry.footer_crc, self._place(entry.name))

    # -- writing -----------------------------------------------------------------------------------------
    async def write_set(
        self, runs: Sequence[tuple[int, Sequence[Buffer]]], first_seq: int, last_seq: int, clock_ms: int
    ) -> SetEntry:
        """Write a set of the runs, which are sorted by ledger; then read its rows back and index them.

        Raises the store's errors; a retry writes an object with another name.
        """
        assert first_seq <= last_seq + 1, "a set covers objects from the trim point on"
        name = wal_object.set_name(self._wal, self._next_number(), self._unique())
        parts = await self._store.run(
            lambda: wal_object.encode_set(self._wal, first_seq, last_seq, clock_ms, runs)
        )
        entry = SetEntry(name, sum(map(len, parts)), wal_object.footer_crc(parts[-1]), first_seq, last_seq)
        try:
            await self._store.put(name, _one_by_one(parts))
            rows = await self._read_rows(entry)
        except QuireError:
            self.abandoned.append(name)
            raise
        self._index.add(RunTable(name, rows, SET_ROW))
        return entry

    async def write_catalogue(
        self, more: Iterable[SetEntry], deleted: Mapping[int, int], elsewhere: Collection[int]
    ) -> Change:
        """Write a catalogue with the additional sets `more` and tombstones `deleted`, and without garbage sets.

        `elsewhere` contains ledgers with blocks in data objects; their tombstones are kept.
        """
        tombstones = {**self.catalogue.tombstones, **deleted}
        sets = (*self.catalogue.sets, *more)
        garbage = self._index.without_life(tombstones)
        dropped = tuple(entry.name for entry in sets if entry.name in garbage)
        sets = tuple(entry for entry in sets if entry.name not in garbage)
        needed = {
            key
            for key in tombstones
            if key in elsewhere or not garbage.issuperset(self._index.objects_of(key))
        }
        catalogue = Catalogue(sets, {key: tombstones[key] for key in sorted(needed)})
        if self._name:
            dropped = (*dropped, self._name)
        if not catalogue.sets and not catalogue.tombstones:
            return Change("", 0, catalogue, dropped)
        name = wal_object.catalogue_name(self._wal, self._next_number(), self._unique())
        content = wal_object.encode_catalogue(catalogue)
        try:
            await self._store.put_whole(name, (content,))
        except QuireError:
            self.abandoned.append(name)
            raise
        dropped = (*dropped, *self.abandoned)
        self.abandoned.clear()
        return Change(name, wal_object.catalogue_crc(content), catalogue, dropped)

    def adopt(self, change: Change) -> None:
        """Adopt the catalogue of `change`, after the WAL's record names it."""
        self._adopt(change.name, change.catalogue)

    def would_free(self, deleted: Collection[int]) -> bool:
        """Return whether tombstones of `deleted` ledgers, together with the catalogue's, make a set garbage."""
        return bool(self._index.without_life({*self.catalogue.tombstones, *deleted}))

    def _adopt(self, name: str, catalogue: Catalogue) -> None:
        there = {entry.name for entry in catalogue.sets}
        for entry in self.catalogue.sets:
            if entry.name not in there:
                self._index.remove(entry.name)
        self._name, self.catalogue = name, catalogue
        if name:
            self._written = max(self._written, wal_object.number_of(name))

    def _next_number(self) -> int:
        self._written += 1
        return self._written

    def _place(self, name: str) -> str:
        return f"{self._store.url.partition('?')[0].rstrip('/')}/{name}"


def newer_sets(record: WalRecord, names: Iterable[str]) -> list[str]:
    """Return those of `names` that are sets written after the catalogue that the record names."""
    number = wal_object.number_of(record.catalogue) if record.catalogue else 0
    return [name for name in names if wal_object.is_set(name) and wal_object.number_of(name) > number]


async def _one_by_one(parts: Sequence[Buffer]) -> AsyncIterator[Buffer]:
    for part in parts:
        yield part
