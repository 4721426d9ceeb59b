"""Repair of a damaged or unreadable block in the entry log of the same bookie.

A recovery or a repair may send a block that this bookie already has, after reading it from another bookie. If the local
copy is unreadable, the bookie rewrites the run that contains it, with the received block instead of the damaged one.
This works like a compaction: the new run is written and synced, then the index swaps the rows in one transaction. So
the copy is restored even in a cluster without a spare bookie. A crash at any time leaves either the old or the new run.

Only this one block is replaced. Other damaged blocks of the run stay damaged, and their checksums still show it. An
unreadable block is not copied; it stays in its entry log, with its own row, because a failing disk may be able to read
it later. If a block's header is damaged, the block's length is unknown. So everything up to the next valid header, or
the end of the run, is a *gap*, which also stays in its entry log. A block can be restored at the start or the end of a
gap; the offset of other blocks in the gap is unknown until their neighbours are restored. A gap stays if no other
bookie has its blocks.

All functions block; they run on the thread that appends to entry logs and commits to the index.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from quire.bookie.entry_log import EntryLogs, Salvaged
from quire.bookie.index import Index, IndexRow
from quire.runtime.errors import CorruptionError
from quire.wire.block import BlockError, BlockHeader, Buffer, find_headers, peek, read_header
from quire.wire.bookie import Status

log = logging.getLogger(__name__)


def restore_block(index: Index, logs: EntryLogs, block: Buffer) -> Status:
    """Replace the damaged copy of a verified `block`; return OK when it is durable.

    Return CONFLICT if the bookie has another block with these entries. Raises `CorruptionError` if the block's offset
    is unknown, `DiskFull`, `DiskError`.
    """
    wanted = peek(block)
    row = index.find(wanted.ledger_id, wanted.first_entry)
    if row is None:
        return Status.DELETED  # only a deletion removes rows
    run = _Run(row, logs.salvage(row.log_id, row.offset, row.length))
    file = logs.file_name(row.log_id)
    at, entry, is_placed = 0, row.first_entry, False
    while at < row.length:
        header = run.header_at(at, entry)
        end, next_entry = run.gap_from(at, entry) if header is None else _end_of(header, at)
        if not entry <= wanted.first_entry < next_entry:
            run.keep(at, end, entry, next_entry, is_block=header is not None)
        elif header is not None and header != wanted:
            return Status.CONFLICT
        elif not run.place(block, wanted, at, end, entry, next_entry):
            raise CorruptionError("the header of a block is damaged", file, row.offset + at)
        else:
            is_placed = True
        at, entry = end, next_entry
    if not is_placed or entry != row.last_entry + 1:
        raise CorruptionError("a run of blocks ends at an unexpected offset", file, row.offset)
    assert sum(map(len, run.blocks)) + sum(gap.length for gap in run.gaps) == row.length
    new = logs.append([(row.ledger_id, run.blocks)])
    logs.sync()
    index.replace([row], [*new, *run.gaps])
    log.info(
        "restored entry %d of ledger %d, which was damaged in %s", wanted.first_entry, wanted.ledger_id, file
    )
    return Status.OK


class _Run:
    """Old and new content of the run at `row`: `blocks` are rewritten, `gaps` stay in the old entry log."""

    def __init__(self, row: IndexRow, found: Salvaged) -> None:
        self.blocks: list[Buffer] = []
        self.gaps: list[IndexRow] = []
        self._row = row
        self._run = found.run
        self._found = found

    def header_at(self, at: int, entry: int) -> BlockHeader | None:
        """Return the header at this offset, if it is valid and belongs to the block that should begin with `entry`."""
        try:
            header = read_header(self._run, at)
        except BlockError:
            return None
        return header if (header.ledger_id, header.first_entry) == (self._row.ledger_id, entry) else None

    def gap_from(self, at: int, entry: int) -> _Place:
        """Return the end of the gap that begins at `at`: the next valid header of this run, or the run's end."""
        for found, header in find_headers(self._run, at + 1):
            if header.ledger_id == self._row.ledger_id and entry < header.first_entry <= self._row.last_entry:
                return _Place(found, header.first_entry)
        return _Place(self._row.length, self._row.last_entry + 1)

    def keep(self, at: int, end: int, entry: int, next_entry: int, *, is_block: bool) -> None:
        """Add a readable block to `blocks`, or anything else to `gaps`.

        The row of a gap gets the clocks and the LAC of the whole run.
        """
        if is_block and self._found.is_read(at, end):
            self.blocks.append(self._run[at:end])
        elif at < end:
            row = self._row
            self.gaps.append(
                row._replace(
                    first_entry=entry, last_entry=next_entry - 1, offset=row.offset + at, length=end - at
                )
            )

    def place(
        self, block: Buffer, wanted: BlockHeader, at: int, end: int, entry: int, next_entry: int
    ) -> bool:
        """Add `block` instead of the bytes at the start or the end of `run[at:end]`, and keep the rest as gaps.

        Return False if the block's offset is not certain.
        """
        front = at if entry == wanted.first_entry else end - wanted.length
        back = front + wanted.length
        is_known = entry == wanted.first_entry or next_entry == wanted.last_entry + 1
        before, behind = wanted.first_entry - entry, next_entry - 1 - wanted.last_entry
        if not is_known or min(before, behind, front - at, end - back) < 0:
            return False
        if bool(before) != bool(front - at) or bool(behind) != bool(end - back):
            return False
        self.keep(at, front, entry, wanted.first_entry, is_block=False)
        self.blocks.append(block)
        self.keep(back, end, wanted.last_entry + 1, next_entry, is_block=False)
        return True


class _Place(NamedTuple):
    """Offset in a run, and the entry that begins there."""

    at: int
    entry: int


def _end_of(header: BlockHeader, at: int) -> _Place:
    return _Place(at + header.length, header.last_entry + 1)
