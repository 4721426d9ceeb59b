"""The sets of one WAL, and the catalogue that names them: where blocks are when they have left the data objects.

A set is what one memtable held, sorted by ledger, as one object; see `wal_object` for its bytes. The catalogue is an
immutable object as well: a change of any kind writes another one, and the WAL's record names the newest. It also has
the tombstones of ledgers of which some object still has blocks.

A set is garbage when every ledger in its rows has a tombstone (law 16): what is not known is alive.

What is written here counts for nothing until the WAL's record names it: whoever calls puts the record, by version, and
then says so (`adopt`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import uuid4

from quire.objects.store import ObjectStore
from quire.runtime.errors import QuireError
from quire.wal import wal_object
from quire.wal.run_index import RunIndex, RunTable
from quire.wal.wal_object import SET_ROW, Catalogue, SetEntry
from quire.wire.block import Buffer


class Change(NamedTuple):
    """A catalogue that was written, and what it says. `name` is empty when there is nothing to say."""

    name: str
    crc: int
    catalogue: Catalogue
    dropped: tuple[str, ...]
    """Names of objects that nobody needs once the record names this one."""


class SetObjects:
    """`index` knows the runs of the sets that count."""

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
        """Names of objects that may be there, and that no catalogue will name."""
        self.catalogue = Catalogue()

    @property
    def names(self) -> set[str]:
        """Of the catalogue and the sets that it names; "" where there is none."""
        return {self._name, *(entry.name for entry in self.catalogue.sets)}

    # -- reading -----------------------------------------------------------------------------------------
    async def load(self, name: str, crc: int) -> None:
        """Know what the catalogue `name` says.

        Raises `CorruptionError`, `NotFound` (there is a newer one), `Unavailable`.
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
        """Write the blocks of the runs, which are sorted by ledger, and read their rows back; the index knows them.

        Raises what the store does; then another try writes another object.
        """
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
        """Write a catalogue with `more` sets and the tombstones `deleted`, without what is garbage by them.

        `elsewhere`: ledgers of which other objects than sets have blocks, so that their tombstones stay.
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
        """The WAL's record names the catalogue of `change`."""
        self._adopt(change.name, change.catalogue)

    def would_free(self, deleted: Collection[int]) -> bool:
        """Whether tombstones of these ledgers, with those that are here, make some set garbage."""
        return bool(self._index.without_life({*self.catalogue.tombstones, *deleted}))

    def _adopt(self, name: str, catalogue: Catalogue) -> None:
        there = {entry.name for entry in catalogue.sets}
        for entry in self.catalogue.sets:
            if entry.name not in there:
                self._index.remove(entry.name)
        self._name, self.catalogue = name, catalogue

    def _next_number(self) -> int:
        self._written += 1
        return self._written

    def _place(self, name: str) -> str:
        return f"{self._store.url.partition('?')[0].rstrip('/')}/{name}"


async def _one_by_one(parts: Sequence[Buffer]) -> AsyncIterator[Buffer]:
    for part in parts:
        yield part
