"""Making a new index from the entry logs, when the old one is damaged or gone.

What the index alone knew (fences, LACs, tombstones, limbo, the mark) is lost with it. So the caller gives every
ledger that is found a record that says *fenced*, and replays all of the journal that is there; ledgers that were
deleted may come back and are deleted again by whoever finds that metadata does not know them.

A run can be found twice: a compaction copies it, and a flush that was not committed is done again after the
restart, perhaps cut differently. The bytes are the same; the row in the younger log stays, and a row whose entries
another one holds as well goes (see the rule in `bookie/index.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quire.bookie.entry_log import EntryLogs, TornRecord
from quire.bookie.index import Index, IndexRow
from quire.runtime.errors import CorruptionError


def rebuild(
    logs: EntryLogs, index: Index, record_of: Callable[[int], bytes], mark: bytes = b""
) -> list[CorruptionError]:
    """Fill the empty `index` from the logs, with `record_of(ledger id)` for each ledger; answer the damage found.

    `TornRecord` among it may be no more than a flush that a crash cut short. A log with any other damage is held:
    the collector will not free it.
    """
    damage: list[tuple[int, CorruptionError]] = []
    rows = without_contained(logs.scan_all(lambda log_id, error: damage.append((log_id, error))))
    index.commit(
        rows, {ledger_id: record_of(ledger_id) for ledger_id in {row.ledger_id for row in rows}}, mark
    )
    for log_id in {log_id for log_id, error in damage if not isinstance(error, TornRecord)}:
        index.hold(log_id, 1)
    return [error for _, error in damage]


def without_contained(rows: Iterable[IndexRow]) -> list[IndexRow]:
    """The rows in order of ledgers and entries, without those whose entries another row holds as well."""
    kept: list[IndexRow] = []
    for row in sorted(
        rows, key=lambda row: (row.ledger_id, row.first_entry, -row.last_entry, -row.log_id, -row.offset)
    ):
        last = kept[-1] if kept else None
        if last is None or row.ledger_id != last.ledger_id or row.last_entry > last.last_entry:
            kept.append(row)
    return kept


def _longest_and_youngest_first(row: IndexRow) -> tuple[int, int, int, int, int]:
    return row.ledger_id, row.first_entry, -row.last_entry, -row.log_id, -row.offset
