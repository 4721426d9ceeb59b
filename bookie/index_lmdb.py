"""The index that lasts, in LMDB: one file, one writer, readers that never wait for it.

LMDB because it has what a sparse index wants and nothing else: sorted keys, durable transactions without a log
of their own, and reads straight out of the memory map, so the kernel's page cache is the cold index. It has no
checksums, so every value carries one that covers its key as well: a flipped bit is an error here, not an
answer.

Damage between values, in the pages of the tree, can hide rows; `verify` finds that at a start. Some of it LMDB itself
meets with an assertion that ends the process; the next start finds that out (`index_home`). A damaged or missing index
is rebuilt from the entry logs.

    database  key                                      value
    rows      ledger u64, first entry u64              last entry u64, log u64, offset u64, length u32,
                                                       first clock u64, last clock u64, LAC i64, crc u32
    ledgers   ledger u64                               the storage's record, crc u32
    logs      log u64                                  bytes in use u64, crc u32
    meta      "mark"                                   the storage's mark, crc u32
              "format"                                 1 as u32, crc u32

All integers are big-endian, so keys sort as numbers. crc is CRC32C over the key and the value before it. Valid is
a value whose crc matches; anything else, and what LMDB itself refuses, is `CorruptionError` with the file's name.

The map is far larger than the file will be (address space costs nothing) and doubles should that ever not do;
LMDB demands that no transaction is open meanwhile, which `_Gate` sees to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from threading import Condition
from typing import Any, Final

import lmdb
from crc32c import crc32c

from quire.bookie.index import IndexRow, search_time
from quire.runtime.errors import CorruptionError, DiskError, DiskFull
from quire.runtime.limits import INDEX_MAP_BYTES

_ROW_KEY: Final = Struct(">QQ")
_ROW: Final = Struct(">QQQIQQqI")
_ROW_CHECKED: Final = Struct(">QQQIQQq")
_ID: Final = Struct(">Q")
_CRC: Final = Struct(">I")
_MARK: Final = b"mark"
_FORMAT: Final = b"format"
_FORMAT_VALUE: Final = b"\x00\x00\x00\x01"
_TRY_BYTES: Final = 1 << 20
_ID_MAX: Final = (1 << 64) - 1

_DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.NotFoundError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.BadValsizeError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
    lmdb.BadTxnError,
)


class LmdbIndex:
    """`Index` in the directory `path`, made when it is not there. Raises `CorruptionError` when it is damaged.

    `on_close` is called when it is closed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        map_bytes: int = INDEX_MAP_BYTES,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_close = on_close
        self._lmdb = _Environment(str(path), map_bytes)
        self._file = self._lmdb.file
        try:
            self._rows, self._ledgers, self._logs, self._meta = self._lmdb.databases(
                b"rows", b"ledgers", b"logs", b"meta"
            )
            self._claim_format()
        except BaseException:
            self._lmdb.close()
            raise

    # -- writing -----------------------------------------------------------------------------------------

    def commit(
        self,
        rows: Iterable[IndexRow],
        ledgers: Mapping[int, bytes],
        mark: bytes,
        deleted: Iterable[int] = (),
    ) -> None:
        rows, deleted = list(rows), list(deleted)

        def change(txn: Any) -> None:
            charges = _Charges()
            for ledger_id in deleted:
                self._delete(txn, ledger_id, charges)
            self._put_rows(txn, rows, charges)
            records = [
                (key, _seal(key, bytes(record)))
                for key, record in (
                    (_ID.pack(ledger_id), record) for ledger_id, record in sorted(ledgers.items())
                )
            ]
            txn.cursor(self._ledgers).putmulti(records)
            self._charge(txn, charges)
            txn.put(_MARK, _seal(_MARK, bytes(mark)), db=self._meta)

        self._lmdb.write(change)

    def replace(self, old: Iterable[IndexRow], new: Iterable[IndexRow]) -> None:
        old, new = list(old), list(new)

        def change(txn: Any) -> None:
            charges = _Charges()
            for row in old:
                key = _ROW_KEY.pack(row.ledger_id, row.first_entry)
                there = txn.pop(key, db=self._rows)
                assert there is not None and self._row(key, there) == row
                charges.add(row.log_id, -row.length)
            self._put_rows(txn, new, charges)
            self._charge(txn, charges)

        self._lmdb.write(change)

    def hold(self, log_id: int, size_bytes: int) -> None:
        self._lmdb.write(lambda txn: self._charge(txn, _Charges({log_id: size_bytes})))

    def drop_log(self, log_id: int) -> None:
        def change(txn: Any) -> None:
            assert self._usage(txn, log_id) == 0
            txn.delete(_ID.pack(log_id), db=self._logs)

        self._lmdb.write(change)

    def _put_rows(self, txn: Any, rows: list[IndexRow], charges: _Charges) -> None:
        """Put rows in one call. One that stood at the same place (a flush done again) no longer counts."""
        pack_key, pack = _ROW_KEY.pack, _ROW_CHECKED.pack
        keys = [pack_key(row.ledger_id, row.first_entry) for row in rows]
        cursor = txn.cursor(self._rows)
        for key, value in cursor.getmulti(keys):
            stale = self._row(key, value)
            charges.add(stale.log_id, -stale.length)
        for row in rows:
            charges.add(row.log_id, row.length)
        cursor.putmulti([(key, _seal(key, pack(*row[2:]))) for key, row in zip(keys, rows, strict=True)])

    def _delete(self, txn: Any, ledger_id: int, charges: _Charges) -> None:
        txn.delete(_ID.pack(ledger_id), db=self._ledgers)
        cursor = txn.cursor(self._rows)
        found = cursor.set_range(_ROW_KEY.pack(ledger_id, 0))
        while found and cursor.key()[:8] == _ID.pack(ledger_id):
            row = self._row(cursor.key(), cursor.value())
            charges.add(row.log_id, -row.length)
            found = cursor.delete()

    def _charge(self, txn: Any, charges: _Charges) -> None:
        for log_id, size_bytes in charges.items():
            key = _ID.pack(log_id)
            in_use = self._usage(txn, log_id) + size_bytes
            if in_use < 0:
                raise CorruptionError(f"the index counts {in_use} bytes in entry log {log_id}", self._file, 0)
            txn.put(key, _seal(key, _ID.pack(in_use)), db=self._logs)

    def _usage(self, txn: Any, log_id: int) -> int:
        key = _ID.pack(log_id)
        value = txn.get(key, db=self._logs)
        return 0 if value is None else self._id(self._open(key, value))

    # -- reading -----------------------------------------------------------------------------------------

    def find(self, ledger_id: int, entry_id: int) -> IndexRow | None:
        rows = self.rows(ledger_id, entry_id, 1)
        return rows[0] if rows and rows[0].first_entry <= entry_id else None

    def rows(self, ledger_id: int, from_entry: int, limit: int) -> list[IndexRow]:
        found: list[IndexRow] = []
        prefix = _ID.pack(ledger_id)
        with self._lmdb.read() as txn, txn.cursor(self._rows) as cursor:
            more = (
                self._seek_before(cursor, ledger_id, from_entry)
                and cursor.key()[:8] == prefix
                and self._row(cursor.key(), cursor.value()).last_entry >= from_entry
            ) or cursor.set_range(_ROW_KEY.pack(ledger_id, from_entry))
            while more and len(found) < limit and (key := cursor.key())[:8] == prefix:
                found.append(self._row(key, cursor.value()))
                more = cursor.next()
        return found

    def last_entry(self, ledger_id: int) -> int:
        with self._lmdb.read() as txn, txn.cursor(self._rows) as cursor:
            if not self._seek_before(cursor, ledger_id, _ID_MAX):
                return -1
            row = self._row(cursor.key(), cursor.value())
            return row.last_entry if row.ledger_id == ledger_id else -1

    def find_time(self, ledger_id: int, time_ms: int) -> int:
        return search_time(self, ledger_id, time_ms)

    def ledgers(self) -> Iterator[tuple[int, bytes]]:
        with self._lmdb.read() as txn, txn.cursor(self._ledgers) as cursor:
            return iter([(self._id(key), self._open(key, value)) for key, value in cursor])

    def mark(self) -> bytes:
        with self._lmdb.read() as txn:
            value = txn.get(_MARK, db=self._meta)
            return b"" if value is None else self._open(_MARK, value)

    def usage(self) -> dict[int, int]:
        with self._lmdb.read() as txn, txn.cursor(self._logs) as cursor:
            return {self._id(key): self._id(self._open(key, value)) for key, value in cursor}

    def verify(self) -> None:
        """Read everything; about two microseconds per row.

        A flipped bit inside a page of a tree can hide values without touching one. Such damage shows in the trees'
        own counts, in the order of the keys, in a key that is not found, and in the bytes counted of each log.
        """
        in_use = _Charges()
        with self._lmdb.read() as txn:
            for key, value in self._whole_tree(txn, self._rows):
                row = self._row(key, value)
                in_use.add(row.log_id, row.length)
            for database in (self._ledgers, self._logs, self._meta):
                for key, value in self._whole_tree(txn, database):
                    self._open(key, value)
        counted = self.usage()
        for log_id, size_bytes in in_use.items():
            if counted.get(log_id, 0) < size_bytes:
                raise CorruptionError(f"the index miscounts entry log {log_id}", self._file, 0)
        self.ledgers()
        self.mark()

    def _whole_tree(self, txn: Any, database: Any) -> Iterator[tuple[bytes, bytes]]:
        """What a database holds, each by its key as well as by the walk."""
        walked, before = 0, b""
        with txn.cursor(database) as cursor, txn.cursor(database) as search:
            for key, value in cursor:
                if key <= before or not search.set_key(key):
                    raise CorruptionError("a tree of the index is out of order", self._file, 0)
                walked, before = walked + 1, key
                yield key, value
        if walked != txn.stat(database)["entries"]:
            raise CorruptionError("a tree of the index has lost values", self._file, 0)

    def try_to_write(self) -> None:
        """Take room for a large value, which reads the list of free pages, and leave it. Raises as a commit does."""

        def try_it(txn: Any) -> None:
            txn.put(b"try", bytes(_TRY_BYTES), db=self._meta)
            txn.abort()

        self._lmdb.write(try_it)

    def close(self) -> None:
        self._lmdb.close()
        self._on_close()

    def _seek_before(self, cursor: Any, ledger_id: int, entry_id: int) -> bool:
        """Put the cursor on the last row at or before (ledger, entry); False when there is none."""
        key = _ROW_KEY.pack(ledger_id, entry_id)
        if not cursor.set_range(key):
            return bool(cursor.last())
        return cursor.key() == key or bool(cursor.prev())

    def _row(self, key: bytes, value: bytes) -> IndexRow:
        if len(key) != _ROW_KEY.size or len(value) != _ROW.size:
            raise CorruptionError("a row of the index has a wrong size", self._file, 0)
        ledger_id, first_entry = _ROW_KEY.unpack(key)
        *fields, crc = _ROW.unpack(value)
        if crc32c(value[: -_CRC.size], crc32c(key)) != crc:
            raise CorruptionError(
                f"the index row of ledger {ledger_id}, entry {first_entry} does not match its checksum",
                self._file,
                0,
            )
        return IndexRow(ledger_id, first_entry, *fields)

    def _id(self, content: bytes) -> int:
        if len(content) != _ID.size:
            raise CorruptionError("a number in the index has a wrong size", self._file, 0)
        return int.from_bytes(content, "big")

    def _open(self, key: bytes, value: bytes) -> bytes:
        """The content of a sealed value."""
        content = value[: -_CRC.size]
        if len(value) < _CRC.size or _CRC.pack(crc32c(content, crc32c(key))) != value[-_CRC.size :]:
            raise CorruptionError(f"the index value of {key!r} does not match its checksum", self._file, 0)
        return content

    def _claim_format(self) -> None:
        with self._lmdb.read() as txn:
            value = txn.get(_FORMAT, db=self._meta)
        if value is None:
            self._lmdb.write(lambda txn: txn.put(_FORMAT, _seal(_FORMAT, _FORMAT_VALUE), db=self._meta))
        elif self._open(_FORMAT, value) != _FORMAT_VALUE:
            raise CorruptionError("the index has a format that this version does not know", self._file, 0)


class _Environment:
    """LMDB's file and its transactions: with our errors, and a map that grows."""

    def __init__(self, path: str, map_bytes: int) -> None:
        self._path = path
        self.file = os.path.join(path, "data.mdb")
        self._gate = _Gate()
        self._map_bytes = map_bytes
        with self._our_errors():
            os.makedirs(path, exist_ok=True)
            self._env = lmdb.open(
                path, map_size=map_bytes, max_dbs=4, readahead=False, meminit=False, max_spare_txns=8
            )

    def databases(self, *names: bytes) -> list[Any]:
        """Handles of these. They are made together, in a file that has none: one that is missing is lost."""
        self._refuse_short_file()
        with self._our_errors(), self._env.begin(write=True) as txn:
            is_new = self._env.stat()["entries"] == 0
            return [self._env.open_db(name, txn, create=is_new) for name in names]

    def _refuse_short_file(self) -> None:
        """A file shorter than its own tree would end the process by SIGBUS, not by an exception."""
        page_bytes = self._env.stat()["psize"]
        pages = self._env.info()["last_pgno"] + 1
        size_bytes = os.path.getsize(self.file)
        if size_bytes < pages * page_bytes:
            raise CorruptionError("the index is cut short", self.file, size_bytes)

    def write(self, change: Callable[[Any], object]) -> None:
        """One durable transaction; run again with a larger map when the map was too small."""
        while True:
            try:
                with self._our_errors(), self._gate.open(), self._env.begin(write=True) as txn:
                    change(txn)
                return
            except _MapFull:
                self._map_bytes *= 2
                with self._our_errors(), self._gate.shut():
                    self._env.set_mapsize(self._map_bytes)

    @contextmanager
    def read(self) -> Iterator[Any]:
        """A transaction that sees what is committed now."""
        with self._our_errors(), self._gate.open(), self._env.begin() as txn:
            yield txn

    def close(self) -> None:
        with self._gate.shut():
            self._env.close()

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        """LMDB's exceptions as ours."""
        try:
            yield
        except lmdb.MapFullError as error:
            raise _MapFull from error
        except lmdb.DiskError as error:
            raise DiskFull(f"the index in {self._path} cannot grow: the disk is full") from error
        except _DAMAGE as error:
            raise CorruptionError(f"the index is damaged ({error})", self.file, 0) from error
        except (lmdb.Error, OSError) as error:
            raise DiskError(f"the index in {self._path} cannot be read or written: {error}") from error


class _MapFull(Exception):
    """The map must grow; never leaves this file."""


class _Charges(dict[int, int]):
    """Bytes to add to the count of each log."""

    def add(self, log_id: int, size_bytes: int) -> None:
        self[log_id] = self.get(log_id, 0) + size_bytes


class _Gate:
    """Many may be inside at once; `shut` waits until all are out and keeps them out."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._inside = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        with self._condition:
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                if not self._inside:
                    self._condition.notify_all()

    @contextmanager
    def shut(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._inside)
            yield


def _seal(key: bytes, content: bytes) -> bytes:
    return content + _CRC.pack(crc32c(content, crc32c(key)))


assert _ROW.size == _ROW_CHECKED.size + _CRC.size
