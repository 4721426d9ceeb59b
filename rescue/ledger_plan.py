"""Plan of the ledgers and their records, from facts. Performs no I/O.

A ledger's record is in its label on each bookie that has blocks of the ledger, and in the copy of the metadata. The
record with the greatest version is used: a label is written after its record is in the metadata store, and before the
first block to a changed ensemble. So if fewer bookies than the ack quorum are missing, a running bookie has the label
of each fragment with a confirmed block. If more are missing, there may be unknown ledgers or later fragments; then the
plan is *blind*.

A tombstone on one bookie means that the ledger was deleted everywhere (rule 20). A ledger that a bookie has without a
label, and that is not in the copy either, is *nameless*: its topic is unknown, and it is reported.

A write-ahead log on object storage counts as a bookie that is never missing: an object that is not in the bucket does
not exist. A ledger with a record, but without blocks in any log, has *vanished*: it never had blocks, its tombstone was
deleted with its last block, or it is lost. These cases cannot be distinguished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.ledger import states
from quire.metadata.records import LedgerRecord, LedgerState, Storage
from quire.wire.bookie import BookieId

ACK_QUORUM = 2
"""Ack quorum that is assumed if no ledger is found: the default in the settings."""


class Told(NamedTuple):
    """Record of a ledger from one source, and the version of its node."""

    record: LedgerRecord
    version: int


@dataclass
class BookieFacts:
    """Facts from one bookie or write-ahead log: ledgers with blocks, ledgers with tombstones, and labels."""

    bookie: BookieId
    ledgers: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    labels: dict[int, Told] = field(default_factory=dict)
    empty: set[int] = field(default_factory=set)
    """Ledgers with a fence only: a recovery found no entry, so there is no label, and no data to restore."""
    unreadable: list[str] = field(default_factory=list)
    """Errors of labels that could not be read, as sentences."""
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """First and last entry of each ledger in a log; empty for a bookie."""
    is_whole: bool = True
    """False for a damaged log, which may contain more ledgers."""


@dataclass
class LedgerPlan:
    """Plan of all ledgers: `ledgers` has the records by ledger id, with versions; `missing` has bookies by UUID."""

    ledgers: dict[int, Told] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    nameless: dict[int, str] = field(default_factory=dict)
    """Ids of nameless ledgers, with their positions if they are in logs."""
    vanished: set[int] = field(default_factory=set)
    missing: dict[str, BookieId] = field(default_factory=dict)
    forgetful: set[str] = field(default_factory=set)
    """UUIDs of bookies that run as a later incarnation than in a ledger's record, so they may have lost their data."""
    blind: bool = False
    greatest_id: int = 0
    copied: set[int] = field(default_factory=set)
    """Ids of all ledgers in the copy of the metadata."""

    @property
    def open(self) -> list[int]:
        """Ids of ledgers that must be recovered."""
        return sorted(
            each for each, told in self.ledgers.items() if told.record.state is not LedgerState.CLOSED
        )


def plan_ledgers(
    bookies: Sequence[BookieFacts], copied: Mapping[int, Told], known: Iterable[BookieId]
) -> LedgerPlan:
    """Return the plan. `copied` are the ledgers, and `known` the bookies, in the copy of the metadata."""
    plan = LedgerPlan(deleted={each for bookie in bookies for each in bookie.deleted}, copied=set(copied))
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
    empty = {each for bookie in bookies for each in bookie.empty}
    plan.greatest_id = max(held | empty | plan.deleted | best.keys(), default=0)
    return plan


def _on_logs(record: LedgerRecord, nodes: Iterable[BookieFacts]) -> LedgerRecord:
    """Add ensemble changes that no label contains: a fragment for each log in which the writer continued.

    The fragment begins with the ledger's first block in that log.
    """
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
