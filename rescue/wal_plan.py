"""The records of write-ahead logs on object storage, from what lies in the bucket: facts in, records out. No I/O.

A record says where data objects begin that are in no set (the trim point), which catalogue counts, and where the log
ends. The end is found by closing the log, as ever. The rest is told by the objects:

| what lies there | says |
|---|---|
| a catalogue whose sets are all there | what lies below the end of its last set is in them, or was deleted |
| several of them | the one counts that reaches furthest; of those the one with the fewest sets: others were garbage |
| a catalogue that is rotten, or has a part of its sets | damage: then all sets count, by what they say of themselves |
| the last data object | the trim point when it was cut, and up to where all was durable |
| a fence, or an end that the copy knows | all before it was durable |
| a tombstone in any catalogue | the end of its ledger |

A catalogue that was written and that no record named yet counts as well: its sets had been read back.

Where all objects from the trim point on are gone up to one that was durable, nothing in them was alive when the log was
trimmed, or they are lost: that is *doubtful*, and message indexes tell (`topic_plan`). Any other hole is for the close
to judge.
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
    """`sizes`: all objects of the log by name, in bytes. `last`: the header of its last data object, if it is whole."""

    uuid: str
    sizes: dict[str, int] = field(default_factory=dict)
    last: Header | None = None
    catalogues: dict[str, tuple[Catalogue, int]] = field(default_factory=dict)
    """By name, with their checksums."""
    unreadable: list[str] = field(default_factory=list)
    """Catalogues that are damaged, in words."""

    @property
    def has_blocks(self) -> bool:
        """Something else than a fence lies there."""
        return any(size != wal_object.FENCE_BYTES for size in self.sizes.values())

    @property
    def tombstones(self) -> dict[int, int]:
        """Of any catalogue: ledgers that were deleted, and the versions."""
        return {
            key: version for one, _ in self.catalogues.values() for key, version in one.tombstones.items()
        }

    @property
    def numbers(self) -> list[int]:
        """Of its data objects and fences, sorted."""
        return sorted(seq for seq in map(wal_object.seq_of, self.sizes) if seq is not None)

    def is_fence(self, seq: int) -> bool:
        return self.sizes[wal_object.data_name(self.uuid, seq)] == wal_object.FENCE_BYTES

    def lacks(self, catalogue: Catalogue) -> list[str]:
        """Sets of a catalogue that are not there as it names them."""
        return [each.name for each in catalogue.sets if self.sizes.get(each.name) != each.bytes]


@dataclass
class WalPlan:
    """`record` is None where nothing is left of the log."""

    record: WalRecord | None
    damage: list[str] = field(default_factory=list)
    """What is wrong with its catalogues: then one is to be made of its sets."""
    doubtful: list[str] = field(default_factory=list)


def plan_wal(facts: WalFacts, copied: WalRecord | None, store: str) -> WalPlan:
    """`copied` is the copy's record of the log; `store` the URL of the bucket, without secrets."""
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
            f"objects {trim_seq} to {begin - 1} of WAL {record.uuid} are gone, and no set has what they held: all of "
            "it had been deleted, or it is lost"
        )
        trim_seq = begin
    plan.record = replace(record, store=store, trim_seq=trim_seq, catalogue=name, catalogue_crc=crc)
    return plan


def of_all_sets(facts: WalFacts, sets: Sequence[SetEntry]) -> Catalogue:
    """For a log whose catalogues are damaged: one of all sets that are there, and of all tombstones that are known."""
    return Catalogue(tuple(sorted(sets, key=lambda each: (each.first_seq, each.name))), facts.tombstones)


def _choose(facts: WalFacts) -> str:
    """Name of the catalogue that counts; empty where none does."""
    whole = {name: one for name, (one, _) in facts.catalogues.items() if not facts.lacks(one)}
    return max(whole, key=lambda name: (_behind(whole[name]), -len(whole[name].sets)), default="")


def _look_for_sets(facts: WalFacts, chosen: Catalogue, plan: WalPlan) -> None:
    """A set that is gone is damage where the catalogue that names it has others that are there, and no other has them.

    Else it went when its ledgers were deleted, and then its catalogue was to go; or both are of no use any more.
    """
    plan.damage += facts.unreadable
    for name, (catalogue, _) in facts.catalogues.items():
        gone = facts.lacks(catalogue)
        if not gone or _behind(catalogue) <= _behind(chosen):
            continue
        left = {each.name for each in catalogue.sets} - {*gone, *(each.name for each in chosen.sets)}
        told = plan.damage if left else plan.doubtful
        told += [f"object {each} is not there, which {name} names" for each in gone]


def _behind(catalogue: Catalogue) -> int:
    """The object behind the last that its sets cover."""
    return max((each.last_seq + 1 for each in catalogue.sets), default=0)


def _durable_below(facts: WalFacts, record: WalRecord) -> int:
    """Below it all was durable once."""
    if record.state is WalState.CLOSED:
        return record.end_seq
    fence = next((seq for seq in facts.numbers if facts.is_fence(seq)), 0)
    confirmed = facts.last.confirmed_seq + 1 if facts.last is not None else 0
    return max(fence, confirmed, *(_behind(one) for one, _ in facts.catalogues.values()))
