"""Oracle: invariants of bookies and ledgers, which are checked all the time by observing only the simulated parts.

For each bookie (by UUID), from its responses:
    kept        a bookie never denies a block that it acknowledged: after any restart it returns the block or an error
    same bytes  all copies of a block have the same bytes at all times
    fence       after a bookie confirmed a fence, it refuses the writer's later blocks
    refused     a bookie does not have a refused block after a restart
    tombstone   after a bookie confirmed a deletion, it never has the ledger again
    lac         a bookie does not forget an explicit LAC that it confirmed
    identity    a bookie's incarnation changes only if data may have been lost
    healthy     a bookie without disk faults neither denies an acknowledged block nor reports it as damaged
    retired     a bookie empties its directories by itself only if no ledger's record names it

For each ledger, from its metadata record and from its writer, readers and recoveries:
    states      a record changes only by the table in `ledger/states`, and the end of a closed ledger never changes
    quorum      a confirmed block was acknowledged by Qa bookies of its fragment in the metadata
    fragment    the new fragment of an ensemble change begins right after the last confirmed entry
    end         no confirmed entry is after a closed ledger's end
    recovered   when a recovery closes a ledger, Qa bookies of the record have acknowledged each block of its last
                fragment
    readers     readers get only confirmed entries, with the bytes that were written
    given       a topic's consumers get only entries that are confirmed at that moment
    given up    no bookie of the ledger, even an unreachable one, has an entry of a hole; a ledger ends before a
                confirmed entry only if the next entry is lost; both need an operator's acceptance
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from quire.bookie.storage import Storage
from quire.ledger import holes, states
from quire.metadata import paths
from quire.metadata.records import LedgerRecord, LedgerState, decode
from quire.wire.block import BlockHeader, Buffer, peek
from quire.wire.bookie import (
    AddRequest,
    BookieId,
    DeleteRequest,
    ReadRequest,
    ReadResponse,
    SimpleResponse,
    Status,
    WriteLacRequest,
)

from .metadata import MetadataServer
from .world import World

MAY_FOLLOW: Final = {
    LedgerState.OPEN: {LedgerState.OPEN, LedgerState.CLOSED, LedgerState.IN_RECOVERY, LedgerState.DELETING},
    LedgerState.IN_RECOVERY: {LedgerState.CLOSED, LedgerState.DELETING},
    LedgerState.CLOSED: {LedgerState.CLOSED, LedgerState.DELETING},
    LedgerState.DELETING: set(),
}

REFUSALS: Final = frozenset({Status.FENCED, Status.DELETED, Status.READ_ONLY, Status.WRONG_BOOKIE})
"""Responses to an add request that mean that the bookie did not store the block."""


@dataclass
class Promises:
    """Promises of one bookie, from its responses."""

    incarnation: int
    blocks: dict[int, dict[int, int]] = field(default_factory=dict)
    """Acknowledged blocks by ledger, as first entry -> last entry."""
    lost: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    """Blocks acknowledged by a former incarnation, which lost the whole ledger, by (ledger, incarnation)."""
    fences: set[int] = field(default_factory=set)
    tombstones: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    """Ledgers of which the bookie stored a writer's block, not only blocks of a recovery or repair."""
    dying: set[int] = field(default_factory=set)
    """Ledgers whose deletion was requested."""
    offered: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Numbers of add requests that were not refused, by (ledger, first entry)."""
    refused: set[tuple[int, int]] = field(default_factory=set)
    """Blocks, as (ledger, first entry), whose add requests were all refused."""
    lacs: dict[int, int] = field(default_factory=dict)
    may_have_lost: bool = False
    disk_failed: bool = False
    """True if an operation of the bookie's disks failed, or returned other bytes than were written."""

    def offers(self, ledger_id: int, first: int) -> None:
        self.offered[ledger_id, first] += 1
        self.refused.discard((ledger_id, first))

    def refuses(self, ledger_id: int, first: int) -> None:
        self.offered[ledger_id, first] -= 1
        if self.offered[ledger_id, first] == 0:
            self.refused.add((ledger_id, first))

    def begins_anew(self, incarnation: int, kept: Collection[int]) -> None:
        """Begin a new incarnation, which may lack the blocks and fences of ledgers that are not `kept`.

        A recovery is told that the state of such a ledger is unknown (rule 12), and a writer that names the former
        incarnation is refused (rule 18).
        """
        for ledger_id in self.blocks.keys() - kept:
            self.lost[ledger_id, self.incarnation] = self.blocks.pop(ledger_id)
        self.fences.intersection_update(kept)
        self.incarnation = incarnation

    def holds(self, ledger_id: int, entry: int) -> bool:
        return _covers(self.blocks.get(ledger_id), entry)

    def acknowledged(self, bookie: BookieId, ledger_id: int, entry: int) -> bool:
        """Return whether an incarnation from `bookie.incarnation` on has acknowledged an entry.

        This includes entries that the bookie's disks have lost later, which repair must restore.
        """
        return self.holds(ledger_id, entry) or any(
            _covers(self.lost.get((ledger_id, incarnation)), entry)
            for incarnation in range(bookie.incarnation, self.incarnation)
        )


class Oracle:
    may_follow = MAY_FOLLOW

    def __init__(self, world: World, metadata: MetadataServer) -> None:
        self.world = world
        self.metadata = metadata
        self.promises: dict[str, Promises] = {}
        self.hosts: dict[str, str] = {}
        """UUIDs of the current bookies, by host."""
        self.damaged_hosts: set[str] = set()
        self.failed_hosts: set[str] = set()
        self.blocks: dict[int, dict[int, bytes]] = {}
        """Blocks that writers created, by ledger and first entry."""
        self.confirmed: dict[int, int] = {}
        self.records: dict[int, LedgerRecord] = {}
        self.ends: dict[int, int] = {}
        self.deleted: set[int] = set()
        self.accepted: set[int] = set()
        """Ledgers whose loss an operator accepts.

        No disk is damaged in such a history, so a bookie with its disks has every block that it acknowledged.
        """
        self.learns = False
        """True if writers do not report their blocks, so that the first copy sent to a bookie counts as the block."""
        self.former: dict[int, list[dict[int, bytes]]] = {}
        """Blocks of ledgers that a restored metadata store does not know, by id. These ids may be used again."""
        metadata.observers.append(self._metadata_changed)

    # -- bookies ---------------------------------------------------------------------------------------
    def started(self, host: str, storage: Storage) -> None:
        """Check that a bookie that has started keeps its promises."""
        bookie = storage.bookie_id
        self.hosts[host] = bookie.uuid
        known = self.promises.get(bookie.uuid)
        if known is None:
            has_failed = host in self.failed_hosts  # before the first start of the bookie
            self.promises[bookie.uuid] = Promises(bookie.incarnation, disk_failed=has_failed)
            return
        known.may_have_lost |= host in self.damaged_hosts
        known.disk_failed |= host in self.failed_hosts
        if bookie.incarnation != known.incarnation:
            self.world.saw("incarnation raised")
            self.world.check(
                known.may_have_lost, "identity", f"{bookie} was {known.incarnation} and lost nothing"
            )
            known.begins_anew(bookie.incarnation, storage.cache.ledgers)
        kept = storage.cache.ledgers
        for ledger_id in known.fences - known.tombstones:
            state = kept.get(ledger_id)
            fenced = state is not None and state.is_fenced
            self.world.check(fenced, "fence", f"{bookie} forgot the fence of ledger {ledger_id}")
        for ledger_id in known.tombstones:
            state = kept.get(ledger_id)
            buried = state is not None and state.tombstone_version is not None
            self.world.check(  # a tombstone may rot in the journal; the ledger has no record then, and is not read
                buried or known.may_have_lost,
                "tombstone",
                f"{bookie} forgot that ledger {ledger_id} was deleted",
            )
        for ledger_id, lac in known.lacs.items():
            state = kept.get(ledger_id)
            told = state is not None and (state.lac >= lac or state.tombstone_version is not None)
            self.world.check(told or known.may_have_lost, "lac", f"{bookie}, ledger {ledger_id}: {lac}")
        self._check_blocks(bookie, storage, known)

    def _check_blocks(self, bookie: BookieId, storage: Storage, known: Promises) -> None:
        """Check that each acknowledged block is in memory or in the index, unless its ledger is in limbo."""
        for ledger_id, blocks in known.blocks.items():
            state = storage.cache.ledgers.get(ledger_id)
            is_limbo = state is not None and state.is_limbo
            self.world.check(
                not is_limbo or known.disk_failed, "healthy", f"{bookie} has ledger {ledger_id} in limbo"
            )
            if ledger_id in known.dying or is_limbo:
                continue
            for first in blocks:
                self.world.check(
                    _is_there(storage, ledger_id, first),
                    "kept",
                    f"{bookie} lost block {first} of ledger {ledger_id} that it acknowledged",
                )
        for ledger_id, first in known.refused:
            self.world.check(
                not _is_there(storage, ledger_id, first),
                "refused",
                f"{bookie} has block {first} of ledger {ledger_id}, which it refused",
            )

    def wiped(self, host: str) -> None:
        self.hosts.pop(host, None)
        self.damaged_hosts.discard(host)
        self.failed_hosts.discard(host)

    def retired(self, host: str) -> None:
        """Check that no ledger needs a bookie that has emptied its directories by itself."""
        uuid = self.hosts[host]
        self.world.saw("directories emptied after a drain")
        needed = [
            record.ledger_id
            for record in self.records.values()
            if record.state is not LedgerState.DELETING
            and any(bookie.uuid == uuid for bookie in states.all_bookies(record))
        ]
        self.world.check(not needed, "retired", f"bookie {uuid} emptied itself, ledgers {needed} name it")
        self.wiped(host)

    def damaged(self, host: str) -> None:
        """Record that bits of a bookie's disks were flipped."""
        self.damaged_hosts.add(host)
        uuid = self.hosts.get(host)
        if uuid in self.promises:
            self.promises[uuid].may_have_lost = True
        self.disk_failed(host)

    def disk_failed(self, host: str) -> None:
        """Record that an operation of a bookie's disks may fail."""
        self.failed_hosts.add(host)
        uuid = self.hosts.get(host)
        if uuid in self.promises:
            self.promises[uuid].disk_failed = True

    def add_arrives(self, bookie: BookieId, request: AddRequest) -> Callable[[Sequence[Status]], None]:
        known = self.promises[bookie.uuid]
        headers = [peek(block) for block in request.blocks]
        for header, block in zip(headers, request.blocks, strict=True):
            self._check_bytes(header.ledger_id, header.first_entry, block, "an add")
            known.offers(header.ledger_id, header.first_entry)
        fenced = [
            header.ledger_id in known.tombstones
            or (header.ledger_id in known.fences and not request.recovery)
            for header in headers
        ]

        def judge(statuses: Sequence[Status]) -> None:
            for header, was_fenced, status in zip(headers, fenced, statuses, strict=True):
                ledger_id, first = header.ledger_id, header.first_entry
                if status is Status.OK:
                    self.world.check(
                        not was_fenced,
                        "fence",
                        f"{bookie} took block {first} of ledger {ledger_id} behind its fence",
                    )
                    known.blocks.setdefault(ledger_id, {})[first] = header.last_entry
                    if not request.recovery:
                        known.written.add(ledger_id)
                else:
                    self.world.saw(f"add {status.name}")
                    if status in REFUSALS:
                        known.refuses(ledger_id, first)
            self.world.note(
                f"{bookie.uuid[:4]} add{' (recovery)' * request.recovery} "
                + ", ".join(
                    f"{h.ledger_id}/{h.first_entry} {s.name}" for h, s in zip(headers, statuses, strict=True)
                )
            )

        return judge

    def damage_met(self, bookie: BookieId, ledger_id: int, entry: int, what: str) -> None:
        """Check a running bookie's report that it cannot read an entry."""
        known = self.promises[bookie.uuid]
        self.world.check(
            known.disk_failed or not known.holds(ledger_id, entry),
            "healthy",
            f"{bookie} cannot read entry {entry} of ledger {ledger_id}: {what}",
        )

    def read_arrives(self, bookie: BookieId, request: ReadRequest) -> Callable[[ReadResponse], None]:
        known = self.promises[bookie.uuid]
        held = known.holds(request.ledger_id, request.first_entry)
        buried = request.ledger_id in known.tombstones

        def judge(response: ReadResponse) -> None:
            status, where = response.status, f"entry {request.first_entry} of ledger {request.ledger_id}"
            self.world.note(
                f"{bookie.uuid[:4]} read{' and fence' * request.fence} {request.ledger_id}/{request.first_entry} "
                f"{status.name}"
            )
            if status is Status.OK:
                for block in response.blocks:
                    header = peek(block)
                    self._check_bytes(header.ledger_id, header.first_entry, block, f"a read from {bookie}")
            else:
                self.world.saw(f"read {status.name}")
            if status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER):
                self.world.check(not held, "kept", f"{bookie} denies {where}, which it acknowledged")
            if held and status is Status.LIMBO:
                self.world.check(known.disk_failed, "healthy", f"{bookie} is in limbo about {where}")
            if buried:
                self.world.check(status is not Status.OK, "tombstone", f"{bookie} still gives {where}")
            if request.fence and status in (Status.OK, Status.NO_SUCH_ENTRY, Status.LIMBO):
                known.fences.add(request.ledger_id)
                self.world.saw("fence laid")

        return judge

    def lac_answered(self, bookie: BookieId, request: WriteLacRequest, response: SimpleResponse) -> None:
        if response.status is Status.OK:
            lacs = self.promises[bookie.uuid].lacs
            lacs[request.ledger_id] = max(lacs.get(request.ledger_id, -1), request.lac)

    def delete_arrives(self, bookie: BookieId, request: DeleteRequest) -> None:
        self.promises[bookie.uuid].dying.add(request.ledger_id)

    def delete_answered(self, bookie: BookieId, request: DeleteRequest, response: SimpleResponse) -> None:
        known = self.promises[bookie.uuid]
        if response.status is Status.OK:
            known.tombstones.add(request.ledger_id)

    def _check_bytes(self, ledger_id: int, first: int, block: Buffer, where: str) -> None:
        written = self.blocks.get(ledger_id)
        if self.learns:
            written = self.blocks.setdefault(ledger_id, {})
            written.setdefault(first, bytes(block))
        if written is not None:
            same = first in written and written[first] == block
            self.world.check(
                same, "same bytes", f"block {first} of ledger {ledger_id} in {where} is another one"
            )

    # -- ledgers ---------------------------------------------------------------------------------------
    def wrote(self, ledger_id: int, first: int, block: bytes) -> None:
        """Record a block that a ledger's writer created."""
        written = self.blocks.setdefault(ledger_id, {})
        self.world.check(
            first not in written, "same bytes", f"block {first} of ledger {ledger_id} was cut twice"
        )
        written[first] = block

    def heard_confirmed(self, ledger_id: int, last_entry: int) -> None:
        """Record and check a confirmation that a writer reported to its listener."""
        before = self.confirmed.get(ledger_id, -1)
        self.confirmed[ledger_id] = last_entry
        end = self.ends.get(ledger_id)
        if (
            end is not None and ledger_id not in self.accepted
        ):  # a delayed ack may confirm entries after the ledger was closed
            self.world.check(
                last_entry <= end, "end", f"ledger {ledger_id} ended with {end} and {last_entry} is confirmed"
            )
        record = self.records.get(ledger_id)
        if record is None or record.state not in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
            return
        for first in self.blocks.get(ledger_id, ()):
            if before < first <= last_entry:
                self._check_quorum(record, first)

    def _check_quorum(self, record: LedgerRecord, entry: int, rule: str = "quorum") -> None:
        bookies = states.ensemble(record.fragments[states.fragment_index(record, entry)])
        copies = [
            bookie.uuid
            for bookie in bookies
            if self.promises[bookie.uuid].acknowledged(bookie, record.ledger_id, entry)
        ]
        self.world.check(
            len(copies) >= record.ack_quorum,
            rule,
            lambda: f"entry {entry} of ledger {record.ledger_id} is {record.state} on {copies} of {bookies}",
        )

    def given(self, ledger_id: int, entry: int, whom: str) -> None:
        """Check that a message that a topic's consumer or reader got is confirmed."""
        known = max(self.confirmed.get(ledger_id, -1), self.ends.get(ledger_id, -1))
        self.world.check(
            entry <= known, "given", lambda: f"{whom} is given {ledger_id}:{entry}, and confirmed is {known}"
        )

    def saw_entry(self, ledger_id: int, first: int, block: Buffer, reader: str) -> None:
        """Check that a block that a reader got is confirmed, and has the written bytes."""
        self._check_bytes(ledger_id, first, block, reader)
        last = peek(block).last_entry
        known = max(self.confirmed.get(ledger_id, -1), self.ends.get(ledger_id, -1))
        self.world.check(
            last <= known,
            "readers",
            f"{reader} sees entry {last} of ledger {ledger_id}, confirmed is {known}",
        )

    def _metadata_changed(self, path: str) -> None:
        if not path.startswith(paths.LEDGERS) or path.count("/") != 4:
            return
        ledger_id = int(path.rpartition("/")[2], 16)
        before = self.records.get(ledger_id)
        node = self.metadata.find(path)
        if node is None:
            if before is not None:
                unused = not any(each.blocks.get(ledger_id) for each in self.promises.values())
                self.world.check(
                    before.state is LedgerState.DELETING or unused, "states", f"ledger {ledger_id} vanished"
                )
                self.deleted.add(ledger_id)
                self._tell(before, "is gone")
                del self.records[ledger_id]
            return
        record = self.records[ledger_id] = decode(LedgerRecord, node.value, path)
        if before is not None:
            self._check_change(before, record)
        if before is None or before.fragments != record.fragments:
            last = record.fragments[-1]
            self._tell(
                record, f"from entry {last.first_entry} on {', '.join(map(self._place, last.bookies))}"
            )
        if before is not None and before.state is not record.state:
            end = f" with entry {record.last_entry}" if record.state is LedgerState.CLOSED else ""
            self._tell(record, f"is {record.state}{end}")
        if record.state is LedgerState.CLOSED:
            self._check_end(before, record)

    def _tell(self, record: LedgerRecord, what: str) -> None:
        self.world.story.append(f"ledger {record.ledger_id} ({record.purpose.rpartition('/')[2]}) {what}")

    def _place(self, bookie: str) -> str:
        uuid = bookie.rpartition(":")[0]
        return next((host for host, at in self.hosts.items() if at == uuid), "a bookie that is gone")

    def _check_change(self, before: LedgerRecord, record: LedgerRecord) -> None:
        ledger_id = record.ledger_id
        self.world.check(
            record.state in self.may_follow[before.state],
            "states",
            f"ledger {ledger_id} went from {before.state} to {record.state}",
        )
        for hole in (hole for hole in record.holes if hole not in before.holes):
            self.world.check(
                ledger_id in self.accepted, "given up", f"{hole} of ledger {ledger_id}: nobody said so"
            )
            # Such a hole may include entries that still exist after its first one.
            is_cut_off = hole.first_entry > record.last_entry
            self.world.saw("hole after the end" if is_cut_off else "hole given up")
            self._tell(record, f"goes on without entries {hole.first_entry} to {hole.last_entry}")
            self._check_given_up(
                before, hole.first_entry, hole.first_entry if is_cut_off else hole.last_entry
            )
        if record.state is LedgerState.OPEN and record.fragments != before.fragments:
            first, confirmed = record.fragments[-1].first_entry, self.confirmed.get(ledger_id, -1)
            self.world.check(
                first == confirmed + 1,
                "fragment",
                f"ledger {ledger_id} has a new fragment from {first}, and {confirmed} is confirmed",
            )
        if before.state is record.state is LedgerState.CLOSED:
            self.world.check(before.last_entry == record.last_entry, "end", f"ledger {ledger_id}'s end moved")
            self.world.saw("repaired")
        if record.state is LedgerState.OPEN:
            self.world.saw("ensemble change")
            width = len(record.fragments[-1].bookies)
            if width < len(before.fragments[-1].bookies):
                self.world.saw("narrowed")
            elif width > len(before.fragments[-1].bookies):
                self.world.saw("widened")
        if record.state is LedgerState.IN_RECOVERY:
            self.world.saw("taken over")
        if before.state is LedgerState.IN_RECOVERY and record.state is LedgerState.CLOSED:
            self.world.saw("recovered")
            self._check_recovered(before, record)
            if record.fragments != before.fragments:
                self.world.saw("recovery changed the ensemble")

    def _check_recovered(self, before: LedgerRecord, record: LedgerRecord) -> None:
        """Check the quorum of all blocks of the last fragment, which a recovery has written again."""
        for first in self.blocks.get(record.ledger_id, ()):
            if before.fragments[-1].first_entry <= first <= record.last_entry:
                self.world.saw("block recovered")
                self._check_quorum(record, first, "recovered")

    def _check_end(self, before: LedgerRecord | None, record: LedgerRecord) -> None:
        ledger_id, end = record.ledger_id, record.last_entry
        confirmed = self.confirmed.get(ledger_id, -1)
        self.ends[ledger_id] = end
        if confirmed > end and ledger_id in self.accepted:
            # The loss was judged by the record before: it does not name copies of a failed recovery on other bookies.
            if before is not None and before.state is not LedgerState.CLOSED:
                self.world.saw("end before a loss")
                self._check_given_up(before, end + 1, end + 1)
            return
        self.world.check(
            confirmed <= end, "end", f"ledger {ledger_id} is closed with {end} and {confirmed} is confirmed"
        )

    def _check_given_up(self, record: LedgerRecord, first: int, last: int) -> None:
        """Check that no bookie of the record, except those with lost disks, has one of these entries."""
        for entry in range(first, last + 1):
            for bookie in states.ensemble(record.fragments[states.fragment_index(record, entry)]):
                is_there = bookie.uuid in self.hosts.values()
                self.world.check(
                    not (is_there and self.promises[bookie.uuid].holds(record.ledger_id, entry)),
                    "given up",
                    f"entry {entry} of ledger {record.ledger_id} was given up, and {bookie} has it",
                )

    def saw_blank(self, ledger_id: int, header: BlockHeader, reader: str) -> None:
        """Check that the entries of a blank block that a reader got were given up."""
        record = self.records.get(ledger_id)
        if record is not None:
            given_up = [holes.hole_at(record, each) for each in (header.first_entry, header.last_entry)]
            self.world.check(None not in given_up, "given up", f"{reader} sees a blank, {header}")
        self.world.saw("blank read")

    def firsts(self, ledger_id: int, blocks: Sequence[Buffer]) -> list[int]:
        """Check that blocks have the written bytes, and return their first entries."""
        found = [peek(block).first_entry for block in blocks]
        for first, block in zip(found, blocks, strict=True):
            self._check_bytes(ledger_id, first, block, "a copy")
        return found


def _covers(blocks: dict[int, int] | None, entry: int) -> bool:
    """Return whether the entry is in one of these blocks, which are given as first entry -> last entry."""
    return blocks is not None and (
        entry in blocks or any(first <= entry <= last for first, last in blocks.items())
    )


def _is_there(storage: Storage, ledger_id: int, entry: int) -> bool:
    """Return whether the bookie has an entry in memory or in the index."""
    tables = storage.cache.tables
    in_memory = any(table.overlapping(ledger_id, entry, entry) is not None for table in tables)
    return in_memory or bool(storage.ledger_storage.index.find(ledger_id, entry))
