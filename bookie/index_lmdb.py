"""Persistent index in [LMDB](http://www.lmdb.tech/doc/): one file, one writer, readers that never wait for it.

LMDB has the properties that a sparse index needs: sorted keys, durable transactions without a separate log, and reads
from a memory map, whose rarely used pages the kernel can evict. It has no checksums. So every value contains a checksum
over key and value, and a flipped bit in a value causes an error, not a wrong result.

A flipped bit outside the values, in the pages of a tree, can hide rows; `verify` detects that at a start. Some damage
violates an assertion of LMDB, which ends the process; the next start detects that (`index_home`). A damaged or missing
index is rebuilt from the entry logs.

    database  key                                      value
    rows      ledger u64, first entry u64              last entry u64, log u64, offset u64, length u32,
                                                       first clock u64, last clock u64, LAC i64, crc u32
    ledgers   ledger u64                               record of the ledger's state (`ledgers`), crc u32
    logs      log u64                                  bytes of live rows u64, crc u32
    meta      "mark"                                   checkpoint mark (`checkpoint`), crc u32
              "format"                                 1 as u32, crc u32

All integers are big-endian, so keys sort as numbers. crc is CRC32C over the key and the value before it. A value is
valid if its crc matches. Any other value, and any error of LMDB itself, is a `CorruptionError` with the file's name.

The memory map is far larger than the file, because address space costs nothing. If it is too small, it is doubled;
`_Gate` ensures that no transaction is open while it grows, as LMDB requires.
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

from quire.bookie.index import IndexRow, search_time
from quire.runtime.errors import CorruptionError, DiskError, DiskFull
from quire.runtime.limits import INDEX_MAP_BYTES
from quire.wire.checksum import crc32c

_ROW_KEY: Final = Struct(">QQ")
_ROW: Final = Struct(">QQQIQQqI")
_ROW_CHECKED: Final = Struct(">QQQIQQq")
_ID: Final = Struct(">Q")
_CRC: Final = Struct(">I")
_MARK: Final = b"mark"
_FORMAT: Final = b"format"
_FORMAT_VALUE: Final = b"\x00\x00\x00\x01"
_TRY_BYTES: Final = 1 << 20
"""Size in bytes of a value that is large enough to need overflow pages, so that LMDB reads its list of free pages."""
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
    """`Index` in the directory `path`, which is created if necessary. Raises `CorruptionError` if it is damaged.

    `on_close` is called after the index was closed.
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
        """Put rows. A row with the same key, from an earlier attempt of a flush, is replaced and its bytes deducted."""
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
        """Read the whole index, which takes about two microseconds per row.

        A flipped bit inside a page of a tree can hide values. Such damage is detected by the trees' own counts, by the
        order of the keys, by a key that a search does not find, or by the byte count of a log.
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
                raise CorruptionError(
                    f"the index counts too few bytes in use of entry log {log_id}", self._file, 0
                )
        self.ledgers()
        self.mark()

    def _whole_tree(self, txn: Any, database: Any) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys and values of a database; check their order and number, and that a search finds each key."""
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
        """Put a large value, so that LMDB reads its list of free pages, and abort. Raises the errors of `commit`."""

        def try_it(txn: Any) -> None:
            txn.put(b"try", bytes(_TRY_BYTES), db=self._meta)
            txn.abort()

        self._lmdb.write(try_it)

    def close(self) -> None:
        self._lmdb.close()
        self._on_close()

    def _seek_before(self, cursor: Any, ledger_id: int, entry_id: int) -> bool:
        """Move the cursor to the last row at or before (ledger, entry); return False if there is none."""
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
        """Return the verified content of a sealed value."""
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
            raise CorruptionError("the index has a format that this version does not support", self._file, 0)


class _Environment:
    """LMDB environment: maps LMDB's errors to QuireErrors, and enlarges the memory map when it is full."""

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
        """Open these databases; create all of them in a new file. In an existing file, a missing one means damage."""
        self._refuse_short_file()
        with self._our_errors(), self._env.begin(write=True) as txn:
            is_new = self._env.stat()["entries"] == 0
            return [self._env.open_db(name, txn, create=is_new) for name in names]

    def _refuse_short_file(self) -> None:
        """Refuse a file that is shorter than its page count requires, because reading it would cause a SIGBUS."""
        page_bytes = self._env.stat()["psize"]
        pages = self._env.info()["last_pgno"] + 1
        size_bytes = os.path.getsize(self.file)
        if size_bytes < pages * page_bytes:
            raise CorruptionError("the index is truncated", self.file, size_bytes)

    def write(self, change: Callable[[Any], object]) -> None:
        """Run one durable transaction; repeat it with a larger map if the map was too small."""
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
        """Open a read transaction on the current state."""
        with self._our_errors(), self._gate.open(), self._env.begin() as txn:
            yield txn

    def close(self) -> None:
        with self._gate.shut():
            self._env.close()

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        """Map LMDB's exceptions to QuireErrors."""
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
    """Raised when the memory map must grow; internal to this file."""


class _Charges(dict[int, int]):
    """Bytes to add to the count of each entry log; negative for removed rows."""

    def add(self, log_id: int, size_bytes: int) -> None:
        self[log_id] = self.get(log_id, 0) + size_bytes


class _Gate:
    """Readers-writer lock: transactions share `open`; `shut` waits until all have ended, and excludes new ones."""

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
