"""Restoring a block that rotted in the entry log, or lies where it cannot be read any more, to its place.

A recovery or a repair that writes a block again where one lies already has the same bytes from another bookie. When the
one that lies here cannot be read any more, the run around it is written anew with the good block in its place, as a
compaction would: copied, synced, and then the index swapped in one transaction. So a cluster without a bookie to spare
gets its copy back, too, and a crash anywhere leaves the run as it was or as it is to be.

Only the one block is taken from outside. Others of the run that are rotten stay as they are, and stay damage: each
block brings its own checksum along. One that cannot be read is not copied: it stays in its log, with a row of its own,
for the disk may have its good moments. Where a header is rotten or unreadable nobody knows how long its block is, so
all up to the next whole header, or to the run's end, is a *gap*. It stays in its log, too. In a gap the block that is
mended may be the first or the last one; of others in the middle the place cannot be told before their neighbours are
mended. Behind a closed ledger's end may lie a gap that nobody ever fills: no other bookie need have those blocks.

This blocks, and runs on the thread that appends and commits.
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
    """Put a verified `block` in the place of its rotten copy; OK when it is durable there.

    CONFLICT when what lies there is another block. Raises `CorruptionError` when its place cannot be told, `DiskFull`,
    `DiskError`.
    """
    wanted = peek(block)
    row = index.find(wanted.ledger_id, wanted.first_entry)
    if row is None:
        return Status.DELETED  # nothing else takes rows away
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
        raise CorruptionError("a run of blocks does not end where it should", file, row.offset)
    new = logs.append([(row.ledger_id, run.blocks)])
    logs.sync()
    index.replace([row], [*new, *run.gaps])
    log.info(
        "entry %d of ledger %d is mended: it was damaged in %s", wanted.first_entry, wanted.ledger_id, file
    )
    return Status.OK


class _Run:
    """What lies at `row`, and what is to lie there: `blocks`, written anew, and `gaps`, which stay."""

    def __init__(self, row: IndexRow, found: Salvaged) -> None:
        self.blocks: list[Buffer] = []
        self.gaps: list[IndexRow] = []
        self._row = row
        self._run = found.run
        self._found = found

    def header_at(self, at: int, entry: int) -> BlockHeader | None:
        """The header there, if it is whole and the one of the block that should begin with `entry`."""
        try:
            header = read_header(self._run, at)
        except BlockError:
            return None
        return header if (header.ledger_id, header.first_entry) == (self._row.ledger_id, entry) else None

    def gap_from(self, at: int, entry: int) -> _Place:
        """Where the next whole header of this run begins, and with which entry."""
        for found, header in find_headers(self._run, at + 1):
            if header.ledger_id == self._row.ledger_id and entry < header.first_entry <= self._row.last_entry:
                return _Place(found, header.first_entry)
        return _Place(self._row.length, self._row.last_entry + 1)

    def keep(self, at: int, end: int, entry: int, next_entry: int, *, is_block: bool) -> None:
        """These bytes, a block or a gap, stay what they are. Of a gap's times and LAC only the run's are known."""
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
        """Put `block` where it was: at the front of these bytes or at their back. False when neither can be told."""
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
    """A place in a run's bytes, and the entry that begins there."""

    at: int
    entry: int


def _end_of(header: BlockHeader, at: int) -> _Place:
    return _Place(at + header.length, header.last_entry + 1)
