"""The scan of the entry logs: every run is found again without the index, for a rebuild and for a compaction.

A record that is damaged, or missing before a valid one, is reported: as `CorruptionError` when a later record proves
that it had been durable, as `TornRecord` when nothing does and it may be no more than the tail of an unfinished flush.
A page that cannot be read proves nothing, and counts as damage. Blocks of a damaged record whose own headers hold are
still told of: reading them then says what is wrong, and where, instead of "no such entry".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from crc32c import crc32c

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

_ALL: Final = 1 << 63


class TornRecord(CorruptionError):
    """A record that does not match its checksum, and that nothing proves to have ever been durable."""


class EntryLogScanner:
    """`report` is told of each damage that a scan finds."""

    def __init__(self, logs: EntryLogs, report: Callable[[CorruptionError], None]) -> None:
        self._logs = logs
        self._report = report

    def scan_all(self) -> Iterator[IndexRow]:
        """Every run of every log, oldest log first.

        A run may be found twice, in two logs, when a compaction was under way: the later one counts.
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
        """Every run of one log that was wholly durable, in order of offsets."""
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
            self._report(damage(f"{what} is cut short ({error})", file, offset))
            return
        whole = crc32c(payload) == header.payload_crc
        if unreadable:  # which is no absence
            why = next(iter(unreadable.values()))
            self._report(CorruptionError(f"{what} cannot be read wholly ({why})", file, offset))
        elif not whole:
            self._report(damage(f"{what} does not match its checksum", file, offset))
        if not whole and damage is TornRecord:
            return  # what the journal still has of it is better than what may lie here
        try:
            walk(payload, log_id, offset + HEADER_BYTES, found)
        except BlockError as error:
            if whole:
                self._report(damage(f"{what} does not consist of blocks: {error}", file, offset))


def blocks_of(logs: EntryLogs, row: IndexRow) -> list[IndexRow]:
    """A row for each block of a run that a scan found. Raises `DiskError`, `CorruptionError`."""
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
