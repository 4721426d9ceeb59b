"""Each anomaly is found in a small history that has it, alone; histories that only look odd are clean."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.history.checker import Promises, check, check_file
from tests.history.operations import F, Message, Operation, Outcome, Position, Recorder, load, save

TOPIC = "t"


def history(text: str) -> list[Operation]:
    """A line: `process f outcome [name][*][+] value[@ledger:entry[:batch]]...`; * is shared, + cumulative."""
    operations = []
    for number, line in enumerate(filter(str.strip, text.splitlines())):
        process, f, outcome, *rest = line.split()
        name = rest.pop(0) if rest and not rest[0][0].isdigit() else ""
        operations.append(
            Operation(
                process,
                F(f),
                Outcome(outcome),
                TOPIC,
                tuple(map(message, rest)),
                subscription=name.rstrip("*+"),
                is_shared="*" in name,
                is_cumulative="+" in name,
                time_s=float(number),
            )
        )
    return operations


def message(word: str) -> Message:
    value, _, place = word.partition("@")
    return Message(int(value), Position(*map(int, place.split(":"))) if place else None)


def kinds(text: str, *promises: Promises) -> list[str]:
    return [anomaly.kind for anomaly in check(history(text), *promises)]


EXACTLY_ONCE = Promises(without_duplicates=(TOPIC,))
SENT = """
    p send invoke 1
    p send ok 1@5:0
    p send invoke 2
    p send ok 2@5:1
    p send invoke 3
    p send ok 3@6:0
"""
READ = """
    r attach ok
    r poll ok 1@5:0
    r poll ok 2@5:1
    r poll ok 3@6:0
"""

CLEAN = {
    "a plain history": SENT + READ,
    "batches": """
    p send invoke 1 2
    p send ok 1@5:0:0 2@5:0:1
    r attach ok
    r poll ok 1@5:0:0 2@5:0:1
    """,
    "a send with an unknown outcome that happened": """
    p send invoke 1
    p send info 1
    r attach ok
    r poll ok 1@5:0
    """,
    "a send with an unknown outcome that did not": """
    p send invoke 1
    r attach ok
    """,
    "a failed send": """
    p send invoke 1
    p send fail 1
    r attach ok
    """,
    "a message that was written twice where that may be": """
    p send invoke 1
    p send ok 1@5:1
    r attach ok
    r poll ok 1@5:0
    r poll ok 1@5:1
    """,
    "a consumer that attaches anew": SENT
    + """
    c attach ok s
    c poll ok s 1@5:0
    c poll ok s 2@5:1
    c attach ok s
    c poll ok s 1@5:0
    c poll ok s 2@5:1
    c poll ok s 3@6:0
    """,
    "what is acknowledged does not come again": SENT
    + READ
    + """
    c attach ok s
    c poll ok s 1@5:0
    c poll ok s 2@5:1
    c ack invoke s 2@5:1
    c attach ok s
    c poll ok s 1@5:0
    c poll ok s 3@6:0
    """,
    "an acknowledgement that was not answered": SENT
    + READ
    + """
    c attach ok s
    c poll ok s 1@5:0
    c ack invoke s 1@5:0
    c attach ok s
    c poll ok s 1@5:0
    c ack ok s 1@5:0
    """,
    "a shared subscription": SENT
    + READ
    + """
    c attach ok s*
    d attach ok s*
    c poll ok s 3@6:0
    d poll ok s 2@5:1
    c poll ok s 1@5:0
    """,
    "acknowledged by another subscription": SENT
    + READ
    + """
    c attach ok s
    c poll ok s 3@6:0
    c ack invoke s+ 3@6:0
    c ack ok s+ 3@6:0
    d attach ok other
    d poll ok other 1@5:0
    """,
    "answers in another order than sends": """
    p send invoke 1
    p send invoke 2
    p send ok 2@5:1
    p send ok 1@5:0
    r attach ok
    r poll ok 1@5:0
    r poll ok 2@5:1
    """,
}

ANOMALIES = {
    "inconsistent position": """
    p send invoke 1
    p send ok 1@5:0
    p send invoke 2
    p send info 2
    r attach ok
    r poll ok 1@5:0
    q attach ok
    q poll ok 2@5:0
    """,
    "duplicate": """
    p send invoke 1
    p send ok 1@5:0
    r attach ok
    r poll ok 1@5:0
    r poll ok 1@5:1
    """,
    "phantom": """
    r attach ok
    r poll ok 1@5:0
    """,
    "aborted read": """
    p send invoke 1
    p send fail 1
    r attach ok
    r poll ok 1@5:0
    """,
    "lost write": SENT
    + """
    r attach ok s*
    r poll ok s 1@5:0
    r poll ok s 3@6:0
    """,
    "unseen": SENT
    + """
    r attach ok
    r poll ok 1@5:0
    r poll ok 2@5:1
    """,
    "poll skip": SENT
    + READ
    + """
    q attach ok
    q poll ok 1@5:0
    q poll ok 3@6:0
    """,
    "nonmonotonic poll": SENT
    + READ
    + """
    q attach ok
    q poll ok 2@5:1
    q poll ok 1@5:0
    """,
    "nonmonotonic send": """
    p send invoke 1
    p send ok 1@5:1
    p send invoke 2
    p send ok 2@5:0
    r attach ok
    r poll ok 2@5:0
    r poll ok 1@5:1
    """,
    "acknowledged read": SENT
    + READ
    + """
    c attach ok s
    c poll ok s 1@5:0
    c ack invoke s 1@5:0
    c ack ok s 1@5:0
    c attach ok s
    c poll ok s 1@5:0
    """,
    "internal poll skip": SENT
    + READ
    + """
    q attach ok
    q poll ok 1@5:0 3@6:0
    """,
    "internal nonmonotonic poll": SENT
    + READ
    + """
    q attach ok
    q poll ok 2@5:1 1@5:0
    """,
    "internal nonmonotonic send": """
    p send invoke 1 2
    p send ok 1@5:1 2@5:0
    r attach ok
    r poll ok 2@5:0
    r poll ok 1@5:1
    """,
}


@pytest.mark.parametrize("text", CLEAN.values(), ids=CLEAN)
def test_nothing_is_wrong_with(text: str) -> None:
    assert not check(history(text))


@pytest.mark.parametrize("kind", ANOMALIES)
def test_an_anomaly_is_found_and_no_other(kind: str) -> None:
    assert kinds(ANOMALIES[kind], EXACTLY_ONCE) == [kind]


def test_a_duplicate_is_one_only_where_they_are_dropped() -> None:
    assert kinds(ANOMALIES["duplicate"]) == []


def test_unseen_is_judged_only_when_all_was_read() -> None:
    assert kinds(ANOMALIES["unseen"], Promises(is_complete=False)) == []
    assert kinds(ANOMALIES["lost write"], Promises(is_complete=False)) == ["lost write"]


def test_a_cumulative_acknowledgement_covers_all_before_it() -> None:
    text = (
        SENT
        + READ
        + """
    c attach ok s
    c poll ok s 1@5:0
    c poll ok s 2@5:1
    c ack invoke s+ 2@5:1
    c ack ok s+ 2@5:1
    c attach ok s
    c poll ok s 1@5:0
    """
    )
    assert kinds(text) == ["acknowledged read"]
    assert kinds(text.replace("s+", "s")) == []


def test_a_redelivery_that_began_before_the_answer_is_none() -> None:
    text = (
        SENT
        + READ
        + """
    c attach ok s*
    c poll ok s 1@5:0
    d attach ok s*
    c ack invoke s 1@5:0
    c ack ok s 1@5:0
    d poll ok s 1@5:0
    """
    )
    assert kinds(text) == []


def test_topics_are_judged_apart() -> None:
    operations = history(SENT + READ)
    other = [Operation("q", F.POLL, Outcome.OK, "other", (Message(9, Position(1, 1)),))]
    assert [(each.kind, each.topic) for each in check([*operations, *other])] == [("phantom", "other")]


def test_an_anomaly_shows_its_operations() -> None:
    (anomaly,) = check(history(ANOMALIES["poll skip"]))
    assert str(anomaly).splitlines()[0].startswith("poll skip on t: [2] lie between 1 at")
    assert [operation.process for operation in anomaly.shown_by] == ["q", "q"]
    assert "q: poll ok t 3@6:0:0" in str(anomaly)


def test_a_history_is_kept_in_a_file(tmp_path: Path) -> None:
    operations = history(CLEAN["what is acknowledged does not come again"])
    save(operations, tmp_path / "history.jsonl")
    assert list(load(tmp_path / "history.jsonl")) == operations
    assert not check_file(tmp_path / "history.jsonl", [TOPIC])
    assert not list(load(tmp_path / "history.jsonl", "other"))


def test_anomalies_are_found_in_a_file(tmp_path: Path) -> None:
    both = history(ANOMALIES["poll skip"])
    both += [msgspec.structs.replace(operation, topic="other") for operation in history(ANOMALIES["phantom"])]
    save(both, tmp_path / "history.jsonl")
    assert [each.kind for each in check_file(tmp_path / "history.jsonl", [TOPIC, "other"])] == [
        "poll skip",
        "phantom",
    ]


def test_a_recorder_writes_as_it_goes_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    record = Recorder(file)
    record("p", F.SEND, Outcome.INVOKE, TOPIC, [Message(1)])
    record("c", F.ACK, Outcome.OK, TOPIC, [Message(1, Position(5, 0))], subscription="s", is_cumulative=True)
    record.close()
    first, second = load(file)
    assert (first.process, first.outcome, first.messages) == ("p", Outcome.INVOKE, (Message(1),))
    assert second.is_cumulative and second.messages == (Message(1, Position(5, 0)),)
    assert record.topics == {TOPIC: 2} and record.kinds[F.ACK, Outcome.OK] == 1
    assert second.time_s >= first.time_s
    file.write_bytes(file.read_bytes()[:-3])
    assert list(load(file)) == [first]
