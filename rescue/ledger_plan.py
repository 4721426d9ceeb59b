"""Which ledgers there are, and what their records say: facts in, records out. No I/O.

A record is told by the ledger's label on each bookie that has blocks of it, and by the copy of the metadata. The one
with the greatest version holds: a label is told only after the metadata store had the record, and before the first
block to a changed ensemble. So if fewer bookies than the ack quorum are missing, somebody is here who knows of each
fragment that a confirmed block is in. Are more missing, there may be ledgers, or later fragments, that nobody here
knows: the plan is *blind*, and says so.

A tombstone on one bookie is the end of the ledger everywhere (rule 20). What a bookie has without a label, and the
copy does not know, is *nameless*: whose it is cannot be told, which is said, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.ledger import states
from quire.metadata.records import LedgerRecord, LedgerState, Storage
from quire.wire.bookie import BookieId

ACK_QUORUM = 2
"""Where no ledger tells one: the default of settings."""


class Told(NamedTuple):
    """A ledger's record as somebody knows it, and the version of its node."""

    record: LedgerRecord
    version: int


@dataclass
class BookieFacts:
    """What one bookie tells: the ledgers that it has blocks or fences of, those with a tombstone, and its labels."""

    bookie: BookieId
    ledgers: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    labels: dict[int, Told] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """Labels that could not be read, in words."""


@dataclass
class LedgerPlan:
    """`ledgers` by id, with their nodes' versions; `missing` by UUID are bookies that are not here."""

    ledgers: dict[int, Told] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    nameless: list[int] = field(default_factory=list)
    missing: dict[str, BookieId] = field(default_factory=dict)
    forgetful: set[str] = field(default_factory=set)
    """UUIDs of bookies that are here as a later incarnation than a ledger names: they may have lost what they had."""
    blind: bool = False
    on_objects: list[int] = field(default_factory=list)
    """Ledgers in write-ahead logs on object storage, of which nothing is rebuilt."""
    greatest_id: int = 0

    @property
    def open(self) -> list[int]:
        """Those that must be recovered."""
        return sorted(
            each for each, told in self.ledgers.items() if told.record.state is not LedgerState.CLOSED
        )


def plan_ledgers(
    bookies: Sequence[BookieFacts], copied: Mapping[int, Told], known: Iterable[BookieId]
) -> LedgerPlan:
    """`copied` are the ledgers of the metadata's copy, `known` the bookies that it names."""
    plan = LedgerPlan(deleted={each for bookie in bookies for each in bookie.deleted})
    best = dict(copied)
    for bookie in bookies:
        for ledger_id, told in bookie.labels.items():
            if ledger_id not in best or told.version > best[ledger_id].version:
                best[ledger_id] = told
    held = {each for bookie in bookies for each in bookie.ledgers}
    for ledger_id, told in best.items():
        if ledger_id in plan.deleted or told.record.state is LedgerState.DELETING:
            continue
        if states.storage(told.record) is Storage.OBJECTS:
            plan.on_objects.append(ledger_id)
        else:
            plan.ledgers[ledger_id] = told
    plan.nameless = sorted(held - best.keys() - plan.deleted)
    _look_who_is_missing(plan, bookies, known)
    plan.greatest_id = max(held | plan.deleted | best.keys(), default=0)
    return plan


def _look_who_is_missing(plan: LedgerPlan, bookies: Sequence[BookieFacts], known: Iterable[BookieId]) -> None:
    here = {bookie.bookie.uuid: bookie.bookie.incarnation for bookie in bookies}
    named = [bookie for told in plan.ledgers.values() for bookie in states.all_bookies(told.record)]
    for bookie in (*known, *named):
        if bookie.uuid not in here:
            before = plan.missing.get(bookie.uuid)
            if before is None or before.incarnation < bookie.incarnation:
                plan.missing[bookie.uuid] = bookie
        elif bookie.incarnation < here[bookie.uuid]:
            plan.forgetful.add(bookie.uuid)
    quorums = {told.record.ack_quorum for told in plan.ledgers.values()}
    plan.blind = len(plan.missing) + len(plan.forgetful) >= min(quorums, default=ACK_QUORUM)
