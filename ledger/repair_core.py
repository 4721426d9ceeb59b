"""What repair decides, without doing it: which copies are lost, and who shall have them instead.

    a copy is     when its bookie                                                     and then
    GOOD          is up, in the incarnation that the ledger names; or is a WAL on     stays, and is a source
                  object storage, whose copies are the store's matter
    ABSENT        is not up, for less than the delay                                  stays: a time-out is not a loss
    LEAVING       is to be drained                                                    is replaced, and is a source
    DAMAGED       is said not to have it, or not intact                               is replaced; last source
    LOST          is not up for longer than the delay, was given up or retired, or    is replaced; last source
                  came back as another incarnation, which may have lost blocks

Only closed ledgers are repaired: their record has no other writer, and what they hold is known. An open one's writer
changes its ensemble by itself, and a dead writer's is recovered by its topic's next owner. Whom a recovery took for the
blocks that it wrote again is named when it closes the ledger, not before: until then it may be any bookie that drains.

A fragment's new bookies are those that stay and as many others as the write quorum lacks, which widens narrow ones,
too. Without another bookie a DAMAGED copy is made whole where it is: the bookie takes what it lacks, and mends what
rotted if its disk can. What cannot be replaced keeps its place, for a lost bookie may come back; only those that are
LEAVING go without a replacement, as an operator said so, if the ack quorum is left in good copies; whose holes are
filled first (`repair_copy`).

How long a bookie has been gone is told by the coordinator's own monotonic clock from when it first missed it, so a new
coordinator begins to wait anew: patience costs nothing but time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from quire.ledger import placement, states
from quire.metadata.records import BookieIntent, BookieRecord, Fragment, LedgerRecord, LedgerState, Storage
from quire.wire.bookie import BookieId


class Copy(Enum):
    """See the table."""

    GOOD = auto()
    ABSENT = auto()
    LEAVING = auto()
    DAMAGED = auto()
    LOST = auto()


_STAYS = (Copy.GOOD, Copy.ABSENT)


@dataclass(frozen=True)
class View:
    """The cluster as the coordinator sees it. `known` are identity records, `available` those that are up, by UUID."""

    known: Mapping[str, BookieRecord]
    available: Mapping[str, BookieRecord]
    gone_for_long: Collection[str]
    damaged: Mapping[int, Collection[str]]
    """For each ledger, the bookies (str of BookieId) that reported damage of it."""

    def judge(self, ledger_id: int, bookie: BookieId) -> Copy:
        if bookie.is_wal:
            return Copy.GOOD
        known, available = self.known.get(bookie.uuid), self.available.get(bookie.uuid)
        if known is None and available is None:
            return Copy.LOST
        if any(each is not None and each.incarnation > bookie.incarnation for each in (known, available)):
            return Copy.LOST
        if available is None and (
            self.intent(bookie.uuid) is not BookieIntent.STAY or bookie.uuid in self.gone_for_long
        ):
            return Copy.LOST
        if str(bookie) in self.damaged.get(ledger_id, ()):
            return Copy.DAMAGED
        if self.intent(bookie.uuid) is BookieIntent.DRAIN:
            return Copy.LEAVING
        return Copy.GOOD if available is not None else Copy.ABSENT

    def intent(self, uuid: str) -> BookieIntent:
        """What an operator wants of the bookie, else what it wants itself: one that was told to stop may drain."""
        for record in (self.known.get(uuid), self.available.get(uuid)):
            if record is not None and record.intent is not BookieIntent.STAY:
                return record.intent
        return BookieIntent.STAY

    def takers(self) -> list[BookieRecord]:
        """Bookies that may get copies; one that is up and not known was just retired."""
        return [
            record
            for uuid, record in self.available.items()
            if uuid in self.known and not record.read_only and self.intent(uuid) is not BookieIntent.DRAIN
        ]

    def worries(self) -> set[str]:
        """Bookies that some ledger may have to leave, as far as that can be told without the ledgers."""
        absent = self.known.keys() - self.available.keys()
        return {
            uuid
            for uuid in absent
            if uuid in self.gone_for_long or self.intent(uuid) is not BookieIntent.STAY
        } | self.draining()

    def draining(self) -> set[str]:
        """Bookies that are to be retired when no ledger names them any more."""
        return {uuid for uuid in self.known if self.intent(uuid) is BookieIntent.DRAIN}


class FragmentPlan(NamedTuple):
    """One fragment: copy entries `first_entry` to `last_entry` from `sources` to `targets`; then `bookies` hold it."""

    fragment: int
    first_entry: int
    last_entry: int
    sources: tuple[BookieId, ...]
    targets: tuple[BookieId, ...]
    bookies: tuple[BookieId, ...]


class Plan(NamedTuple):
    """What to do for one ledger. `left`: bookies that it still has to leave afterwards; `is_open`: not closed yet."""

    fragments: tuple[FragmentPlan, ...] = ()
    left: frozenset[str] = frozenset()
    is_open: bool = False
    is_unplaced: bool = False


def plan(
    record: LedgerRecord, view: View, loads: Mapping[BookieId, int], random: Callable[[], float]
) -> Plan:
    """What repair should do about one ledger that is not being deleted."""
    if record.state is not LedgerState.CLOSED:
        named = states.all_bookies(record)
        left = {each.uuid for each in named if view.judge(record.ledger_id, each) not in _STAYS}
        if record.state is LedgerState.IN_RECOVERY:
            left |= view.draining()
        return Plan(left=frozenset(left), is_open=True)
    plans: list[FragmentPlan] = []
    left = set()
    lacks = False
    for index, each in enumerate(record.fragments):
        made, remaining, is_short = _plan_fragment(record, index, each, view, loads, random)
        left |= remaining
        lacks |= is_short
        if made is not None:
            plans.append(made)
    return Plan(tuple(plans), frozenset(left), is_unplaced=lacks)


def good_holders(record: LedgerRecord, view: View) -> dict[int, list[BookieId]]:
    """For each fragment of a closed ledger that has entries, those that have a good copy, as far as one can tell.

    Nothing of a ledger on object storage: there is one copy.
    """
    if record.state is not LedgerState.CLOSED or states.storage(record) is Storage.OBJECTS:
        return {}
    return {
        index: [one for one in states.ensemble(each) if view.judge(record.ledger_id, one) is Copy.GOOD]
        for index, each in enumerate(record.fragments)
        if states.last_entry_of(record, index) >= each.first_entry
    }


def _plan_fragment(
    record: LedgerRecord,
    index: int,
    fragment: Fragment,
    view: View,
    loads: Mapping[BookieId, int],
    random: Callable[[], float],
) -> tuple[FragmentPlan | None, set[str], bool]:
    """The plan, bookies that should go and cannot, and whether bookies are lacking."""
    copies = {bookie: view.judge(record.ledger_id, bookie) for bookie in states.ensemble(fragment)}
    stay = [bookie for bookie, copy in copies.items() if copy in _STAYS]
    go = [bookie for bookie, copy in copies.items() if copy not in _STAYS]
    wanted = record.write_quorum - len(stay)
    targets = _choose(wanted, record, copies, view, loads, random)
    targets += [bookie for bookie in go if _may_be_made_whole(bookie, copies, view)][: wanted - len(targets)]
    remaining = _those_that_must_stay(record, copies, stay, targets, go)
    bookies = _in_their_places(states.ensemble(fragment), [*stay, *targets, *remaining])
    lacks = len(targets) < wanted
    uuids = {bookie.uuid for bookie in remaining}
    if not targets and set(bookies) == set(copies):
        return None, uuids, lacks
    made = FragmentPlan(
        index,
        fragment.first_entry,
        states.last_entry_of(record, index),
        _sources(record.ledger_id, copies),
        tuple(targets),
        bookies,
    )
    return made, uuids, lacks


def _choose(
    wanted: int,
    record: LedgerRecord,
    copies: Mapping[BookieId, Copy],
    view: View,
    loads: Mapping[BookieId, int],
    random: Callable[[], float],
) -> list[BookieId]:
    """Up to `wanted` bookies for new copies; those that left the ledger for damage only when there are no others."""
    if not wanted:
        return []
    damaged_here = {bookie.uuid for bookie, copy in copies.items() if copy is Copy.DAMAGED}
    takers = [taker for taker in view.takers() if taker.uuid not in damaged_here]
    stay = [bookie for bookie, copy in copies.items() if copy in _STAYS]
    reported = view.damaged.get(record.ledger_id, ())
    suspects = {taken for taker in takers if str(taken := placement.bookie_id(taker)) in reported}
    placed = placement.EnsemblePlacement(loads, random)
    chosen = placed.choose(wanted, takers, beside=stay, never=suspects)
    if len(chosen) < wanted and suspects:
        chosen += placed.choose(wanted - len(chosen), takers, beside=[*stay, *chosen])
    return chosen


def _in_their_places(old: Sequence[BookieId], bookies: list[BookieId]) -> tuple[BookieId, ...]:
    """`bookies`, those of `old` where they were, the others in the places that became free."""
    others = [bookie for bookie in bookies if bookie not in old]
    placed = [bookie if bookie in bookies else others.pop(0) if others else None for bookie in old]
    return (*(bookie for bookie in placed if bookie is not None), *others)


def _may_be_made_whole(bookie: BookieId, copies: Mapping[BookieId, Copy], view: View) -> bool:
    return copies[bookie] is Copy.DAMAGED and any(taker.uuid == bookie.uuid for taker in view.takers())


def _those_that_must_stay(
    record: LedgerRecord,
    copies: Mapping[BookieId, Copy],
    stay: list[BookieId],
    targets: list[BookieId],
    go: list[BookieId],
) -> list[BookieId]:
    """Of `go`, those for which there is no replacement and which may not go without one."""
    targeted = {bookie.uuid for bookie in targets}
    unplaced = [bookie for bookie in go if bookie.uuid not in targeted]
    good = sum(copies[bookie] is Copy.GOOD for bookie in stay) + len(targets)
    room = record.write_quorum - len(stay) - len(targets)
    must: list[BookieId] = []
    for bookie in sorted(unplaced, key=lambda each: copies[each] is Copy.LOST):  # the lost ones go first
        if len(must) >= room:
            break
        if copies[bookie] is Copy.LEAVING and good >= record.ack_quorum:
            continue
        must.append(bookie)
    return must


def _sources(ledger_id: int, copies: Mapping[BookieId, Copy]) -> tuple[BookieId, ...]:
    """In the order in which to ask; ledgers begin at different ones, so that reading is spread."""
    order = (Copy.GOOD, Copy.LEAVING, Copy.ABSENT, Copy.DAMAGED, Copy.LOST)
    found: list[BookieId] = []
    for kind in order:
        group = [bookie for bookie, copy in copies.items() if copy is kind]
        start = ledger_id % len(group) if group else 0
        found += group[start:] + group[:start]
    return tuple(found)


class Absences:
    """Since when each bookie has not been up, by a monotonic clock in seconds."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._since: dict[str, float] = {}

    def look(self, known: Iterable[str], available: Collection[str], now: float) -> None:
        self._since = {uuid: self._since.get(uuid, now) for uuid in known if uuid not in available}

    def absent(self) -> set[str]:
        return set(self._since)

    def gone_for_long(self, now: float) -> set[str]:
        return {uuid for uuid, since in self._since.items() if now - since >= self._delay_s}

    def forget(self) -> None:
        """Nobody looked for a while: begin anew."""
        self._since.clear()


class Pace:
    """So many bytes a second, over all copies together. A second's worth may be saved up."""

    def __init__(self, bytes_per_s: int) -> None:
        assert bytes_per_s > 0
        self._bytes_per_s = bytes_per_s
        self._paid_until = float("-inf")

    def take(self, size_bytes: int, now: float) -> float:
        """Seconds to wait before `size_bytes` more are moved."""
        begin = max(self._paid_until, now - 1.0)
        self._paid_until = begin + size_bytes / self._bytes_per_s
        return max(0.0, self._paid_until - now)
