"""Check whether all replicas of a closed ledger are in entry logs, so that no journal is needed to read it."""

from __future__ import annotations

import asyncio

from quire.ledger import holes, states
from quire.ledger.directory import BookieDirectory
from quire.metadata.records import LedgerRecord, LedgerState
from quire.wire.bookie import LedgerInfoRequest, Status


async def is_flushed(record: LedgerRecord, bookies: BookieDirectory) -> bool:
    """Return whether the ledger is closed and every replica has flushed its last block to the entry log."""
    if record.state is not LedgerState.CLOSED:
        return False
    infos = await asyncio.gather(
        *(
            bookies.port(bookie).ask(LedgerInfoRequest(bookie, record.ledger_id))
            for bookie in states.all_bookies(record)
        )
    )
    holds_something = any(holes.parts(record, 0, record.last_entry))
    return all(
        info.flushed
        if info.status is Status.OK
        else (info.status is Status.NO_SUCH_LEDGER and not holds_something)
        for info in infos
    )
