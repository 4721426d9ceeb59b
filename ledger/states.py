"""What a ledger's metadata record may become. Each change is a function here, then a put by version.

Three parties change it: its writer while it is OPEN, any recovery, and whoever deletes. Taking over changes nothing but
the state, so the writer's next change conflicts; deleting, too, and the bookies' tombstones carry that version. The
record is removed when every replica has answered the tombstone or was retired; at once where the writer wrote nothing,
so that no bookie knows of the ledger.

A *fragment* says who holds the entries from its first one on, up to the next fragment. Its length is the write
quorum that holds for it: a fragment without a full set of bookies is *narrow*, never below the ack quorum; the first
may be. Fragments only ever grow at the end, from the entry after the last confirmed one; an empty last fragment is
replaced, and the bookies that leave the record with it are remembered in `former`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from quire.metadata.records import Fragment, Hole, LedgerRecord, LedgerState, Storage
from quire.runtime.transitions import Transitions
from quire.wire.bookie import BookieId


class LedgerEvent(Enum):
    CREATED = "its writer writes the intent, before any block"
    CHANGED = "its writer changes the ensemble"
    DISCARDED = "its writer removes it, to which nothing was written"
    TAKEN_OVER = "whoever takes over begins to recover it"
    CLOSED = "its writer or a recovery writes its end"
    REPAIRED = "repair names bookies that have every block of a fragment"
    GIVEN_UP = "an operator gives lost entries up"
    DELETED = "whoever deletes says so"
    FORGOTTEN = "every replica has the tombstone or was retired"


TRANSITIONS: Final = Transitions[LedgerState | None, LedgerEvent](
    "a ledger",
    {
        (None, LedgerEvent.CREATED): LedgerState.OPEN,
        (LedgerState.OPEN, LedgerEvent.CHANGED): LedgerState.OPEN,
        (LedgerState.OPEN, LedgerEvent.CLOSED): LedgerState.CLOSED,
        (LedgerState.OPEN, LedgerEvent.TAKEN_OVER): LedgerState.IN_RECOVERY,
        (LedgerState.OPEN, LedgerEvent.DISCARDED): None,
        (LedgerState.IN_RECOVERY, LedgerEvent.CLOSED): LedgerState.CLOSED,
        (LedgerState.CLOSED, LedgerEvent.REPAIRED): LedgerState.CLOSED,
        (LedgerState.CLOSED, LedgerEvent.GIVEN_UP): LedgerState.CLOSED,
        (LedgerState.OPEN, LedgerEvent.DELETED): LedgerState.DELETING,
        (LedgerState.IN_RECOVERY, LedgerEvent.DELETED): LedgerState.DELETING,
        (LedgerState.CLOSED, LedgerEvent.DELETED): LedgerState.DELETING,
        (LedgerState.DELETING, LedgerEvent.FORGOTTEN): None,
    },
)


def opened(
    ledger_id: int, write_quorum: int, ack_quorum: int, bookies: Sequence[BookieId], purpose: str, now_ms: int
) -> LedgerRecord:
    """The intent of a new ledger: one fragment, from entry 0 on."""
    assert 1 <= ack_quorum <= len(bookies) <= write_quorum
    return LedgerRecord(
        ledger_id=ledger_id,
        state=_after(None, LedgerEvent.CREATED),
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        fragments=(fragment(0, bookies),),
        purpose=purpose,
        created_ms=now_ms,
    )


def has_priority(record: LedgerRecord) -> bool:
    """Whether its blocks may use the reserve of a full disk: what is read could not be acknowledged else."""
    return record.purpose.startswith("state:")


def changed(record: LedgerRecord, fragments: tuple[Fragment, ...]) -> LedgerRecord:
    """The record with an ensemble change in it."""
    state = _after(record, LedgerEvent.CHANGED)
    return replace(record, state=state, fragments=fragments, former=_former(record, fragments))


def in_recovery(record: LedgerRecord) -> LedgerRecord:
    return replace(record, state=_after(record, LedgerEvent.TAKEN_OVER))


def closed(
    record: LedgerRecord,
    fragments: tuple[Fragment, ...],
    last_entry: int,
    ledger_bytes: int,
    now_ms: int,
    tried: Sequence[str] = (),
) -> LedgerRecord:
    """The record with its end in it; `last_entry` is -1 for an empty ledger.

    `tried` names bookies that were written to and left again before anything was confirmed.
    """
    assert last_entry >= record.fragments[-1].first_entry - 1, "a confirmed entry would lie beyond the end"
    return replace(
        record,
        state=_after(record, LedgerEvent.CLOSED),
        fragments=fragments,
        former=_former(record, fragments, tried),
        last_entry=last_entry,
        bytes=ledger_bytes,
        closed_ms=now_ms,
    )


def repaired(record: LedgerRecord, index: int, bookies: Sequence[BookieId]) -> LedgerRecord:
    """The record with other bookies in one fragment; those that leave are remembered until the ledger is deleted."""
    state = _after(record, LedgerEvent.REPAIRED)
    assert record.ack_quorum <= len(bookies) <= record.write_quorum
    assert len({bookie.uuid for bookie in bookies}) == len(bookies), "two copies on one bookie"
    old = record.fragments[index]
    new = fragment(old.first_entry, bookies)
    fragments = (*record.fragments[:index], new, *record.fragments[index + 1 :])
    return replace(record, state=state, fragments=fragments, former=_former(record, fragments))


def given_up(record: LedgerRecord, found: Sequence[Hole]) -> LedgerRecord:
    """The record with more holes; those that it has stay."""
    state = _after(record, LedgerEvent.GIVEN_UP)
    holes = sorted([*record.holes, *found], key=lambda hole: hole.first_entry)
    assert all(one.last_entry < next_one.first_entry for one, next_one in pairwise(holes)), "holes overlap"
    return replace(record, state=state, holes=tuple(holes))


def _former(
    record: LedgerRecord, fragments: tuple[Fragment, ...], tried: Sequence[str] = ()
) -> tuple[str, ...]:
    """Bookies that may hold blocks and are in no fragment any more: they get the tombstone, too."""
    named = {name for each in fragments for name in each.bookies}
    before = (name for each in record.fragments for name in each.bookies)
    return tuple(name for name in dict.fromkeys((*record.former, *before, *tried)) if name not in named)


def deleting(record: LedgerRecord) -> LedgerRecord:
    return replace(record, state=_after(record, LedgerEvent.DELETED))


def may_be_removed(record: LedgerRecord, event: LedgerEvent) -> None:
    """Asserts it, before the node is deleted."""
    gone = TRANSITIONS.next(record.state, event)
    assert gone is None


def _after(record: LedgerRecord | None, event: LedgerEvent) -> LedgerState:
    state = TRANSITIONS.next(None if record is None else record.state, event)
    assert state is not None
    return state


def fragment(first_entry: int, bookies: Sequence[BookieId]) -> Fragment:
    return Fragment(first_entry=first_entry, bookies=tuple(map(str, bookies)))


def with_fragment(fragments: tuple[Fragment, ...], new: Fragment) -> tuple[Fragment, ...]:
    """`fragments` and `new` behind them; a last one in which no entry was confirmed is replaced."""
    assert new.first_entry >= fragments[-1].first_entry
    kept = fragments[:-1] if fragments[-1].first_entry == new.first_entry else fragments
    return (*kept, new)


def ensemble(of: Fragment) -> tuple[BookieId, ...]:
    return tuple(map(BookieId.parse, of.bookies))


def fragment_index(record: LedgerRecord, entry: int) -> int:
    """Which fragment holds `entry`."""
    for index in range(len(record.fragments) - 1, 0, -1):
        if record.fragments[index].first_entry <= entry:
            return index
    return 0


def last_entry_of(record: LedgerRecord, index: int) -> int:
    """The last entry of a fragment of a closed ledger; below its first one when it is empty."""
    if index + 1 < len(record.fragments):
        return record.fragments[index + 1].first_entry - 1
    return record.last_entry


def all_bookies(record: LedgerRecord) -> tuple[BookieId, ...]:
    """Every bookie that a fragment names, each once."""
    return tuple(dict.fromkeys(bookie for each in record.fragments for bookie in ensemble(each)))


def storage(record: LedgerRecord) -> Storage:
    """What keeps the ledger's blocks; never both."""
    on_wal = ensemble(record.fragments[-1])[0].is_wal
    return Storage.OBJECTS if on_wal else Storage.BOOKIES


def holders(record: LedgerRecord) -> tuple[BookieId, ...]:
    """Bookies that may hold blocks of the ledger: all that its record names or ever named."""
    return (*all_bookies(record), *map(BookieId.parse, record.former))


def others(record: LedgerRecord, index: int) -> tuple[BookieId, ...]:
    """Bookies that may have blocks of a fragment that does not name them.

    One that was left when it failed may have taken what was written again without it; it is the same block.
    """
    named = ensemble(record.fragments[index])
    return tuple(bookie for bookie in holders(record) if bookie not in named)
