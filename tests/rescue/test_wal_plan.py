"""What the objects of a write-ahead log say of its record."""

from __future__ import annotations

from uuid import UUID

from quire.metadata.records import WalRecord, WalState
from quire.rescue.wal_plan import WalFacts, WalPlan, plan_wal
from quire.wal.wal_object import FENCE_BYTES, Catalogue, Header, Kind, SetEntry, data_name

WAL = str(UUID(int=7))


def set_of(first: int, last: int, unique: str = "a") -> SetEntry:
    return SetEntry(f"wal/{WAL}/set-{last:08x}-{unique}", 1_000, 5, first, last)


def facts(
    *seqs: int, fence: int = -1, trim: int = 0, confirmed: int | None = None, **catalogues: Catalogue
) -> WalFacts:
    """A log with these data objects; the last was cut when all up to `confirmed`, else all before it, were durable."""
    found = WalFacts(WAL, {data_name(WAL, seq): 500 for seq in seqs})
    if fence >= 0:
        found.sizes[data_name(WAL, fence)] = FENCE_BYTES
    if seqs:
        durable = seqs[-1] - 1 if confirmed is None else confirmed
        found.last = Header(Kind.DATA, WAL, seqs[-1], trim, durable, 0, 1, 1, 96, 500, 0, 0, 0)
    for name, catalogue in catalogues.items():
        found.catalogues[name] = catalogue, 9
        found.sizes |= {name: 50} | {each.name: each.bytes for each in catalogue.sets}
    return found


def plan(of: WalFacts, copied: WalRecord | None = None) -> WalPlan:
    return plan_wal(of, copied, "s3://bucket")


def told(found: WalPlan) -> tuple[WalState, int, str]:
    assert found.record is not None and not found.damage
    return found.record.state, found.record.trim_seq, found.record.catalogue


def test_a_log_that_nobody_copied_begins_with_its_first_object() -> None:
    found = plan(facts(0, 1, 2))
    assert told(found) == (WalState.OPEN, 0, "") and not found.doubtful


def test_a_hole_that_was_never_durable_stays_for_the_close() -> None:
    """Uploads of a window come in any order: what is behind the hole was not acknowledged."""
    assert told(plan(facts(2, 3, confirmed=-1))) == (WalState.OPEN, 0, "")
    assert told(plan(facts(0, 1, 3, confirmed=1))) == (WalState.OPEN, 0, "")


def test_sets_and_the_last_header_tell_the_trim_point() -> None:
    one = Catalogue((set_of(0, 4),))
    assert told(plan(facts(5, 6, c=one))) == (WalState.OPEN, 5, "c")
    assert told(plan(facts(3, 7, 8, trim=7, c=one))) == (WalState.OPEN, 7, "c")
    copied = WalRecord(uuid=WAL, broker="b", store="", trim_seq=9)
    found = plan(facts(9, 10, c=one), copied)
    assert told(found) == (WalState.OPEN, 9, "c") and found.record is not None
    assert found.record.broker == "b"


def test_what_was_all_dead_when_it_was_trimmed_is_doubtful_and_no_hole() -> None:
    found = plan(facts(5, 6, confirmed=5))
    assert told(found) == (WalState.OPEN, 5, "")
    assert "objects 0 to 4" in found.doubtful[0]
    assert told(plan(facts(8, confirmed=5)))[1] == 6, "7 and 8 were under way; 6 was not there"
    found = plan(facts(fence=9, c=Catalogue((set_of(0, 4),))))
    assert told(found) == (WalState.OPEN, 9, "c") and "objects 5 to 8" in found.doubtful[0]


def test_of_catalogues_the_one_that_reaches_furthest_counts() -> None:
    older, newer = Catalogue((set_of(0, 4),)), Catalogue((set_of(0, 4), set_of(5, 9)))
    assert told(plan(facts(10, a=older, b=newer))) == (WalState.OPEN, 10, "b")
    fewer = Catalogue((set_of(5, 9),), {3: 1})
    found = facts(10, b=newer, c=fewer)
    assert told(plan(found)) == (WalState.OPEN, 10, "c") and found.tombstones == {3: 1}


def test_an_older_catalogue_whose_sets_are_gone_is_no_damage() -> None:
    found = facts(10, a=Catalogue((set_of(0, 4),)), b=Catalogue((set_of(0, 9, "b"),)))
    del found.sizes[set_of(0, 4).name]
    assert told(plan(found)) == (WalState.OPEN, 10, "b")


def test_a_set_that_is_gone_and_a_catalogue_that_is_rotten_are_damage() -> None:
    found = facts(10, a=Catalogue((set_of(0, 4), set_of(5, 9))))
    found.sizes[set_of(5, 9).name] = 3
    assert set_of(5, 9).name in plan(found).damage[0]
    found = facts(5)
    found.unreadable.append("it is rotten")
    assert plan(found).damage == ["it is rotten"]


def test_a_set_that_is_gone_with_all_that_its_catalogue_has_is_doubtful() -> None:
    """Its ledgers were deleted, the record named no catalogue any more, and this one was to go."""
    found = facts(a=Catalogue((set_of(0, 4),)))
    del found.sizes[set_of(0, 4).name]
    made = plan(found)
    assert told(made) == (WalState.OPEN, 5, "") and "is missing" in made.doubtful[0]
    found.sizes |= facts(2, 3).sizes
    assert told(plan(found))[1] == 2, "what is there counts"


def test_an_end_that_is_known_is_final() -> None:
    copied = WalRecord(uuid=WAL, broker="b", store="", state=WalState.CLOSED, end_seq=9, lost=(4,))
    found = plan(facts(0, 1), copied)
    assert told(found) == (WalState.CLOSED, 0, "") and found.record is not None
    assert (found.record.end_seq, found.record.lost) == (9, (4,))
    assert told(plan(facts(c=Catalogue((set_of(0, 4),))), copied))[1] == 9


def test_nothing_is_left_of_a_log_with_a_fence_alone_unless_it_may_be_written_still() -> None:
    closed = WalRecord(uuid=WAL, broker="b", store="", state=WalState.CLOSED, end_seq=9)
    assert plan(facts(fence=9)).record is None
    assert plan(facts(fence=9), closed).record is None
    assert told(plan(facts(), WalRecord(uuid=WAL, broker="b", store=""))) == (WalState.OPEN, 0, "")
