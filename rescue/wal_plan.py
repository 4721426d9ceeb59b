"""Plan of write-ahead logs: their records, rebuilt from facts about the objects in the bucket. No I/O.

A record has the first data object that no set covers (the trim point), the current catalogue, and the end of the log.
The end is found by closing the log, as usual. The rest follows from the objects:

| object | conclusion |
|---|---|
| a catalogue whose sets all exist | all blocks before the end of its last set are in its sets, or were deleted |
| several such catalogues | the current one ends last; if several do, it has the fewest sets: others were garbage |
| a catalogue that is damaged, or lacks some of its sets | damage: then all existing sets count, by their headers |
| the last data object | the trim point when it was cut, and the number up to which all objects were durable |
| a fence, or an end in the copy | all objects before it were durable |
| a tombstone in any catalogue | its ledger was deleted |

A catalogue that no record named yet counts as well, because its sets had been read back before it was written.

If all objects from the trim point up to a durable one are missing, either they had no live block when the log was
trimmed, or they are lost. That is *doubtful*: the message indexes show whether messages are missing (`topic_plan`).
Closing the log detects any other gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from quire.metadata.records import WalRecord, WalState
from quire.wal import wal_object
from quire.wal.wal_object import Catalogue, Header, SetEntry


@dataclass
class WalFacts:
    """Objects of one log: `sizes` of all by name, in bytes; `last` is the header of its last data object, if valid."""

    uuid: str
    sizes: dict[str, int] = field(default_factory=dict)
    last: Header | None = None
    catalogues: dict[str, tuple[Catalogue, int]] = field(default_factory=dict)
    """Catalogues by name, with their checksums."""
    unreadable: list[str] = field(default_factory=list)
    """Errors of damaged catalogues."""

    @property
    def has_blocks(self) -> bool:
        """True if there is an object other than a fence."""
        return any(size != wal_object.FENCE_BYTES for size in self.sizes.values())

    @property
    def tombstones(self) -> dict[int, int]:
        """Tombstones in all catalogues: the version of the record by ledger id."""
        return {
            key: version for one, _ in self.catalogues.values() for key, version in one.tombstones.items()
        }

    @property
    def numbers(self) -> list[int]:
        """Sequence numbers of data objects and fences, sorted."""
        return sorted(seq for seq in map(wal_object.seq_of, self.sizes) if seq is not None)

    def is_fence(self, seq: int) -> bool:
        return self.sizes[wal_object.data_name(self.uuid, seq)] == wal_object.FENCE_BYTES

    def lacks(self, catalogue: Catalogue) -> list[str]:
        """Return the names of a catalogue's sets that are missing, or have another size."""
        return [each.name for each in catalogue.sets if self.sizes.get(each.name) != each.bytes]


@dataclass
class WalPlan:
    """Plan of one log. `record` is None if nothing of the log remains."""

    record: WalRecord | None
    damage: list[str] = field(default_factory=list)
    """Damage of the log's catalogues. If there is any, a new catalogue is created from the existing sets."""
    doubtful: list[str] = field(default_factory=list)


def plan_wal(facts: WalFacts, copied: WalRecord | None, store: str) -> WalPlan:
    """Plan the record of a log. `copied` is its record in the copy, `store` the URL of the bucket, without secrets."""
    if not facts.has_blocks and (copied is None or copied.state is WalState.CLOSED):
        return WalPlan(None)
    plan, name = WalPlan(None), _choose(facts)
    chosen, crc = facts.catalogues.get(name, (Catalogue(), 0))
    _look_for_sets(facts, chosen, plan)
    record = copied or WalRecord(uuid=facts.uuid, broker="unknown", store=store)
    trim_seq = max(record.trim_seq, _behind(chosen), facts.last.trim_seq if facts.last is not None else 0)
    durable = _durable_below(facts, record)
    begin = min((seq for seq in facts.numbers if trim_seq <= seq <= durable), default=durable)
    if begin > trim_seq:
        plan.doubtful.append(
            f"objects {trim_seq} to {begin - 1} of WAL {record.uuid} are missing, and no set has their blocks: either "
            "all blocks had been deleted, or they are lost"
        )
        trim_seq = begin
    plan.record = replace(record, store=store, trim_seq=trim_seq, catalogue=name, catalogue_crc=crc)
    return plan


def of_all_sets(facts: WalFacts, sets: Sequence[SetEntry]) -> Catalogue:
    """Return a catalogue of all existing sets and known tombstones, for a log with damaged catalogues."""
    return Catalogue(tuple(sorted(sets, key=lambda each: (each.first_seq, each.name))), facts.tombstones)


def _choose(facts: WalFacts) -> str:
    """Return the name of the current catalogue; "" without one."""
    whole = {name: one for name, (one, _) in facts.catalogues.items() if not facts.lacks(one)}
    return max(whole, key=lambda name: (_behind(whole[name]), -len(whole[name].sets)), default="")


def _look_for_sets(facts: WalFacts, chosen: Catalogue, plan: WalPlan) -> None:
    """Report missing sets: as damage, if their catalogue has existing sets that are not in the chosen catalogue.

    Otherwise, they are doubtful: a set was deleted with its ledgers before its catalogue, or the catalogue is obsolete.
    """
    plan.damage += facts.unreadable
    for name, (catalogue, _) in facts.catalogues.items():
        gone = facts.lacks(catalogue)
        if not gone or _behind(catalogue) <= _behind(chosen):
            continue
        left = {each.name for each in catalogue.sets} - {*gone, *(each.name for each in chosen.sets)}
        told = plan.damage if left else plan.doubtful
        told += [f"object {each} of catalogue {name} is missing" for each in gone]


def _behind(catalogue: Catalogue) -> int:
    """Return the sequence number after the last data object that the sets of a catalogue cover."""
    return max((each.last_seq + 1 for each in catalogue.sets), default=0)


def _durable_below(facts: WalFacts, record: WalRecord) -> int:
    """Return the sequence number below which all data objects have been durable."""
    if record.state is WalState.CLOSED:
        return record.end_seq
    fence = next((seq for seq in facts.numbers if facts.is_fence(seq)), 0)
    confirmed = facts.last.confirmed_seq + 1 if facts.last is not None else 0
    return max(fence, confirmed, *(_behind(one) for one, _ in facts.catalogues.values()))
