"""What must hold in every state. Each check answers what is wrong, or "".

- No confirmed entry lies beyond a closed ledger's end.
- A closed ledger never changes: everyone who asks hears the same end.
- Every confirmed entry, and every entry of a closed ledger, is on Qa of the bookies that the metadata name for it,
  but for disks that were lost. So it can be read while at most Qa - 1 of them are lost, and who looks for it where the
  metadata say, finds it.
- No core fails an assertion, and no recovery believes in damage that nobody did.
"""

from __future__ import annotations

from functools import lru_cache

from quire.ledger import states
from quire.metadata.records import LedgerRecord, LedgerState
from quire.wire.bookie import BookieId
from tests.model.machines import NUMBER
from tests.model.world import Phase, State


def wrong(state: State) -> str:
    """Why this state must not be."""
    if state.broken:
        return state.broken
    record = state.record
    is_closed = record.state is LedgerState.CLOSED
    if is_closed and state.confirmed > record.last_entry:
        return f"entry {state.confirmed} was confirmed and lies beyond the end, {record.last_entry}"
    last = record.last_entry if is_closed else state.confirmed
    return _short_of_copies(record, state.stored, state.wiped, last) if last >= 0 else ""


def wrong_step(before: State, after: State) -> str:
    """Why this step must not be."""
    if before.record.state is LedgerState.CLOSED and after.record != before.record:
        return (
            f"a closed ledger changed: its end was {before.record.last_entry}, is {after.record.last_entry}"
        )
    return ""


def wrong_end(state: State) -> str:
    """Why nothing may be left to happen here: a recovery that began closes, or says why it stops."""
    began = [each for each in state.recoveries if each.phase is not Phase.IDLE]
    stopped = any(each.phase is Phase.STOPPED for each in began)
    if began and state.record.state is not LedgerState.CLOSED and not stopped:
        return "nothing can happen any more, and the ledger is not closed"
    return ""


@lru_cache(maxsize=100_000)
def _short_of_copies(record: LedgerRecord, stored: tuple[int, ...], wiped: int, last_entry: int) -> str:
    for entry in range(last_entry + 1):
        fragment = record.fragments[states.fragment_index(record, entry)]
        holders = [NUMBER[BookieId.parse(name)] for name in fragment.bookies]
        copies = sum(stored[bookie] >> entry & 1 for bookie in holders)
        lost = sum(wiped >> bookie & 1 for bookie in holders)
        if copies < record.ack_quorum - lost:
            where = ", ".join(name.partition(":")[0] for name in fragment.bookies)
            what = "confirmed" if record.state is not LedgerState.CLOSED else "part of the closed ledger"
            return f"entry {entry} is {what}, and {copies} of {where} have it"
    return ""
