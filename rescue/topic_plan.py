"""Which topics there are, and the segments of each: facts in, records out. No I/O.

A topic's segments are ledgers by ascending id, and the first block of each says which message of the topic it begins
with. So the list can be told without one: ledgers by their labels, archived segments by theirs, and both are proven by
the message indexes, which must go on from segment to segment.

| what is known of a ledger | becomes |
|---|---|
| closed on bookies, with blocks | a sealed segment, on the bookies |
| an object of the archive with its label, or named by the copy | a sealed segment, in the archive |
| both | a sealed segment that is archived and not released yet |
| an end beyond the beginning of the next one | cut: what lies behind was never acknowledged there (`overlaps`) |
| an end before the beginning of the next one | a gap: messages are missing, and told |
| nothing but a name in the copy | trimmed where it has a tombstone, was in the archive alone or vanished; else lost |
| another generation than its topic's newest | what the deletion of a former topic of that name left; passed over |
| archived alone, and an end beyond the beginning of the next one | the same, for such an end is exact; told |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from quire.metadata.records import ArchivePointer, SegmentRecord, TopicRecord
from quire.rescue.ledger_plan import LedgerPlan
from quire.serving.names import TopicName
from quire.tiering.segment_label import SegmentLabel

_PURPOSE = "topic:"


class End(NamedTuple):
    """A closed ledger as its first and last block tell it. `end_index` is that of the message behind its last one."""

    last_entry: int
    first_index: int
    end_index: int
    first_clock_ms: int
    last_clock_ms: int
    bytes: int


@dataclass
class Archived:
    """What the archive has: names of all segment objects, and the labels that could be read."""

    objects: set[str] = field(default_factory=set)
    labels: list[SegmentLabel] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)
    """Objects without a label that the copy does not name either."""


class Copied(NamedTuple):
    """A topic as the copy of the metadata has it."""

    record: TopicRecord
    segments: Sequence[SegmentRecord]


@dataclass
class TopicPlan:
    """`topics` by name. `lost` and `doubtful` are sentences."""

    topics: dict[str, Copied] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Topics without a message."""

    @property
    def segments(self) -> int:
        return sum(len(each.segments) for each in self.topics.values())

    @property
    def messages(self) -> int:
        return sum(segment.messages for each in self.topics.values() for segment in each.segments)


def plan_topics(
    copied: Mapping[str, Copied],
    archived: Archived,
    ledgers: LedgerPlan,
    ends: Mapping[int, End],
    now_ms: int,
) -> TopicPlan:
    """`ends` has the closed ledgers that could be read."""
    plan = TopicPlan()
    by_topic: dict[str, set[int]] = {name: set() for name in copied}
    for ledger_id, told in ledgers.ledgers.items():
        if told.record.purpose.startswith(_PURPOSE):
            by_topic.setdefault(told.record.purpose.removeprefix(_PURPOSE), set()).add(ledger_id)
    labels = {
        label.segment.ledger_id: label
        for label in archived.labels
        if _is_there(label.segment, archived.objects)
    }
    for label in labels.values():
        by_topic.setdefault(label.topic, set()).add(label.segment.ledger_id)
    for name, ids in sorted(by_topic.items()):
        before = copied.get(name)
        if before is not None and before.record.partitions:
            plan.topics[name] = before
            continue
        topic = _Topic(name, before, archived, labels, ledgers, ends, now_ms)
        topic.build(
            ids | {segment.ledger_id for segment in (before.segments if before is not None else ())}, plan
        )
    _add_parents(plan, now_ms)
    return plan


def _is_there(segment: SegmentRecord, objects: Collection[str]) -> bool:
    return segment.archive is not None and segment.archive.name in objects


class _Topic:
    """One topic that is no parent of partitions."""

    def __init__(
        self,
        name: str,
        before: Copied | None,
        archived: Archived,
        labels: Mapping[int, SegmentLabel],
        ledgers: LedgerPlan,
        ends: Mapping[int, End],
        now_ms: int,
    ) -> None:
        self._name = name
        self._before = before
        self._objects = archived.objects
        self._labels = labels
        self._ledgers = ledgers
        self._ends = ends
        self._now_ms = now_ms
        self._copied = (
            {segment.ledger_id: segment for segment in before.segments} if before is not None else {}
        )

    def build(self, ids: set[int], plan: TopicPlan) -> None:
        """Put the topic into `plan`, unless it was deleted."""
        generation = self._generation(ids)
        known = (self._segment(each, generation, plan) for each in sorted(ids))
        segments = self._without_former([segment for segment in known if segment is not None], plan)
        if not segments and self._before is None:
            return
        for one, behind in pairwise(segments):
            missing = behind.first_index - (one.first_index + one.messages)
            if missing > 0:
                at = one.first_index + one.messages
                plan.lost.append(f"{missing} messages of {self._name}, from message {at} on")
        if not any(segment.messages for segment in segments):
            plan.empty.append(self._name)
        plan.topics[self._name] = Copied(self._record(generation, ids, segments), segments)

    def _without_former(self, segments: list[SegmentRecord], plan: TopicPlan) -> list[SegmentRecord]:
        """Those that are in the archive alone have no generation, but an end that is exact."""
        kept: list[SegmentRecord] = []
        for segment in reversed(segments):
            if (
                kept
                and not segment.on_bookies
                and segment.first_index + segment.messages > kept[-1].first_index
            ):
                plan.doubtful.append(
                    f"segment {segment.ledger_id} of {self._name} in the archive, with {segment.messages} messages, is "
                    f"passed over: segment {kept[-1].ledger_id} begins before its end, so it is of a former topic of "
                    "that name"
                )
            else:
                kept.append(segment)
        return kept[::-1]

    def _generation(self, ids: Iterable[int]) -> int:
        """The newest that anything of it tells."""
        told = [
            self._ledgers.ledgers[each].record.generation for each in ids if each in self._ledgers.ledgers
        ]
        return max([*told, self._before.record.generation if self._before is not None else 0])

    def _segment(self, ledger_id: int, generation: int, plan: TopicPlan) -> SegmentRecord | None:
        told = self._ledgers.ledgers.get(ledger_id)
        if told is not None and told.record.generation not in (0, generation):
            return None
        known, label = self._copied.get(ledger_id), self._labels.get(ledger_id)
        pointer = self._pointer(known, label)
        sealed = (
            known if known is not None and known.is_sealed else label.segment if label is not None else None
        )
        end = self._ends.get(ledger_id)
        if end is None and pointer is not None and sealed is not None:
            return replace(sealed, archive=pointer, on_bookies=False)
        if end is None:
            self._tell_gone(ledger_id, known, plan)
            return None
        if end.last_entry < 0:
            return None
        assert told is not None
        is_whole = sealed is None or end.last_entry >= sealed.last_entry
        if sealed is not None and not is_whole:
            missing = sealed.messages - (end.end_index - end.first_index)
            if pointer is not None:
                return replace(sealed, archive=pointer, on_bookies=False)
            plan.lost.append(f"{missing} messages at the end of ledger {ledger_id} of {self._name}")
        if sealed is not None and is_whole:
            return replace(sealed, archive=pointer, on_bookies=True)
        return SegmentRecord(
            ledger_id=ledger_id,
            first_index=end.first_index,
            created_ms=told.record.created_ms,
            sealed_ms=told.record.closed_ms or self._now_ms,
            last_entry=end.last_entry,
            messages=end.end_index - end.first_index,
            bytes=end.bytes,
            first_clock_ms=end.first_clock_ms,
            last_clock_ms=end.last_clock_ms,
            archive=pointer,
        )

    def _pointer(self, known: SegmentRecord | None, label: SegmentLabel | None) -> ArchivePointer | None:
        if known is not None and _is_there(known, self._objects):
            return known.archive
        return label.segment.archive if label is not None else None

    def _tell_gone(self, ledger_id: int, known: SegmentRecord | None, plan: TopicPlan) -> None:
        if ledger_id in self._ledgers.deleted or known is None or not known.is_sealed:
            return  # what cannot be read though its label is here was told of as a ledger
        if ledger_id in self._ledgers.vanished:
            plan.doubtful.append(
                f"segment {ledger_id} of {self._name} with {known.messages} messages is in no write-ahead log any "
                "more: it was deleted, or it is lost"
            )
            return
        if known.on_bookies or known.archive is None:
            plan.lost.append(f"segment {ledger_id} of {self._name} with {known.messages} messages")
        else:
            plan.doubtful.append(
                f"object {known.archive.name}, segment {ledger_id} of {self._name}, is not in the archive: retention "
                "removed it, or it is lost"
            )

    def _record(self, generation: int, ids: set[int], segments: Sequence[SegmentRecord]) -> TopicRecord:
        dropped = max((each for each in ids if not segments or each > segments[-1].ledger_id), default=-1)
        if self._before is None:
            return TopicRecord(
                name=self._name,
                created_ms=generation,
                generation=generation or self._now_ms,
                last_dropped=dropped,
            )
        record = self._before.record
        compacted = record.compacted
        if compacted is not None and compacted.ledger_id not in self._ends:
            compacted = None
        return replace(
            record,
            generation=generation,
            manifests=(),
            segments=(),
            compacted=compacted,
            last_dropped=max(record.last_dropped, dropped),
        )


def overlaps(plan: TopicPlan) -> dict[int, int]:
    """Ledgers that end beyond the beginning of the next segment, and the index that they must end before."""
    return {
        one.ledger_id: behind.first_index
        for topic in plan.topics.values()
        for one, behind in pairwise(topic.segments)
        if one.first_index + one.messages > behind.first_index
    }


def _add_parents(plan: TopicPlan, now_ms: int) -> None:
    """A partition's parent has a record of its own; one that the copy does not know has as many as are here."""
    extents: dict[TopicName, int] = {}
    for name in plan.topics:
        topic = TopicName.parse(name)
        if topic.parent is not None:
            extents[topic.parent] = max(extents.get(topic.parent, 0), topic.partition + 1)
    for parent, extent in extents.items():
        before = plan.topics.get(str(parent))
        if before is None:
            plan.topics[str(parent)] = Copied(
                TopicRecord(name=str(parent), partitions=extent, created_ms=now_ms, generation=now_ms), ()
            )
            plan.doubtful.append(
                f"{parent} gets {extent} partitions, for no other is known; it may have had more"
            )
        elif before.record.partitions:
            partitions = max(before.record.extent, extent)
            plan.topics[str(parent)] = Copied(replace(before.record, partitions=partitions, growth=None), ())
