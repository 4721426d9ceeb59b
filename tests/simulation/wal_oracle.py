"""Invariants of write-ahead logs (WALs) on object storage, checked all the time on the bucket and the metadata.

    prefix      when a block is acknowledged, its object and all earlier objects after the trim point are stored
    kept        an acknowledged block is in a set of the record's catalogue, or in a data object from the trim point up
                to the end, until its ledger is deleted
    end         a closed WAL's end never changes, and is the number of its lowest fence; every closer gets this end
    trim        the trim point only rises; the WAL's writer moves it while the WAL is open, and its keeper afterwards
    garbage     a data object is deleted only after the record says that it is in a set; a set only if no record's
                catalogue names it; a fence only with its record
    tombstone   while a used object has blocks of a deleted ledger, the ledger's tombstone is in the catalogue, or in a
                data object after the trim point
    ended       a WAL ends only by a close, its session's end, its process's stop, or because its store forbids access
    header      all objects that a data object's header calls durable were stored; it lags by at most one window
    outdated    a close by an older copy of the record is refused, or gives up no acknowledged block
    living      a collector closes no WAL whose writer is registered

All invariants of `oracle` hold for ledgers on WALs, with "kept" instead of a quorum. If objects rot, or vanish after
others recorded them as durable, losses must be reported: a ledger is not closed before its last confirmed entry
("end"), and reads report damage or do not return. Whether such a ledger can be closed is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from quire.metadata import paths
from quire.metadata.records import LedgerRecord, LedgerState, WalRecord, WalState, decode
from quire.runtime.errors import CorruptionError, Fenced, QuireError, Unavailable
from quire.wal import wal_object
from quire.wal.wal_object import Catalogue, Header, Kind
from quire.wire.block import Buffer, peek
from quire.wire.bookie import Status

from .metadata import MetadataServer
from .oracle import Oracle, Promises
from .wal_objects import WalBucket
from .world import World

UPLOADS_MAX: Final = 4
"""Maximum number of concurrent uploads of a WAL in these histories."""

Span = tuple[int, int, int]
"""Run of blocks: (ledger, first entry, last entry)."""


@dataclass
class Wal:
    """State of one WAL."""

    record: WalRecord | None = None
    data: dict[int, list[Span]] = field(default_factory=dict)
    """Runs in each stored data object, by object number."""
    fences: set[int] = field(default_factory=set)
    seqs: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of the first data object that contained a block, by (ledger, first entry)."""
    catalogue: Catalogue = field(default_factory=Catalogue)
    """Catalogue that the WAL's record names."""
    laid: dict[int, set[int]] = field(default_factory=dict)
    """Ledgers whose tombstones are in a stored data object, by object number."""
    buried: set[int] = field(default_factory=set)
    """Ledgers whose deletion the WAL's node has confirmed."""

    @property
    def sets(self) -> frozenset[str]:
        """Names of the sets in the catalogue."""
        return frozenset(entry.name for entry in self.catalogue.sets)


class WalOracle(Oracle):
    bucket: WalBucket

    def __init__(self, world: World, metadata: MetadataServer) -> None:
        super().__init__(world, metadata)
        self.wals: dict[str, Wal] = {}
        self.set_spans: dict[str, dict[int, list[tuple[int, int]]]] = {}
        """Ranges of entries in each stored set, by the set's name and by ledger."""
        self.is_damaged = False
        """True after an object rotted or vanished."""
        self.is_barred = False
        """True after a store forbade a broker's calls, its mount was missing, or an upload raised an exception."""

    def watch(self, bucket: WalBucket) -> None:
        self.bucket = bucket
        bucket.appeared = self._appeared
        bucket.going = self._going

    # -- objects -----------------------------------------------------------------------------------------
    def _appeared(self, name: str, content: bytes) -> None:
        parts = name.split("/")
        if len(parts) != 3 or parts[1].startswith("probe"):
            return
        if parts[2].startswith("sets-"):
            return
        header = wal_object.read_header(content, name)
        if header.kind is Kind.SET:
            of_ledgers = self.set_spans[name] = {}
            for ledger_id, first, last in _spans(content, header):
                of_ledgers.setdefault(ledger_id, []).append((first, last))
            return
        wal = self.wals.setdefault(header.wal, Wal())
        if header.kind is Kind.FENCE:
            wal.fences.add(header.seq)
            wal.data.pop(header.seq, None)
            self.world.saw("WAL fenced")
            return
        self._check_header(wal, header)
        wal.data[header.seq] = list(_spans(content, header))
        wal.laid[header.seq] = set(wal_object.read_data_tail(header, content[header.tail_offset :], name)[1])
        for ledger_id, first, last in wal.data[header.seq]:
            for entry in range(first, last + 1):
                wal.seqs.setdefault((ledger_id, entry), header.seq)
        if any(seq < header.seq for seq in wal.fences):
            self.world.saw("object behind a fence")

    def _check_header(self, wal: Wal, header: Header) -> None:
        trim_seq = wal.record.trim_seq if wal.record is not None else 0
        lacking = [seq for seq in range(trim_seq, header.confirmed_seq + 1) if seq not in wal.data]
        self.world.check(
            not lacking or self.is_damaged,
            "header",
            f"object {header.seq} of {header.wal} says that {lacking} were durable",
        )
        self.world.check(
            header.seq - header.confirmed_seq <= UPLOADS_MAX,
            "header",
            f"object {header.seq} of {header.wal} knows only of {header.confirmed_seq}",
        )

    def closed_by_collector(self, uuid: str) -> None:
        """Check that a collector may close the WAL."""
        self.world.check(
            self.metadata.find(paths.wal_writer(uuid)) is None or self.metadata.lag_s > 0,
            "living",
            f"a collector closes {uuid}, whose writer is registered",
        )

    def _going(self, name: str) -> None:
        uuid, _, last = name.removeprefix("wal/").partition("/")
        wal = self.wals.get(uuid)
        if wal is None or wal.record is None:
            self.set_spans.pop(name, None)
            return
        record, seq = wal.record, wal_object.seq_of(name)
        if name in self.set_spans:
            self.world.check(
                name not in wal.sets, "garbage", f"set {name} goes, and the catalogue of {uuid} names it"
            )
            del self.set_spans[name]
        elif seq is not None and seq in wal.fences:
            is_end = seq == record.end_seq or (seq >= record.trim_seq and record.state is not WalState.CLOSED)
            self.world.check(not is_end, "garbage", f"the fence {seq} of {uuid} goes")
            wal.fences.discard(seq)
        elif seq is not None:
            is_beyond = record.state is WalState.CLOSED and seq >= record.end_seq
            self.world.check(
                seq < record.trim_seq or is_beyond,
                "garbage",
                f"object {seq} of {uuid} goes, and the trim point is {record.trim_seq}",
            )
            wal.data.pop(seq, None)
            wal.laid.pop(seq, None)
        elif last.startswith("sets-"):
            self.world.check(
                name != record.catalogue,
                "garbage",
                f"catalogue {name} goes, and the record of {uuid} names it",
            )

    # -- records -----------------------------------------------------------------------------------------
    def _metadata_changed(self, path: str) -> None:
        super()._metadata_changed(path)
        if not path.startswith(paths.WALS + "/"):
            return
        uuid = path.rpartition("/")[2]
        wal = self.wals.setdefault(uuid, Wal())
        before, node = wal.record, self.metadata.find(path)
        if node is None:
            wal.record = None
            self._check_removed(uuid)
            return
        record = wal.record = decode(WalRecord, node.value, path)
        self.promises.setdefault(f"wal-{uuid}", Promises(1))
        wal.catalogue = self._catalogue(record)
        if before is None:
            return
        self._check_wal_change(uuid, before, record)
        self.check_kept(uuid)

    def _catalogue(self, record: WalRecord) -> Catalogue:
        if not record.catalogue:
            return Catalogue()
        content = self.bucket.objects.get(record.catalogue)
        self.world.check(
            content is not None,
            "kept",
            f"the record of {record.uuid} names {record.catalogue}, which is not there",
        )
        assert content is not None
        try:
            return wal_object.decode_catalogue(content[0], record.catalogue_crc, record.catalogue)
        except CorruptionError:
            return Catalogue()

    def _check_wal_change(self, uuid: str, before: WalRecord, record: WalRecord) -> None:
        steps = (WalState.OPEN, WalState.CLOSING, WalState.CLOSED)
        self.world.check(
            steps.index(before.state) <= steps.index(record.state),
            "end",
            f"{uuid} goes back to {record.state}",
        )
        if before.state is WalState.CLOSED:
            self.world.check(
                before.end_seq == record.end_seq,
                "end",
                f"the end of {uuid} moves from {before.end_seq} to {record.end_seq}",
            )
        elif record.state is WalState.CLOSED:
            self.world.saw(f"WAL closed from {before.state}")
            fences = self.wals[uuid].fences
            lowest = min((seq for seq in fences if seq >= record.trim_seq), default=record.end_seq)
            self.world.check(
                record.end_seq <= lowest,
                "end",
                f"{uuid} ends with {record.end_seq}, and a fence lies at {lowest}",
            )
        self.world.check(
            before.trim_seq <= record.trim_seq, "trim", f"{uuid}: from {before.trim_seq} to {record.trim_seq}"
        )
        if before.trim_seq < record.trim_seq:
            self.world.saw(f"trimmed while {record.state}")
            self.world.check(
                before.state is record.state is not WalState.CLOSING,
                "trim",
                f"{uuid} is trimmed from {before.state} to {record.state}",
            )

    def _check_removed(self, uuid: str) -> None:
        self.world.saw("WAL removed")
        left = list(self._acknowledged(uuid))
        self.world.check(not left, "kept", f"the record of {uuid} is gone, which has blocks {left[:5]}")

    def told_end(self, uuid: str, end_seq: int) -> None:
        """Check the end that a closer of the WAL got."""
        record = self.wals[uuid].record
        if record is not None:
            self.world.saw("close told")
            self.world.check(
                (record.state, record.end_seq) == (WalState.CLOSED, end_seq),
                "end",
                f"{uuid} is {record.state} and ends with {record.end_seq}; its closer says {end_seq}",
            )

    def closed_by_copy(self, record: WalRecord) -> None:
        """Check that a close by an older copy of the WAL's record does not give up acknowledged blocks."""
        wal = self.wals[record.uuid]
        for ledger_id, first in self._acknowledged(record.uuid) if not self.is_damaged else ():
            seq = wal.seqs.get((ledger_id, first), -1)
            self.world.check(
                seq < record.end_seq and seq not in record.lost,
                "outdated",
                f"block {first} of ledger {ledger_id} in object {seq} of {record.uuid}, of which an older record says: "
                f"end {record.end_seq}, lost {record.lost}",
            )

    # -- blocks ------------------------------------------------------------------------------------------
    def answered(self, uuid: str, blocks: Sequence[Buffer], statuses: Sequence[Status]) -> None:
        """Record the response of the WAL's node to an add request."""
        for block, status in zip(blocks, statuses, strict=True):
            if status is Status.OK:
                header = peek(block)
                self.acknowledged(uuid, header.ledger_id, header.first_entry)

    def acknowledged(self, uuid: str, ledger_id: int, first: int) -> None:
        """Check a block that the WAL's node has just acknowledged."""
        wal = self.wals[uuid]
        assert wal.record is not None
        if not self.is_damaged and self._is_wanted(ledger_id):
            self.world.check(
                self._is_kept(wal, ledger_id, first),
                "kept",
                f"block {first} of ledger {ledger_id} is nowhere in {uuid}",
            )
        seq = wal.seqs.get((ledger_id, first), -1)
        lacking = [n for n in range(wal.record.trim_seq, seq) if n not in wal.data]
        self.world.check(
            not lacking or self.is_damaged,
            "prefix",
            f"block {first} of ledger {ledger_id}, in object {seq} of {uuid}, is acknowledged before {lacking}",
        )

    def check_kept(self, uuid: str) -> None:
        """Check that all acknowledged blocks of a WAL are stored."""
        wal = self.wals[uuid]
        if self.is_damaged or wal.record is None:
            return
        for ledger_id, first in self._acknowledged(uuid):
            self.world.check(
                self._is_kept(wal, ledger_id, first),
                "kept",
                f"block {first} of ledger {ledger_id} was acknowledged, and is in no object of {uuid} that counts",
            )
        self._check_buried(uuid, wal, wal.record)

    def _check_buried(self, uuid: str, wal: Wal, record: WalRecord) -> None:
        there = {ledger_id for name in wal.sets for ledger_id in self.set_spans.get(name, ())}
        for seq, spans in wal.data.items():
            if seq >= record.trim_seq:
                there.update(ledger_id for ledger_id, _, _ in spans)
        told = {*wal.catalogue.tombstones}
        told.update(*(laid for seq, laid in wal.laid.items() if seq >= record.trim_seq))
        forgotten = sorted((wal.buried & there) - told)
        self.world.check(not forgotten, "tombstone", f"{uuid} forgot that ledgers {forgotten} were deleted")

    def ended(self, uuid: str, why: QuireError) -> None:
        """Check the reason for which a node has ended its WAL."""
        self.world.saw(f"WAL ended: {type(why).__name__}")
        record = self.wals[uuid].record
        is_closed = record is None or record.state is not WalState.OPEN
        is_expected = isinstance(why, Fenced | Unavailable) or is_closed or self.is_damaged or self.is_barred
        self.world.check(is_expected, "ended", f"{uuid}: {why!r}")

    def _acknowledged(self, uuid: str) -> Iterator[tuple[int, int]]:
        """Yield the acknowledged blocks of ledgers that are not being deleted."""
        known = self.promises.get(f"wal-{uuid}")
        for ledger_id, blocks in known.blocks.items() if known is not None else ():
            if self._is_wanted(ledger_id):
                yield from ((ledger_id, first) for first in blocks)

    def _is_wanted(self, ledger_id: int) -> bool:
        record = self.records.get(ledger_id)
        return record is not None and record.state is not LedgerState.DELETING

    def _is_kept(self, wal: Wal, ledger_id: int, entry: int) -> bool:
        record = wal.record
        assert record is not None
        end_seq = record.end_seq if record.state is WalState.CLOSED else 1 << 62
        seq = wal.seqs.get((ledger_id, entry), -1)
        if record.trim_seq <= seq < end_seq and seq in wal.data:
            return True
        found = [self.set_spans[name].get(ledger_id, ()) for name in wal.sets if name in self.set_spans]
        return any(first <= entry <= last for spans in found for first, last in spans)

    def _check_quorum(self, record: LedgerRecord, entry: int, rule: str = "quorum") -> None:
        if self.is_damaged:
            return
        index = max(number for number, each in enumerate(record.fragments) if each.first_entry <= entry)
        for name in record.fragments[index].bookies:
            wal = self.wals.get(name.removeprefix("wal-").partition(":")[0])
            self.world.check(
                wal is not None and wal.record is not None and self._is_kept(wal, record.ledger_id, entry),
                rule,
                f"entry {entry} of ledger {record.ledger_id} is {record.state}, and not in {name}",
            )


def _spans(content: bytes, header: Header) -> Iterator[Span]:
    if header.kind is Kind.SET:
        tail = content[-wal_object.set_tail_bytes(content, "x") :]
        rows = wal_object.read_set_tail(tail, len(content), wal_object.footer_crc(content), "x")
        row = wal_object.SET_ROW
    else:
        rows, _ = wal_object.read_data_tail(header, content[header.tail_offset :], "x")
        row = wal_object.ROW
    for ledger_id, first, last, *_ in row.iter_unpack(rows):
        yield ledger_id, first, last
