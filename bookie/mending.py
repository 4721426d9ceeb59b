"""Mending: a block that rotted in the entry log is put back where it was.

A recovery or a repair that writes a block again where one lies already has the same bytes from another bookie. When the
one that lies here cannot be read any more, the run around it is written anew with the good block in its place, as a
compaction would: copied, synced, and then the index swapped in one transaction. So a cluster without a bookie to spare
gets its copy back, too, and a crash anywhere leaves the run as it was or as it is to be.

Only the one block is taken from outside. Others of the run that are rotten stay as they are, and stay damage: each
block brings its own checksum along. Where a header is rotten nobody knows how long its block is, unless it is the one
that is mended; then what follows must fit behind it.

This blocks, and runs on the thread that appends and commits.
"""

from __future__ import annotations

import logging

from quire.bookie.entry_log import EntryLogs
from quire.bookie.index import Index, IndexRow
from quire.runtime.errors import CorruptionError
from quire.wire.block import BlockError, BlockHeader, Buffer, peek, read_header
from quire.wire.bookie import Status

log = logging.getLogger(__name__)


def mend(index: Index, logs: EntryLogs, block: Buffer) -> Status:
    """Put a verified `block` in the place of its rotten copy; OK when it is durable there.

    CONFLICT when what lies there is another block. Raises `CorruptionError` when its place cannot be told, `DiskFull`,
    `DiskError`.
    """
    wanted = peek(block)
    row = index.find(wanted.ledger_id, wanted.first_entry)
    if row is None:
        return Status.DELETED  # nothing else takes rows away
    run = logs.read(row.log_id, row.offset, row.length)
    blocks: list[Buffer] = []
    at, entry, is_placed = 0, row.first_entry, False
    while at < row.length:
        kept = _header_at(run, at, row, entry)
        if entry == wanted.first_entry:
            if kept is not None and kept != wanted:
                return Status.CONFLICT
            blocks.append(block)
            at, entry, is_placed = at + wanted.length, wanted.last_entry + 1, True
        elif kept is not None:
            blocks.append(run[at : at + kept.length])
            at, entry = at + kept.length, kept.last_entry + 1
        else:
            raise CorruptionError(
                "the header of a block is damaged", logs.file_name(row.log_id), row.offset + at
            )
    if not is_placed:
        return Status.CONFLICT  # it would begin within another one
    if at != row.length or entry != row.last_entry + 1:
        raise CorruptionError(
            "a run of blocks does not end where it should", logs.file_name(row.log_id), row.offset
        )
    new = logs.append([(row.ledger_id, blocks)])
    logs.sync()
    index.replace([row], new)
    file = logs.file_name(row.log_id)
    log.info("entry %d of ledger %d is mended: it rotted in %s", wanted.first_entry, wanted.ledger_id, file)
    return Status.OK


def _header_at(run: memoryview, at: int, row: IndexRow, entry: int) -> BlockHeader | None:
    """The header there, if it is whole and the one of the block that should begin with `entry`."""
    try:
        header = read_header(run, at)
    except BlockError:
        return None
    return header if (header.ledger_id, header.first_entry) == (row.ledger_id, entry) else None
