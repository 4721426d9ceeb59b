"""Plan of the topics and their segments, from facts. Performs no I/O.

A topic's segments are ledgers by ascending id, and the first block of each has the index of its first message. So the
list is rebuilt from the labels of ledgers and of archived segments, and checked by the message indexes, which must be
contiguous from segment to segment.

| facts about a ledger | result |
|---|---|
| closed on bookies, with blocks | a sealed segment on the bookies |
| an object in the archive, with its label or in the copy's records | a sealed segment in the archive |
| both | a sealed segment that is archived and not released yet |
| it ends after the beginning of the next one | cut there, because later messages were never acknowledged (`overlaps`) |
| it ends before the beginning of the next one | a gap: missing messages are reported |
| only a record in the copy | trimmed if it has a tombstone, was only in the archive, or vanished; else lost |
| another generation than its topic's | a ledger of a former topic with this name: skipped and reported |
| archived only, and it ends after the beginning of the next one | the same, because the end of an object is exact |
| several objects in the archive | the object that was recorded last, by its count of uploads |

A topic that was deleted and created again has another *generation*, and clocks do not order the two. The generation is

1. that of the ledger with the greatest id that is not in the copy of the metadata, because it began after the copy,
2. else the generation in the copy, if the copy has segments of the topic, or a ledger has this generation,
3. else that of the ledger with the greatest id on bookies or in logs, else in the archive.
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
    """Facts from the first and last block of a closed ledger. `end_index` is the index after its last message."""

    last_entry: int
    first_index: int
    end_index: int
    first_clock_ms: int
    last_clock_ms: int
    bytes: int


@dataclass
class Archived:
    """Facts from the archive: names of all segment objects, and those of their labels that are readable."""

    objects: set[str] = field(default_factory=set)
    labels: list[SegmentLabel] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)
    """Objects without a label that are not in the copy's records."""
    foreign: list[str] = field(default_factory=list)
    """Objects of other clusters, as sentences."""


class Copied(NamedTuple):
    """Topic in the copy of the metadata."""

    record: TopicRecord
    segments: Sequence[SegmentRecord]


@dataclass
class TopicPlan:
    """Plan of all topics: `topics` by name; `lost` and `doubtful` contain sentences for the operator."""

    topics: dict[str, Copied] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Topics without messages."""

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
    """Return the plan. `ends` has the ends of the closed ledgers that could be read, by ledger id."""
    plan = TopicPlan()
    by_topic: dict[str, set[int]] = {name: set() for name in copied}
    for ledger_id, told in ledgers.ledgers.items():
        if told.record.purpose.startswith(_PURPOSE):
            by_topic.setdefault(told.record.purpose.removeprefix(_PURPOSE), set()).add(ledger_id)
    labels: dict[int, SegmentLabel] = {}
    for label in sorted(archived.labels, key=_recorded_last):
        if _is_there(label.segment, archived.objects):
            labels[label.segment.ledger_id] = label
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


def _recorded_last(label: SegmentLabel) -> tuple[int, str]:
    """Sort key by which the object that was recorded last is the greatest."""
    pointer = label.segment.archive
    return (pointer.upload, pointer.name) if pointer is not None else (-1, "")


def _is_there(segment: SegmentRecord, objects: Collection[str]) -> bool:
    return segment.archive is not None and segment.archive.name in objects


class _Topic:
    """One topic that is not partitioned, or one partition."""

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
        """Add the topic to `plan`, unless it was deleted."""
        generation = self._generation(ids)
        if self._before is not None and generation != self._before.record.generation:
            plan.doubtful.append(
                f"{self._name} was deleted and created again after the copy of the metadata: its properties and its "
                f"{len(self._copied)} segments in the copy are skipped"
            )
            ids -= self._copied.keys()
            self._before, self._copied = None, {}
        known = (self._segment(each, generation, plan) for each in sorted(ids))
        segments = self._without_former([segment for segment in known if segment is not None], plan)
        if not segments and self._before is None:
            return
        for one, behind in pairwise(segments):
            missing = behind.first_index - (one.first_index + one.messages)
            if missing > 0:
                at = one.first_index + one.messages
                plan.lost.append(f"{missing} messages of {self._name}, from message {at} on")
        if not generation:
            plan.doubtful.append(
                f"{self._name} gets a new generation, because its labels in the archive are of a version without "
                "generations: its subscriptions and deduplication state are not restored"
            )
        if not any(segment.messages for segment in segments):
            plan.empty.append(self._name)
        plan.topics[self._name] = Copied(self._record(generation, ids, segments), segments)

    def _without_former(self, segments: list[SegmentRecord], plan: TopicPlan) -> list[SegmentRecord]:
        """Drop archived segments that end after the next segment begins: they belong to former topics.

        They may have no generation, but their end is exact.
        """
        kept: list[SegmentRecord] = []
        for segment in reversed(segments):
            if (
                kept
                and not segment.on_bookies
                and segment.first_index + segment.messages > kept[-1].first_index
            ):
                plan.doubtful.append(
                    f"segment {segment.ledger_id} of {self._name} in the archive, with {segment.messages} messages, is "
                    f"skipped: segment {kept[-1].ledger_id} begins before its end, so it belongs to a former topic of "
                    "that name"
                )
            else:
                kept.append(segment)
        return kept[::-1]

    def _generation(self, ids: Iterable[int]) -> int:
        """Return the topic's generation by the module's rules; 0 if no source has a generation."""
        held = {
            each: self._ledgers.ledgers[each].record.generation
            for each in ids
            if each in self._ledgers.ledgers
        }
        held = {each: generation for each, generation in held.items() if generation}
        if self._before is not None:
            copied = self._before.record.generation
            later = held.keys() - self._ledgers.copied - self._copied.keys()
            if later := {each for each in later if held[each] != copied}:
                return held[max(later)]
            if self._copied or copied in held.values():
                return copied
        archived = {each: self._labels[each].generation for each in ids if each in self._labels}
        archived = {each: generation for each, generation in archived.items() if generation}
        known = held or archived
        if known:
            return known[max(known)]
        return self._before.record.generation if self._before is not None else 0

    def _is_former(self, ledger_id: int, generation: int, plan: TopicPlan) -> bool:
        """Return whether the ledger belongs to a former topic with this name; report it unless it is empty."""
        told, label = self._ledgers.ledgers.get(ledger_id), self._labels.get(ledger_id)
        its, messages = 0, 0
        if label is not None:
            its, messages = label.generation, label.segment.messages
        if told is not None:
            its, end = told.record.generation or its, self._ends.get(ledger_id)
            messages = end.end_index - end.first_index if end is not None else messages
        if its in (0, generation):
            return False
        if messages:
            plan.doubtful.append(
                f"ledger {ledger_id} of {self._name} with {messages} messages is skipped: it belongs to a former topic "
                f"of that name, of generation {its}, not {generation}"
            )
        return True

    def _segment(self, ledger_id: int, generation: int, plan: TopicPlan) -> SegmentRecord | None:
        if self._is_former(ledger_id, generation, plan):
            return None
        told = self._ledgers.ledgers.get(ledger_id)
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
        """Return the pointer to the segment's object that was recorded last; None without an object."""
        found = [known.archive] if known is not None and _is_there(known, self._objects) else []
        found += [label.segment.archive] if label is not None else []
        return max((one for one in found if one is not None), key=lambda one: one.upload, default=None)

    def _tell_gone(self, ledger_id: int, known: SegmentRecord | None, plan: TopicPlan) -> None:
        if ledger_id in self._ledgers.deleted or known is None or not known.is_sealed:
            return  # an unreadable ledger with a label was reported with the ledgers
        if ledger_id in self._ledgers.vanished:
            plan.doubtful.append(
                f"segment {ledger_id} of {self._name} with {known.messages} messages is in no write-ahead log: it was "
                "deleted, or it is lost"
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
            created = [segment.created_ms for segment in segments if segment.created_ms]
            return TopicRecord(
                name=self._name,
                created_ms=min(created, default=self._now_ms),
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
    """Return the ledgers that end after the next segment begins, each with the index before which it must end."""
    return {
        one.ledger_id: behind.first_index
        for topic in plan.topics.values()
        for one, behind in pairwise(topic.segments)
        if one.first_index + one.messages > behind.first_index
    }


def _add_parents(plan: TopicPlan, now_ms: int) -> None:
    """Add records of partitioned topics; a topic that is not in the copy gets as many partitions as were found."""
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
                f"{parent} is restored with {extent} partitions, all that were found; it may have had more"
            )
        elif before.record.partitions:
            partitions = max(before.record.extent, extent)
            plan.topics[str(parent)] = Copied(replace(before.record, partitions=partitions, growth=None), ())
