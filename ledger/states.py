"""State machine of a ledger's record. Each change is a function here, followed by a compare-and-set of the record.

A record is changed by the ledger's writer while the ledger is OPEN, by recoveries, by repair and an operator's order
while it is CLOSED, and by deletions. A recovery first changes only the state, so the writer's next change conflicts. A
deletion does the same; the bookies' tombstones contain the version of the record after this change. The record is
removed when every bookie that may have blocks has written the tombstone or was retired. If the writer has written no
block, the record is removed at once.

A *fragment* lists the bookies that have the entries from its first one up to the next fragment (BookKeeper's
[ensemble](https://bookkeeper.apache.org/docs/development/protocol)). Each block is sent to all of them. A fragment with
fewer bookies than the write quorum is *narrow*; it has at least as many as the ack quorum. A new fragment begins at the
entry after the last confirmed one. If the last fragment has no confirmed entry, the new one replaces it, and its
bookies that are no longer in the record are kept in `former`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from quire.metadata.records import Fragment, Hole, LedgerRecord, LedgerState, Storage
from quire.runtime.transitions import Transitions
from quire.wire.bookie import BookieId


class LedgerEvent(Enum):
    CREATED = "its writer creates the record, before any block"
    CHANGED = "its writer changes the ensemble"
    DISCARDED = "its writer removes it before any block"
    TAKEN_OVER = "a new owner begins to recover it"
    ADOPTED = "a recovery finds a newer record in a label, because an older metadata store was restored"
    CLOSED = "its writer or a recovery records its last entry"
    REPAIRED = "repair replaces the bookies of a fragment by ones that have all its blocks"
    GIVEN_UP = "an operator gives up lost entries"
    DELETED = "a deletion begins"
    FORGOTTEN = "every replica has the tombstone or was retired"


TRANSITIONS: Final = Transitions[LedgerState | None, LedgerEvent](
    "a ledger",
    {
        (None, LedgerEvent.CREATED): LedgerState.OPEN,
        (LedgerState.OPEN, LedgerEvent.CHANGED): LedgerState.OPEN,
        (LedgerState.OPEN, LedgerEvent.CLOSED): LedgerState.CLOSED,
        (LedgerState.OPEN, LedgerEvent.TAKEN_OVER): LedgerState.IN_RECOVERY,
        (LedgerState.OPEN, LedgerEvent.DISCARDED): None,
        (LedgerState.IN_RECOVERY, LedgerEvent.ADOPTED): LedgerState.IN_RECOVERY,
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
    """Return the record of a new ledger, with one fragment from entry 0 on."""
    assert 1 <= ack_quorum <= len(bookies) <= write_quorum
    assert len({bookie.uuid for bookie in bookies}) == len(bookies), "two copies on one bookie"
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
    """Return whether the ledger's blocks may use the reserve of a full disk.

    State logs may use it: otherwise, a consumer's acknowledgements could not be stored, and no space would become free.
    """
    return record.purpose.startswith("state:")


def changed(record: LedgerRecord, fragments: tuple[Fragment, ...]) -> LedgerRecord:
    """Return the record after an ensemble change."""
    _assert_contiguous(fragments)
    state = _after(record, LedgerEvent.CHANGED)
    return replace(record, state=state, fragments=fragments, former=_former(record, fragments))


def in_recovery(record: LedgerRecord) -> LedgerRecord:
    return replace(record, state=_after(record, LedgerEvent.TAKEN_OVER))


def before_recovery(record: LedgerRecord) -> LedgerRecord:
    """Return the record before its change to IN_RECOVERY, which changed only the state."""
    assert record.state is LedgerState.IN_RECOVERY
    return replace(record, state=LedgerState.OPEN)


def adopted(record: LedgerRecord, newer: LedgerRecord) -> LedgerRecord:
    """Return a label's newer record for a ledger in recovery.

    Its state is CLOSED if it is closed in the label, else IN_RECOVERY.
    """
    is_closed = newer.state is LedgerState.CLOSED
    return replace(newer, state=_after(record, LedgerEvent.CLOSED if is_closed else LedgerEvent.ADOPTED))


def closed(
    record: LedgerRecord,
    fragments: tuple[Fragment, ...],
    last_entry: int,
    ledger_bytes: int,
    now_ms: int,
    tried: Sequence[str] = (),
) -> LedgerRecord:
    """Return the closed record; `last_entry` is -1 for an empty ledger.

    `tried` contains bookies that got blocks and were replaced before any of these blocks was confirmed.
    """
    assert last_entry >= record.fragments[-1].first_entry - 1, "the end would be before a confirmed entry"
    assert ledger_bytes >= 0
    _assert_contiguous(fragments)
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
    """Return the record with `bookies` in the fragment at `index`; replaced bookies are listed in `former`."""
    state = _after(record, LedgerEvent.REPAIRED)
    assert record.ack_quorum <= len(bookies) <= record.write_quorum
    assert len({bookie.uuid for bookie in bookies}) == len(bookies), "two copies on one bookie"
    old = record.fragments[index]
    new = fragment(old.first_entry, bookies)
    fragments = (*record.fragments[:index], new, *record.fragments[index + 1 :])
    _assert_contiguous(fragments)
    return replace(record, state=state, fragments=fragments, former=_former(record, fragments))


def given_up(record: LedgerRecord, found: Sequence[Hole]) -> LedgerRecord:
    """Return the record with additional holes."""
    state = _after(record, LedgerEvent.GIVEN_UP)
    holes = sorted([*record.holes, *found], key=lambda hole: hole.first_entry)
    assert all(one.last_entry < next_one.first_entry for one, next_one in pairwise(holes)), "holes overlap"
    return replace(record, state=state, holes=tuple(holes))


def without(record: LedgerRecord, strangers: Collection[str]) -> LedgerRecord:
    """Return the record without bookies that have another ledger under this id, if an ack quorum remains.

    They are not added to `former`: this ledger's tombstone must not delete the other ledger's data.
    """
    fragments = tuple(_fragment_without(each, strangers, record.ack_quorum) for each in record.fragments)
    return replace(record, fragments=fragments)


def _fragment_without(of: Fragment, strangers: Collection[str], ack_quorum: int) -> Fragment:
    kept = [bookie for bookie in ensemble(of) if bookie.uuid not in strangers]
    return fragment(of.first_entry, kept) if len(kept) >= ack_quorum else of


def _former(
    record: LedgerRecord, fragments: tuple[Fragment, ...], tried: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the bookies that may have blocks but are in no fragment any more; a deletion must include them."""
    named = {name for each in fragments for name in each.bookies}
    before = (name for each in record.fragments for name in each.bookies)
    return tuple(name for name in dict.fromkeys((*record.former, *before, *tried)) if name not in named)


def _assert_contiguous(fragments: tuple[Fragment, ...]) -> None:
    """Assert that fragments cover all entries from 0 on, each entry once."""
    assert fragments and fragments[0].first_entry == 0, "no fragment contains entry 0"
    assert all(one.first_entry < following.first_entry for one, following in pairwise(fragments))


def deleting(record: LedgerRecord) -> LedgerRecord:
    return replace(record, state=_after(record, LedgerEvent.DELETED))


def may_be_removed(record: LedgerRecord, event: LedgerEvent) -> None:
    """Assert that the record's node may be removed by this event."""
    after = TRANSITIONS.next(record.state, event)
    assert after is None


def _after(record: LedgerRecord | None, event: LedgerEvent) -> LedgerState:
    state = TRANSITIONS.next(None if record is None else record.state, event)
    assert state is not None
    return state


def fragment(first_entry: int, bookies: Sequence[BookieId]) -> Fragment:
    return Fragment(first_entry=first_entry, bookies=tuple(map(str, bookies)))


def with_fragment(fragments: tuple[Fragment, ...], new: Fragment) -> tuple[Fragment, ...]:
    """Return `fragments` followed by `new`; replace the last one if none of its entries was confirmed."""
    assert new.first_entry >= fragments[-1].first_entry
    kept = fragments[:-1] if fragments[-1].first_entry == new.first_entry else fragments
    return (*kept, new)


def ensemble(of: Fragment) -> tuple[BookieId, ...]:
    return tuple(map(BookieId.parse, of.bookies))


def fragment_index(record: LedgerRecord, entry: int) -> int:
    """Return the index of the fragment that contains `entry`."""
    for index in range(len(record.fragments) - 1, 0, -1):
        if record.fragments[index].first_entry <= entry:
            return index
    return 0


def last_entry_of(record: LedgerRecord, index: int) -> int:
    """Return the last entry of a fragment of a closed ledger; for an empty fragment, the entry before its first."""
    if index + 1 < len(record.fragments):
        return record.fragments[index + 1].first_entry - 1
    return record.last_entry


def all_bookies(record: LedgerRecord) -> tuple[BookieId, ...]:
    """Return all bookies that fragments name, without duplicates."""
    return tuple(dict.fromkeys(bookie for each in record.fragments for bookie in ensemble(each)))


def storage(record: LedgerRecord) -> Storage:
    """Return the kind of storage that has the ledger's blocks; a ledger never uses both kinds."""
    on_wal = ensemble(record.fragments[-1])[0].is_wal
    return Storage.OBJECTS if on_wal else Storage.BOOKIES


def holders(record: LedgerRecord) -> tuple[BookieId, ...]:
    """Return the bookies that may have blocks of the ledger: all in its fragments and in `former`."""
    return (*all_bookies(record), *map(BookieId.parse, record.former))


def others(record: LedgerRecord, index: int) -> tuple[BookieId, ...]:
    """Return the bookies outside a fragment that may have blocks of it.

    A bookie that was replaced after a failure may have stored blocks before.
    """
    named = ensemble(record.fragments[index])
    return tuple(bookie for bookie in holders(record) if bookie not in named)
