"""Which ledgers there are, and what their records say: facts in, records out. No I/O.

A record is told by the ledger's label on each bookie that has blocks of it, and by the copy of the metadata. The one
with the greatest version holds: a label is told only after the metadata store had the record, and before the first
block to a changed ensemble. So if fewer bookies than the ack quorum are missing, somebody is here who knows of each
fragment that a confirmed block is in. Are more missing, there may be ledgers, or later fragments, that nobody here
knows: the plan is *blind*, and says so.

A tombstone on one bookie is the end of the ledger everywhere (rule 20). What a bookie has without a label, and the
copy does not know, is *nameless*: whose it is cannot be told, which is said, too.

A write-ahead log on object storage is a bookie here, that is never missing: what is not in the bucket is gone. A ledger
that a record tells of, and of which no log has a block, has *vanished*: it never had one, its tombstone went with its
last one, or it is lost; nobody can tell which.
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
    """What one bookie, or one write-ahead log, tells: the ledgers that it has blocks or fences of, those with a
    tombstone, and its labels."""

    bookie: BookieId
    ledgers: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    labels: dict[int, Told] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """Labels that could not be read, in words."""
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of a log: the first and the last entry that it has of each ledger."""
    is_whole: bool = True
    """Not so of a log that is damaged: it may have more than it tells."""


@dataclass
class LedgerPlan:
    """`ledgers` by id, with their nodes' versions; `missing` by UUID are bookies that are not here."""

    ledgers: dict[int, Told] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    nameless: dict[int, str] = field(default_factory=dict)
    """And where they lie, of those in logs."""
    vanished: set[int] = field(default_factory=set)
    missing: dict[str, BookieId] = field(default_factory=dict)
    forgetful: set[str] = field(default_factory=set)
    """UUIDs of bookies that are here as a later incarnation than a ledger names: they may have lost what they had."""
    blind: bool = False
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
        if told.record.state is LedgerState.DELETING:
            plan.deleted.add(ledger_id)
        if ledger_id in plan.deleted:
            continue
        if states.storage(told.record) is Storage.OBJECTS:
            told = Told(_on_logs(told.record, bookies), told.version)
            if _has_vanished(told.record, bookies):
                plan.vanished.add(ledger_id)
                continue
        plan.ledgers[ledger_id] = told
    plan.nameless = {each: _where(each, bookies) for each in sorted(held - best.keys() - plan.deleted)}
    _look_who_is_missing(plan, bookies, known)
    plan.greatest_id = max(held | plan.deleted | best.keys(), default=0)
    return plan


def _on_logs(record: LedgerRecord, nodes: Iterable[BookieFacts]) -> LedgerRecord:
    """With the ensemble changes that nobody tells of: a writer goes on in another log from its first block there."""
    spans = sorted(
        (each.spans[record.ledger_id][0], each.bookie) for each in nodes if record.ledger_id in each.spans
    )
    for first, log in spans:
        is_later = log not in states.holders(record) and first >= record.fragments[-1].first_entry
        if is_later and record.state is LedgerState.OPEN:
            fragments = states.with_fragment(record.fragments, states.fragment(first, [log]))
            record = states.changed(record, fragments)
    return record


def _has_vanished(record: LedgerRecord, nodes: Iterable[BookieFacts]) -> bool:
    holders = states.holders(record)
    return all(
        each.is_whole and record.ledger_id not in each.ledgers for each in nodes if each.bookie in holders
    )


def _where(ledger_id: int, nodes: Iterable[BookieFacts]) -> str:
    found = [(each.bookie.uuid, *each.spans[ledger_id]) for each in nodes if ledger_id in each.spans]
    return ", ".join(f"entries {first} to {last} in {log}" for log, first, last in found)


def _look_who_is_missing(plan: LedgerPlan, bookies: Sequence[BookieFacts], known: Iterable[BookieId]) -> None:
    here = {bookie.bookie.uuid: bookie.bookie.incarnation for bookie in bookies}
    on_bookies = [
        told.record for told in plan.ledgers.values() if states.storage(told.record) is Storage.BOOKIES
    ]
    named = [bookie for record in on_bookies for bookie in states.all_bookies(record)]
    for bookie in (*known, *named):
        if bookie.uuid not in here:
            before = plan.missing.get(bookie.uuid)
            if before is None or before.incarnation < bookie.incarnation:
                plan.missing[bookie.uuid] = bookie
        elif bookie.incarnation < here[bookie.uuid]:
            plan.forgetful.add(bookie.uuid)
    quorums = {record.ack_quorum for record in on_bookies}
    plan.blind = len(plan.missing) + len(plan.forgetful) >= min(quorums, default=ACK_QUORUM)
