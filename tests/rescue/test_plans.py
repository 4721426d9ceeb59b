"""Facts in, records out: what follows from labels, tombstones, objects and a copy of the metadata."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.records import (
    ArchivePointer,
    Fragment,
    LedgerRecord,
    LedgerState,
    NamespaceRecord,
    SegmentRecord,
    StateLogRecord,
    TopicRecord,
)
from quire.rescue.bundle_plan import plan_bundles
from quire.rescue.facts import CopyFacts, ask_archive, take_apart
from quire.rescue.ledger_plan import BookieFacts, LedgerPlan, Told, plan_ledgers
from quire.rescue.rescue import Report, tell_unlabelled
from quire.rescue.topic_plan import Archived, Copied, End, TopicPlan, overlaps, plan_topics
from quire.testing.objects import MemoryObjectStore
from quire.tiering import segment_label
from quire.tiering.metadata_copy import CopiedNode, MetadataCopy
from quire.tiering.segment_label import SegmentLabel
from quire.wire.bookie import BookieId

TOPIC = "persistent://t/n/x"
BOOKIES = [BookieId(name, 1) for name in ("a", "b", "c")]


def ledger(
    ledger_id: int,
    *,
    purpose: str = f"topic:{TOPIC}",
    bookies: str = "abc",
    generation: int = 7,
    first: int = 0,
) -> LedgerRecord:
    fragment = Fragment(first_entry=first, bookies=tuple(f"{name}:1" for name in bookies))
    return LedgerRecord(
        ledger_id=ledger_id,
        state=LedgerState.CLOSED,
        write_quorum=3,
        ack_quorum=2,
        fragments=(fragment,),
        purpose=purpose,
        generation=generation,
    )


def bookie(
    at: int, *told: Told, more: set[int] | None = None, deleted: set[int] | None = None
) -> BookieFacts:
    labels = {each.record.ledger_id: each for each in told}
    return BookieFacts(BOOKIES[at], {*labels, *(more or ())}, deleted or set(), labels)


def plan_of(*records: LedgerRecord, deleted: set[int] | None = None) -> LedgerPlan:
    return LedgerPlan({each.ledger_id: Told(each, 0) for each in records}, deleted or set())


def end(first_index: int, messages: int) -> End:
    return End(messages - 1, first_index, first_index + messages, 5, 6, 100)


def segment(ledger_id: int, first_index: int, messages: int, name: str = "") -> SegmentRecord:
    pointer = ArchivePointer(store="file:///a", name=name, bytes=9, crc=1, archived_ms=2) if name else None
    return SegmentRecord(
        ledger_id=ledger_id,
        first_index=first_index,
        sealed_ms=3,
        last_entry=messages - 1,
        messages=messages,
        archive=pointer,
        on_bookies=not name,
    )


def topics(
    ledgers: LedgerPlan,
    ends: dict[int, End],
    copied: dict[str, Copied] | None = None,
    archived: Archived | None = None,
) -> TopicPlan:
    return plan_topics(copied or {}, archived or Archived(), ledgers, ends, 99)


# -- ledgers -----------------------------------------------------------------------------------------------


def test_the_newest_label_holds_whoever_has_it() -> None:
    before, after = ledger(5), ledger(5, bookies="abd", first=10)
    plan = plan_ledgers([bookie(0, Told(before, 0)), bookie(1, Told(after, 1))], {5: Told(before, 0)}, ())
    assert plan.ledgers == {5: Told(after, 1)}
    assert plan_ledgers([bookie(0, Told(before, 0))], {5: Told(after, 1)}, ()).ledgers == {5: Told(after, 1)}


def test_a_tombstone_on_one_bookie_is_the_end() -> None:
    plan = plan_ledgers([bookie(0, Told(ledger(5), 0)), bookie(1, deleted={5})], {}, ())
    assert not plan.ledgers and plan.deleted == {5} and plan.greatest_id == 5 and not plan.nameless


def test_as_many_missing_as_the_ack_quorum_make_it_blind() -> None:
    told = Told(ledger(5), 0)
    one_missing = plan_ledgers([bookie(0, told), bookie(1, told)], {}, BOOKIES)
    assert set(one_missing.missing) == {"c"} and not one_missing.blind
    assert plan_ledgers([bookie(0, told)], {}, BOOKIES).blind
    narrow = Told(LedgerRecord(ledger_id=6, ack_quorum=1, fragments=ledger(6).fragments), 0)
    assert plan_ledgers([bookie(0, narrow), bookie(1)], {}, BOOKIES).blind
    again = BookieFacts(BookieId("b", 2), {5}, set(), {5: told})
    came_back = plan_ledgers([bookie(0, told), again], {}, ())
    assert came_back.forgetful == {"b"} and came_back.blind, "it lost what it had, and c is away"


def test_what_nobody_names_is_said() -> None:
    assert plan_ledgers([bookie(0, more={8, 9}, deleted={9})], {}, ()).nameless == {8: ""}


def on_log(name: str, *, state: LedgerState = LedgerState.OPEN) -> LedgerRecord:
    fragment = Fragment(first_entry=0, bookies=(f"wal-{name}:1",))
    return LedgerRecord(
        ledger_id=5, state=state, write_quorum=1, ack_quorum=1, fragments=(fragment,), last_entry=9
    )


def log(name: str, first: int, last: int, *, is_whole: bool = True) -> BookieFacts:
    spans = {5: (first, last)} if last >= 0 else {}
    return BookieFacts(BookieId(f"wal-{name}", 1), set(spans), spans=spans, is_whole=is_whole)


def test_a_log_that_has_later_blocks_is_the_next_fragment() -> None:
    copied = {5: Told(on_log("a"), 0)}
    moved = plan_ledgers([log("b", 7, 9), log("a", 0, 8)], copied, ()).ledgers[5].record
    assert [(each.first_entry, *each.bookies) for each in moved.fragments] == [(0, "wal-a:1"), (7, "wal-b:1")]
    empty = plan_ledgers([log("b", 0, 9)], copied, ()).ledgers[5].record
    assert [each.bookies for each in empty.fragments] == [("wal-b:1",)] and empty.former == ("wal-a:1",)


def test_a_ledger_has_vanished_when_all_its_logs_are_whole_and_none_has_it() -> None:
    copied = {5: Told(on_log("a", state=LedgerState.CLOSED), 0)}
    for logs in ([log("a", 0, -1)], [log("b", 0, -1)], []):
        plan = plan_ledgers(logs, copied, ())
        assert plan.vanished == {5} and not plan.ledgers and not plan.blind and not plan.missing
    for there in (log("a", 0, 9), log("a", 0, -1, is_whole=False)):
        plan = plan_ledgers([there], copied, ())
        assert set(plan.ledgers) == {5} and not plan.vanished
    assert plan_ledgers([log("a", 0, 9)], {}, ()).nameless == {5: "entries 0 to 9 in wal-a"}


# -- topics ------------------------------------------------------------------------------------------------


def test_segments_are_in_order_and_their_totals_told_by_blocks() -> None:
    plan = topics(plan_of(ledger(9), ledger(5)), {9: end(30, 10), 5: end(0, 30)})
    made = plan.topics[TOPIC]
    assert [(s.ledger_id, s.first_index, s.messages, s.on_bookies) for s in made.segments] == [
        (5, 0, 30, True),
        (9, 30, 10, True),
    ]
    assert made.record.generation == 7 and not plan.lost and plan.messages == 40


def test_a_gap_is_a_loss() -> None:
    plan = topics(plan_of(ledger(5), ledger(9)), {5: end(0, 30), 9: end(35, 10)})
    assert plan.lost == [f"5 messages of {TOPIC}, from message 30 on"]


def test_an_end_beyond_the_next_beginning_is_to_be_cut() -> None:
    plan = topics(plan_of(ledger(5), ledger(9)), {5: end(0, 32), 9: end(30, 10)})
    assert overlaps(plan) == {5: 30}


def test_what_is_in_the_archive_alone_is_told_by_its_label() -> None:
    archived = Archived({"segments/5"}, [SegmentLabel(topic=TOPIC, segment=segment(5, 0, 30, "segments/5"))])
    plan = topics(plan_of(ledger(9), deleted={5}), {9: end(30, 10)}, archived=archived)
    first, second = plan.topics[TOPIC].segments
    assert (first.ledger_id, first.on_bookies, second.ledger_id) == (5, False, 9) and not plan.lost


def test_what_the_copy_names_and_nobody_has_is_trimmed_or_lost() -> None:
    known = {TOPIC: Copied(TopicRecord(name=TOPIC, generation=7), [segment(5, 0, 30), segment(9, 30, 10)])}
    lost = topics(plan_of(ledger(9)), {9: end(30, 10)}, known)
    assert lost.lost == [f"segment 5 of {TOPIC} with 30 messages"]
    trimmed = topics(plan_of(ledger(9), deleted={5}), {9: end(30, 10)}, known)
    assert not trimmed.lost and [s.ledger_id for s in trimmed.topics[TOPIC].segments] == [9]
    gone = {TOPIC: Copied(TopicRecord(name=TOPIC, generation=7), [segment(5, 0, 30, "segments/5")])}
    doubtful = topics(plan_of(ledger(9)), {9: end(30, 10)}, gone)
    assert "is not in the archive" in doubtful.doubtful[0] and not doubtful.lost
    vanished = topics(LedgerPlan({9: Told(ledger(9), 0)}, vanished={5}), {9: end(30, 10)}, known)
    assert "is in no write-ahead log: " in vanished.doubtful[0] and not vanished.lost


def test_a_former_topic_of_the_same_name_does_not_come_back() -> None:
    plan = topics(plan_of(ledger(5, generation=6), ledger(9)), {5: end(0, 30), 9: end(0, 10)})
    assert [s.ledger_id for s in plan.topics[TOPIC].segments] == [9] and not plan.lost


def test_an_archived_segment_of_a_former_topic_of_the_same_name_does_not_come_back() -> None:
    archived = Archived({"segments/5"}, [SegmentLabel(topic=TOPIC, segment=segment(5, 0, 30, "segments/5"))])
    plan = topics(plan_of(ledger(9)), {9: end(0, 10)}, archived=archived)
    assert [s.ledger_id for s in plan.topics[TOPIC].segments] == [9] and not plan.lost
    assert "segment 5" in plan.doubtful[0] and "belongs to a former topic" in plan.doubtful[0]


def label(segment: SegmentRecord, generation: int = 0) -> SegmentLabel:
    return SegmentLabel(topic=TOPIC, segment=segment, generation=generation)


def test_a_topic_that_was_made_again_after_the_copy_comes_back_whatever_clocks_said() -> None:
    """The former topic's broker had a clock that was ahead, so its generation is the greater number."""
    former = Copied(TopicRecord(name=TOPIC, generation=9_000, terminated=True), [segment(90, 0, 50)])
    ledgers = plan_of(ledger(90, generation=9_000), ledger(101, generation=7), deleted={90})
    del ledgers.ledgers[90]
    plan = topics(ledgers, {101: end(0, 500)}, {TOPIC: former})
    made = plan.topics[TOPIC]
    assert [s.ledger_id for s in made.segments] == [101] and plan.messages == 500
    assert made.record.generation == 7 and not made.record.terminated
    assert len(plan.doubtful) == 1 and "created again after the copy" in plan.doubtful[0] and not plan.lost


def test_ledgers_that_the_copy_knows_do_not_bring_back_a_former_topic() -> None:
    """Their deletion had failed before the copy; their ids may be the greater ones, for each broker has a range."""
    known = {TOPIC: Copied(TopicRecord(name=TOPIC, generation=7), [segment(9, 0, 10)])}
    ledgers = plan_of(ledger(9), ledger(205, generation=6))
    ledgers.copied = {9, 205}
    plan = topics(ledgers, {9: end(0, 10), 205: end(0, 30)}, known)
    assert [s.ledger_id for s in plan.topics[TOPIC].segments] == [9]
    assert plan.doubtful == [
        f"ledger 205 of {TOPIC} with 30 messages is skipped: it belongs to a former topic of that name, of "
        "generation 6, not 7"
    ]


def test_without_a_copy_the_greatest_ledger_tells_the_generation_and_others_are_named() -> None:
    plan = topics(plan_of(ledger(5, generation=9_000), ledger(9)), {5: end(0, 30), 9: end(0, 10)})
    assert [s.ledger_id for s in plan.topics[TOPIC].segments] == [9]
    assert plan.topics[TOPIC].record.generation == 7 and "ledger 5 " in plan.doubtful[0]


def test_a_topic_that_is_in_the_archive_alone_keeps_its_generation() -> None:
    archived = Archived({"segments/5"}, [label(segment(5, 0, 30, "segments/5"), generation=7)])
    plan = topics(plan_of(deleted={5}), {}, archived=archived)
    assert plan.topics[TOPIC].record.generation == 7 and not plan.doubtful
    archived = Archived({"segments/5"}, [label(segment(5, 0, 30, "segments/5"))])
    plan = topics(plan_of(deleted={5}), {}, archived=archived)
    assert plan.topics[TOPIC].record.generation == 99 and "subscriptions" in plan.doubtful[0]


def test_an_archived_segment_of_another_generation_is_passed_over_and_named() -> None:
    archived = Archived({"segments/5"}, [label(segment(5, 0, 30, "segments/5"), generation=6)])
    plan = topics(plan_of(ledger(9)), {9: end(30, 10)}, archived=archived)
    assert [s.ledger_id for s in plan.topics[TOPIC].segments] == [9]
    assert "ledger 5 " in plan.doubtful[0] and "generation 6, not 7" in plan.doubtful[0]


@pytest.mark.parametrize("names", [("segments/5-a", "segments/5-b"), ("segments/5-b", "segments/5-a")])
@pytest.mark.parametrize("copied", [False, True])
def test_of_two_objects_of_a_segment_the_one_recorded_last_counts(
    names: tuple[str, str], copied: bool
) -> None:
    damaged, repaired = (segment(5, 0, 30, name) for name in names)
    assert repaired.archive is not None
    repaired = replace(repaired, archive=replace(repaired.archive, archived_ms=1, upload=1))
    found = Archived(set(names), [label(repaired, 7)] if copied else [label(damaged, 7), label(repaired, 7)])
    known = {TOPIC: Copied(TopicRecord(name=TOPIC, generation=7), [damaged])} if copied else {}
    plan = topics(plan_of(deleted={5}), {}, known, found)
    (only,) = plan.topics[TOPIC].segments
    assert only.archive == repaired.archive


async def test_an_object_of_another_cluster_is_passed_over_and_named() -> None:
    objects = MemoryObjectStore()
    await objects.put_whole("segments/5", [b"x"])
    foreign = replace(label(segment(5, 0, 30, "segments/5")), cluster="another")
    await objects.put_whole("segments/5.label", [segment_label.make(foreign)])
    archived, unreadable = await ask_archive(objects, {}, lambda *_: None, "c")
    assert not archived.labels and not unreadable
    assert archived.foreign == ["object segments/5 belongs to cluster another, and is skipped"]


async def test_an_object_without_a_label_is_a_loss_only_where_no_copy_would_name_it() -> None:
    objects = MemoryObjectStore()
    await objects.put_whole("segments/5", [b"x"])
    archived, unreadable = await ask_archive(objects, {}, lambda *_: None, "c")
    assert (archived.unlabelled, unreadable) == (["segments/5"], [])
    for copy, lost, doubtful in ((CopyFacts(), 1, 0), (CopyFacts(taken_ms=1), 0, 1)):
        report = Report()
        tell_unlabelled(archived.unlabelled, copy, report)
        assert (len(report.lost), len(report.doubtful)) == (lost, doubtful)


def test_ids_that_were_given_out_before_the_copy_are_not_given_again() -> None:
    nodes = (CopiedNode(paths.LEDGER_IDS, 17, b""),)
    assert take_apart(MetadataCopy("c", 1, nodes)).id_ranges == 17 and take_apart(None).id_ranges == 0


def test_a_copy_whose_tail_bookies_lost_is_read_from_the_archive() -> None:
    known = {TOPIC: Copied(TopicRecord(name=TOPIC, generation=7), [segment(5, 0, 30, "segments/5")])}
    plan = topics(plan_of(ledger(5)), {5: end(0, 20)}, known, Archived({"segments/5"}))
    (only,) = plan.topics[TOPIC].segments
    assert only.messages == 30 and not only.on_bookies and not plan.lost


def test_partitions_have_a_parent() -> None:
    part = f"{TOPIC}-partition-2"
    plan = topics(plan_of(ledger(5, purpose=f"topic:{part}")), {5: end(0, 1)})
    assert plan.topics[TOPIC].record.partitions == 3 and "it may have had more" in plan.doubtful[0]
    known = {TOPIC: Copied(TopicRecord(name=TOPIC, partitions=8), ())}
    plan = topics(plan_of(ledger(5, purpose=f"topic:{part}")), {5: end(0, 1)}, known)
    assert plan.topics[TOPIC].record.partitions == 8 and not plan.doubtful


# -- bundles -----------------------------------------------------------------------------------------------


def test_state_logs_are_where_their_ledgers_say() -> None:
    low, high = "state:t/n/00000000_80000000", "state:t/n/80000000_ffffffff"
    ledgers = plan_of(ledger(5, purpose=low), ledger(6, purpose=high), ledger(7, purpose=low))
    plan = plan_bundles({}, {}, ledgers, {5, 6}, ["t/n"])
    assert plan.logs == {
        "t/n/00000000_80000000": StateLogRecord(ledgers=(5,)),
        "t/n/80000000_ffffffff": StateLogRecord(ledgers=(6,)),
    }
    assert plan.bare == ["t/n"] and plan.namespaces["t/n"].boundaries == ("00000000", "80000000", "ffffffff")


def test_a_bundle_that_was_split_since_the_copy_went_on_as_the_lower_part() -> None:
    whole, high = "00000000_ffffffff", "80000000_ffffffff"
    copied = {"t/n": NamespaceRecord(tenant="t", name="n")}
    ledgers = plan_of(ledger(5, purpose=f"state:t/n/{whole}"), ledger(6, purpose=f"state:t/n/{high}"))
    plan = plan_bundles(copied, {f"t/n/{whole}": StateLogRecord(ledgers=(5,))}, ledgers, {5, 6}, ())
    assert plan.logs["t/n/00000000_80000000"].ledgers == (5,) and plan.logs[f"t/n/{high}"].ledgers == (6,)
    assert not plan.bare
