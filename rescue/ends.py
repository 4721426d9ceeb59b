"""Closed ledgers as their blocks tell them: the first, the last, and where one ends before a given message.

Read as any reader does, over all replicas; the ledger's record must be there.
"""

from __future__ import annotations

from typing import NamedTuple

from quire.ledger.ledgers import Ledgers
from quire.metadata.records import LedgerRecord
from quire.rescue.topic_plan import End
from quire.runtime.errors import CorruptionError
from quire.wire import block
from quire.wire.block import BlockHeader

EMPTY = End(-1, 0, 0, 0, 0, 0)


class _Seen(NamedTuple):
    header: BlockHeader
    end_index: int


async def look(ledgers: Ledgers, closed: LedgerRecord) -> End:
    """Raises `Unavailable`, `LostForGood`, `CorruptionError`."""
    if closed.last_entry < 0:
        return EMPTY
    first = await _block(ledgers, closed, 0)
    last = await _block(ledgers, closed, closed.last_entry)
    return End(
        closed.last_entry,
        first.header.first_index,
        last.end_index,
        first.header.clock_ms,
        last.header.clock_ms,
        closed.bytes,
    )


async def look_before(ledgers: Ledgers, closed: LedgerRecord, end: End, index: int) -> End:
    """As much of the ledger as ends before the message `index`: whole blocks from its end are left out."""
    last = await _block(ledgers, closed, end.last_entry)
    while last.end_index > index and last.header.first_entry > 0:
        last = await _block(ledgers, closed, last.header.first_entry - 1)
    if last.end_index > index:
        return EMPTY
    return end._replace(
        last_entry=last.header.last_entry, end_index=last.end_index, last_clock_ms=last.header.clock_ms
    )


async def _block(ledgers: Ledgers, closed: LedgerRecord, entry: int) -> _Seen:
    blocks = await ledgers.reader(closed).read(entry, 1)
    if not blocks:
        raise CorruptionError(
            f"ledger {closed.ledger_id} has no entry {entry}, and ends at {closed.last_entry}"
        )
    header = block.read_header(blocks[0])
    return _Seen(header, header.first_index + sum(block.message_counts(blocks[0], header)))
