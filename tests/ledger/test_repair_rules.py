"""Decisions of repair: the table of `repair_core`, absences, the rate limit."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from quire.ledger import states
from quire.ledger.repair_core import Absences, Copy, Plan, View, plan
from quire.metadata.records import BookieIntent, BookieRecord, LedgerRecord, LedgerState
from quire.wire.bookie import BookieId


def bookie(name: str, **changes: object) -> BookieRecord:
    return BookieRecord(**({"uuid": name, "incarnation": 1} | changes))  # type: ignore[arg-type]


def view(
    up: str,
    *,
    absent: str = "",
    gone: str = "",
    drained: str = "",
    damaged: Sequence[str] = (),
    **records: BookieRecord,
) -> View:
    """A view of bookies with names of one letter."""
    known = {name: bookie(name) for name in up + absent + gone}
    known |= {name: bookie(name, intent=BookieIntent.DRAIN) for name in drained}
    available = {name: bookie(name) for name in up + drained} | records
    return View(known | records, available, frozenset(gone), {7: set(damaged)})


def ledger(*ensembles: str, wq: int = 3, aq: int = 2, last: int = 29) -> LedgerRecord:
    """A closed ledger whose n-th fragment begins with entry 10 n."""
    return LedgerRecord(
        ledger_id=7,
        state=LedgerState.CLOSED,
        write_quorum=wq,
        ack_quorum=aq,
        fragments=tuple(
            states.fragment(10 * n, [BookieId(name, 1) for name in each]) for n, each in enumerate(ensembles)
        ),
        last_entry=last,
    )


def planned(record: LedgerRecord, seen: View) -> Plan:
    return plan(record, seen, {}, lambda: 0.5)


def names(bookies: Sequence[BookieId]) -> str:
    return "".join(each.uuid for each in bookies)


def test_the_table_of_copies() -> None:
    seen = view("ab", absent="c", gone="d", drained="e", damaged=["b:1"], f=bookie("f", incarnation=2))
    judged = {name: seen.judge(7, BookieId(name, 1)) for name in "abcdefz"}
    assert judged == {
        "a": Copy.GOOD,
        "b": Copy.DAMAGED,
        "c": Copy.ABSENT,
        "d": Copy.LOST,
        "e": Copy.LEAVING,
        "f": Copy.LOST,
        "z": Copy.LOST,
    }
    assert seen.judge(8, BookieId("b", 1)) is Copy.GOOD, "damage is of one ledger"


def test_an_absent_bookie_that_was_given_up_is_lost_at_once() -> None:
    known = {"a": bookie("a", intent=BookieIntent.GIVE_UP)}
    assert View(known, {}, (), {}).judge(7, BookieId("a", 1)) is Copy.LOST
    assert View(known, {"a": bookie("a")}, (), {}).judge(7, BookieId("a", 1)) is Copy.GOOD


def test_a_ledger_in_recovery_may_come_to_name_any_bookie_that_drains() -> None:
    seen = view("abc", drained="de")
    opened, recovered = (
        replace(ledger("abd"), state=state) for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY)
    )
    assert planned(opened, seen).left == {"d"}
    assert planned(recovered, seen).left == {"d", "e"}


def test_a_whole_ledger_and_an_absent_bookie_need_nothing() -> None:
    assert planned(ledger("abc"), view("abcd")) == Plan()
    assert planned(ledger("abc"), view("abd", absent="c")) == Plan()


def test_a_lost_copy_is_made_on_another_bookie_from_the_good_ones() -> None:
    (made,) = planned(ledger("abc"), view("abd", gone="c")).fragments
    assert (names(made.targets), names(made.bookies)) == ("d", "abd")
    assert (made.first_entry, made.last_entry) == (0, 29)
    assert set(names(made.sources[:2])) == {"a", "b"} and names(made.sources[2:]) == "c"


def test_each_fragment_is_judged_alone() -> None:
    made = planned(ledger("abc", "abd", "cde"), view("abde", gone="c")).fragments
    assert [(each.fragment, each.first_entry, each.last_entry) for each in made] == [(0, 0, 9), (2, 20, 29)]


def test_narrow_fragments_are_widened() -> None:
    (made,) = planned(ledger("ab"), view("abc")).fragments
    assert names(made.bookies) == "abc"


def test_without_another_bookie_a_lost_one_keeps_its_place() -> None:
    answer = planned(ledger("abc"), view("ab", gone="c"))
    assert answer == Plan(left=frozenset("c"), is_unplaced=True)


def test_a_drained_bookie_goes_without_replacement_only_if_the_ack_quorum_is_left() -> None:
    (made,) = planned(ledger("abc"), view("ab", drained="c")).fragments
    assert (names(made.bookies), made.targets) == ("ab", ())
    assert planned(ledger("abc"), view("a", absent="b", drained="c")).fragments == ()
    assert planned(ledger("abc", aq=3), view("ab", drained="c")).left == {"c"}


def test_a_drained_bookie_is_a_source_and_its_copy_moves() -> None:
    (made,) = planned(ledger("c", wq=1, aq=1), view("ab", drained="c")).fragments
    assert names(made.sources) == "c" and names(made.bookies) in ("a", "b")


def test_a_damaged_copy_moves_to_another_bookie() -> None:
    (made,) = planned(ledger("abc"), view("abcd", damaged=["c:1"])).fragments
    assert (names(made.targets), names(made.bookies)) == ("d", "abd")


def test_a_damaged_copy_without_another_bookie_is_made_whole_where_it_is() -> None:
    answer = planned(ledger("abc"), view("abc", damaged=["c:1"]))
    (made,) = answer.fragments
    assert (names(made.targets), names(made.bookies), answer.is_unplaced) == ("c", "abc", False)
    read_only = view("ab", c=bookie("c", read_only=True), damaged=["c:1"])
    assert planned(ledger("abc"), read_only).fragments == ()


def test_a_bookie_that_lost_state_gets_its_copy_again() -> None:
    (made,) = planned(ledger("abc"), view("ab", c=bookie("c", incarnation=2))).fragments
    assert made.targets == (BookieId("c", 2),)
    assert made.bookies == (BookieId("a", 1), BookieId("b", 1), BookieId("c", 2))


def test_read_only_and_drained_bookies_get_no_copies() -> None:
    seen = view("ab", gone="c", drained="e", d=bookie("d", read_only=True))
    assert planned(ledger("abc"), seen).is_unplaced


def test_an_open_ledger_is_left_to_its_owner() -> None:
    record = LedgerRecord(ledger_id=7, write_quorum=3, ack_quorum=2, fragments=ledger("abc").fragments)
    assert planned(record, view("abd", gone="c")) == Plan(left=frozenset("c"), is_open=True)


def test_the_record_remembers_who_may_still_have_bytes() -> None:
    record = states.repaired(ledger("abc", "abd"), 0, [BookieId(name, 1) for name in "abe"])
    assert record.former == ("c:1",)
    record = states.repaired(record, 1, [BookieId(name, 1) for name in "abc"])
    assert record.former == ("d:1",), "c has a place again"


def test_patience_counts_from_the_first_look_and_ends_when_the_bookie_is_back() -> None:
    absences = Absences(600)
    absences.update("ab", {"a"}, 0)
    absences.update("ab", {"a"}, 599)
    assert (absences.absent_too_long(599), absences.absent_too_long(600)) == (set(), {"b"})
    absences.update("ab", {"a", "b"}, 700)
    absences.update("ab", {"a"}, 800)
    assert absences.absent_too_long(1_399) == set()
    assert absences.absent() == {"b"}
    absences.update("a", {"a"}, 900)
    assert absences.absent() == set(), "a retired bookie is no absent one"
