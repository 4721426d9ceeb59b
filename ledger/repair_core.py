"""Decisions of repair, without their execution: which copies are lost, and which bookies get new ones.

    a copy is     if its bookie                                                       then the copy
    GOOD          is running, in the incarnation that the ledger names; or is a WAL   stays, and is a source
                  on object storage, whose copies the object store manages
    ABSENT        is not running, for less than the delay                             stays: it may come back
    LEAVING       is draining                                                         is replaced, and is a source
    DAMAGED       reported that it lacks or has damaged blocks                        is replaced; last source
    LOST          is not running for longer than the delay, was given up or retired,  is replaced; last source
                  or runs as another incarnation, which may have lost blocks

Only closed ledgers are repaired, because no writer changes their record, and their last entry is known. The writer of
an open ledger changes the ensemble itself, and a dead writer's ledger is recovered by its topic's next owner. A
recovery records the bookies to which it wrote blocks only when it closes the ledger; until then, any draining bookie
may be one of them.

A fragment's new ensemble consists of the copies that stay and of new targets, up to the write quorum; this also widens
narrow fragments. If no other bookie can take a copy, a DAMAGED copy is completed in place: its bookie stores the
missing blocks, and rewrites damaged ones if its disk allows it. A copy that cannot be replaced stays in the record,
because a lost bookie may come back. Only a LEAVING copy is removed without a replacement, if an ack quorum of good
copies remains, whose holes are filled first (`repair_copy`).

The coordinator measures absences by its own monotonic clock, from its first observation. A new coordinator starts again
from zero, which only delays repair.
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
    """State of a copy; see the table of this module."""

    GOOD = auto()
    ABSENT = auto()
    LEAVING = auto()
    DAMAGED = auto()
    LOST = auto()


_STAYS = (Copy.GOOD, Copy.ABSENT)


@dataclass(frozen=True)
class View:
    """Coordinator's view of the cluster.

    `known` and `available` are the identity records of all bookies and of the running ones, by UUID.
    """

    known: Mapping[str, BookieRecord]
    available: Mapping[str, BookieRecord]
    absent_too_long: Collection[str]
    damaged: Mapping[int, Collection[str]]
    """Bookies (str of BookieId) that reported damage, by ledger."""

    def judge(self, ledger_id: int, bookie: BookieId) -> Copy:
        if bookie.is_wal:
            return Copy.GOOD
        known, available = self.known.get(bookie.uuid), self.available.get(bookie.uuid)
        if known is None and available is None:
            return Copy.LOST
        if any(each is not None and each.incarnation > bookie.incarnation for each in (known, available)):
            return Copy.LOST
        if available is None and (
            self.intent(bookie.uuid) is not BookieIntent.STAY or bookie.uuid in self.absent_too_long
        ):
            return Copy.LOST
        if str(bookie) in self.damaged.get(ledger_id, ()):
            return Copy.DAMAGED
        if self.intent(bookie.uuid) is BookieIntent.DRAIN:
            return Copy.LEAVING
        return Copy.GOOD if available is not None else Copy.ABSENT

    def intent(self, uuid: str) -> BookieIntent:
        """Return the operator's order for the bookie.

        Without one, the bookie's own intent, such as draining at shutdown.
        """
        for record in (self.known.get(uuid), self.available.get(uuid)):
            if record is not None and record.intent is not BookieIntent.STAY:
                return record.intent
        return BookieIntent.STAY

    def takers(self) -> list[BookieRecord]:
        """Return the bookies that may get copies.

        A running bookie without an identity record was just retired, and gets none.
        """
        return [
            record
            for uuid, record in self.available.items()
            if uuid in self.known and not record.read_only and self.intent(uuid) is not BookieIntent.DRAIN
        ]

    def bookies_to_leave(self) -> set[str]:
        """Return the UUIDs of bookies that ledgers may have to leave: lost, given-up and draining ones."""
        absent = self.known.keys() - self.available.keys()
        return {
            uuid
            for uuid in absent
            if uuid in self.absent_too_long or self.intent(uuid) is not BookieIntent.STAY
        } | self.draining()

    def draining(self) -> set[str]:
        """Return the UUIDs of draining bookies, which are retired when no ledger names them any more."""
        return {uuid for uuid in self.known if self.intent(uuid) is BookieIntent.DRAIN}


class FragmentPlan(NamedTuple):
    """Plan for one fragment: copy its entries from `sources` to `targets`; then change its ensemble to `bookies`."""

    fragment: int
    first_entry: int
    last_entry: int
    sources: tuple[BookieId, ...]
    targets: tuple[BookieId, ...]
    bookies: tuple[BookieId, ...]


class Plan(NamedTuple):
    """Plan for one ledger. After its execution, the ledger still has to leave the bookies `left` (UUIDs).

    `is_open`: the ledger is not closed. `is_unplaced`: too few bookies can take copies.
    """

    fragments: tuple[FragmentPlan, ...] = ()
    left: frozenset[str] = frozenset()
    is_open: bool = False
    is_unplaced: bool = False


def plan(
    record: LedgerRecord, view: View, loads: Mapping[BookieId, int], random: Callable[[], float]
) -> Plan:
    """Return the plan for one ledger that is not being deleted."""
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
    """Return the bookies with a good copy, by the index of each non-empty fragment of a closed ledger.

    The result is empty for a ledger on object storage, which has one copy.
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
    """Return the plan, the bookies that cannot be removed yet (UUIDs), and whether too few bookies can take copies."""
    copies = {bookie: view.judge(record.ledger_id, bookie) for bookie in states.ensemble(fragment)}
    stay = [bookie for bookie, copy in copies.items() if copy in _STAYS]
    go = [bookie for bookie, copy in copies.items() if copy not in _STAYS]
    wanted = record.write_quorum - len(stay)
    targets = _choose(wanted, record, copies, view, loads, random)
    targets += [bookie for bookie in go if _may_be_made_whole(bookie, copies, view)][: wanted - len(targets)]
    remaining = _must_stay(record, copies, stay, targets, go)
    bookies = _keep_places(states.ensemble(fragment), [*stay, *targets, *remaining])
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
    """Choose up to `wanted` bookies for new copies.

    A bookie that reported damage of this ledger is chosen only if too few others are available.
    """
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


def _keep_places(old: Sequence[BookieId], bookies: list[BookieId]) -> tuple[BookieId, ...]:
    """Sort `bookies`, so that each bookie of `old` keeps its index, and new ones get the indexes of removed ones."""
    others = [bookie for bookie in bookies if bookie not in old]
    placed = [bookie if bookie in bookies else others.pop(0) if others else None for bookie in old]
    return (*(bookie for bookie in placed if bookie is not None), *others)


def _may_be_made_whole(bookie: BookieId, copies: Mapping[BookieId, Copy], view: View) -> bool:
    return copies[bookie] is Copy.DAMAGED and any(taker.uuid == bookie.uuid for taker in view.takers())


def _must_stay(
    record: LedgerRecord,
    copies: Mapping[BookieId, Copy],
    stay: list[BookieId],
    targets: list[BookieId],
    go: list[BookieId],
) -> list[BookieId]:
    """Return the bookies of `go` that must stay, because they have no replacement."""
    targeted = {bookie.uuid for bookie in targets}
    unplaced = [bookie for bookie in go if bookie.uuid not in targeted]
    good = sum(copies[bookie] is Copy.GOOD for bookie in stay) + len(targets)
    room = record.write_quorum - len(stay) - len(targets)
    must: list[BookieId] = []
    for bookie in sorted(unplaced, key=lambda each: copies[each] is Copy.LOST):  # lost ones are removed first
        if len(must) >= room:
            break
        if copies[bookie] is Copy.LEAVING and good >= record.ack_quorum:
            continue
        must.append(bookie)
    return must


def _sources(ledger_id: int, copies: Mapping[BookieId, Copy]) -> tuple[BookieId, ...]:
    """Return the order in which to read from copies; it differs by ledger, so that reads are spread over bookies."""
    order = (Copy.GOOD, Copy.LEAVING, Copy.ABSENT, Copy.DAMAGED, Copy.LOST)
    found: list[BookieId] = []
    for kind in order:
        group = [bookie for bookie, copy in copies.items() if copy is kind]
        start = ledger_id % len(group) if group else 0
        found += group[start:] + group[:start]
    return tuple(found)


class Absences:
    """Time (monotonic, s) of the first observation that a bookie is not running, for each absent bookie."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._since: dict[str, float] = {}

    def update(self, known: Iterable[str], available: Collection[str], now: float) -> None:
        self._since = {uuid: self._since.get(uuid, now) for uuid in known if uuid not in available}

    def absent(self) -> set[str]:
        return set(self._since)

    def absent_too_long(self, now: float) -> set[str]:
        return {uuid for uuid, since in self._since.items() if now - since >= self._delay_s}

    def reset(self) -> None:
        """Forget all absences, because they were not observed for a while."""
        self._since.clear()
