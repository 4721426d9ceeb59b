"""Scan of the entry logs: finds every run without the index, for a rebuild and for a compaction.

The scan reports each damaged record, and each record that is missing before a valid one. The report is a
`CorruptionError` if a later record proves that the damaged one was durable, else a `TornRecord`, because it may be the
tail of an incomplete flush. An unreadable page counts as corruption. Blocks of a damaged record get rows if their own
headers are valid, so that a read of them reports the damage and its offset, instead of "no such entry".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from quire.bookie.entry_log import EntryLogs
from quire.bookie.entry_record import (
    HEADER_BYTES,
    RecordHeader,
    RunBuilder,
    Span,
    find_records,
    walk,
    walk_one,
)
from quire.bookie.index import IndexRow
from quire.runtime.errors import CorruptionError, DiskError
from quire.wire.block import BlockError
from quire.wire.checksum import crc32c

_ALL: Final = 1 << 63
"""Number greater than any record number, for a log whose records all count as durable."""


class TornRecord(CorruptionError):
    """Raised if a record does not match its checksum, and nothing proves that it was ever durable."""


class EntryLogScanner:
    """Scanner of entry logs; `report` is called for each damaged or missing record."""

    def __init__(self, logs: EntryLogs, report: Callable[[CorruptionError], None]) -> None:
        self._logs = logs
        self._report = report

    def scan_all(self) -> Iterator[IndexRow]:
        """Yield every run of every log, oldest log first.

        After an interrupted compaction, a run may be found in two logs; the caller must use the one in the later log.
        """
        records = {log_id: find_records(file, log_id) for log_id, file in self._logs.files().items()}
        durable: dict[int, int] = {}
        for spans in records.values():
            for span in spans:
                if span.header is not None:
                    log_id, number = span.header.durable
                    durable[log_id] = max(number, durable.get(log_id, 0))
        for log_id, spans in records.items():
            yield from self._scan(log_id, spans, durable.get(log_id, -1))

    def scan(self, log_id: int) -> Iterator[IndexRow]:
        """Yield every run of one log, in order of offsets. The log must have been synced completely."""
        yield from self._scan(log_id, find_records(self._logs.files()[log_id], log_id), _ALL)

    def _scan(self, log_id: int, spans: list[Span], durable: int) -> Iterator[IndexRow]:
        found = RunBuilder()
        for span in spans:
            is_proven = span.number <= durable or span.is_unreadable
            damage = CorruptionError if is_proven else TornRecord
            if span.header is None:
                file = self._logs.file_name(log_id)
                self._report(damage(f"record {span.number} is damaged", file, span.offset))
            else:
                self._scan_record(span.offset, span.header, damage, found)
                yield from found.take()
        yield from found.finish()

    def _scan_record(
        self, offset: int, header: RecordHeader, damage: type[CorruptionError], found: RunBuilder
    ) -> None:
        log_id, file, what = header.log_id, self._logs.file_name(header.log_id), f"record {header.number}"
        try:
            payload, _, unreadable = self._logs.salvage(log_id, offset + HEADER_BYTES, header.length)
        except DiskError as error:
            self._report(CorruptionError(f"{what} cannot be read ({error})", file, offset))
            return
        except CorruptionError as error:
            self._report(damage(f"{what} is truncated ({error})", file, offset))
            return
        whole = crc32c(payload) == header.payload_crc
        if unreadable:  # the record may be intact on the disk
            why = next(iter(unreadable.values()))
            self._report(CorruptionError(f"{what} cannot be read completely ({why})", file, offset))
        elif not whole:
            self._report(damage(f"{what} does not match its checksum", file, offset))
        if not whole and damage is TornRecord:
            return  # its blocks are still in the journal
        try:
            walk(payload, log_id, offset + HEADER_BYTES, found)
        except BlockError as error:
            if whole:
                self._report(damage(f"{what} does not consist of blocks: {error}", file, offset))


def blocks_of(logs: EntryLogs, row: IndexRow) -> list[IndexRow]:
    """Return a separate row for each block of the run in `row`. Raises `DiskError`, `CorruptionError`."""
    run = logs.salvage(row.log_id, row.offset, row.length).run
    rows: list[IndexRow] = []
    at = 0
    try:
        while at < row.length:
            single = RunBuilder()
            at += walk_one(run, at, row.log_id, row.offset, single)
            rows += single.finish()
    except BlockError as error:
        raise CorruptionError(str(error), logs.file_name(row.log_id), row.offset + at) from error
    return rows
