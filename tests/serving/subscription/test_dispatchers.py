"""Every dispatcher against a model that follows each entry: random histories, and scenarios as text.

A scenario is a file of events and what follows from them; `QUIRE_REWRITE=1 pytest …` writes what follows anew, to be
reviewed as a diff. The model checks every step of a scenario as well.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.serving.model.ports import Position
from quire.serving.subscription.dispatch import shared, shared_queue
from tests.serving.subscription.machine import Machine

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))

names = st.sampled_from("abc")
entries = st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True)
steps = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=1, max_size=6)),
    st.tuples(st.just("publish keys"), st.lists(st.sampled_from("klmnop"), min_size=1, max_size=6)),
    st.tuples(st.just("flow"), st.tuples(names, st.integers(1, 12))),
    st.tuples(st.just("attach"), st.tuples(names, st.integers(0, 1))),
    st.tuples(st.just("detach"), names),
    st.tuples(st.just("ack"), entries),
    st.tuples(st.just("ack up to"), st.integers(0, 12)),
    st.tuples(st.just("ack part"), st.tuples(st.integers(0, 12), st.integers(0, 31))),
    st.tuples(st.just("again"), st.tuples(names, st.one_of(st.none(), entries))),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("seek"), st.integers(0, 12)),
)


KINDS = ["exclusive", "failover", "shared", "key-shared", "key-shared-any-order"]


def do(machine: Machine, what: str, given_: object) -> None:
    ledger = machine.topic.ledgers[-1]
    match what, given_:
        case "publish", list(counts):
            machine.publish(counts)
        case "publish keys", list(keys):
            machine.publish_keys(keys)
        case "publish chunks", list(words):
            machine.publish_chunks(words)
        case "flow", (name, permits):
            if name in machine.consumers:
                machine.flow(name, permits)
        case "attach", (name, level):
            if name not in machine.consumers:
                machine.attach(name, level)
        case "detach", name:
            if name in machine.consumers:
                machine.detach(name)
        case "detach together", set(leaving):
            for name in sorted(machine.consumers.keys() & leaving):
                machine.detach(name)
        case "ack", list(some):
            machine.ack(ledger, some)
        case "ack up to", entry:
            if not machine.is_shared:
                machine.ack_up_to(Position(ledger, min(entry, machine.topic.last_entry(ledger))))
        case "ack part", (entry, bits):
            machine.ack_part(Position(ledger, entry), bits)
        case "again", (name, some):
            if name in machine.consumers:
                machine.redeliver(name, None if some is None else {ledger: some})
        case "roll", _:
            machine.topic.roll()
        case "seek", entry:
            machine.seek(Position(ledger, min(entry, machine.topic.last_entry(ledger) + 1)))
    machine.pump()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(
    history=st.lists(steps, max_size=40),
    pace=st.sampled_from([0, 0, 1, 3]),
    joins=st.booleans(),
    unacked_max=st.sampled_from([0, 0, 1, 2, 9]),
)
def test_every_message_is_dispatched_until_acknowledged_and_to_one_at_a_time(
    kind: str, history: list[tuple[str, object]], pace: int, joins: bool, unacked_max: int
) -> None:
    machine = Machine(kind, pace=pace, joins=joins, unacked_max=unacked_max)
    for what, value in history:
        do(machine, what, value)
    dispatch_the_rest(machine)


def dispatch_the_rest(machine: Machine) -> None:
    """Whatever happened: a consumer with permits gets all that is left, and when it is acknowledged nothing is."""
    for name in list(machine.consumers):
        machine.detach(name)
    machine.dispatcher.limit_unacked(0)
    machine.attach("z")
    machine.flow("z", 10_000)
    machine.pump()
    left = [at for at, bits in machine.left.items() if bits]
    assert sorted(machine.dispatched) == left
    for at in left:
        machine.ack(at.ledger_id, [at.entry_id])
    machine.pump()
    assert machine.backlog() == 0 or not machine.dispatcher.read.ahead_known
    assert not machine.cursor.acked and machine.dispatcher.read.unacked == 0


keyed_steps = st.one_of(
    st.tuples(st.just("publish keys"), st.lists(st.sampled_from("klmnop"), min_size=2, max_size=8)),
    st.tuples(st.just("attach"), st.tuples(names, st.just(0))),
    st.tuples(st.just("flow"), st.tuples(names, st.sampled_from([1, 3, 50]))),
    st.tuples(st.just("ack"), entries),
    st.tuples(st.just("again"), st.tuples(names, st.one_of(st.none(), entries))),
    st.tuples(st.just("detach"), names),
    st.tuples(st.just("detach together"), st.sets(names, min_size=1)),
    st.tuples(st.just("seek"), st.integers(0, 30)),
)


@pytest.mark.parametrize("kind", ["key-shared", "key-shared-any-order"])
@settings(max_examples=100, deadline=None)
@given(
    history=st.lists(keyed_steps, min_size=8, max_size=30), pace=st.sampled_from([0, 1]), joins=st.booleans()
)
def test_keys_keep_their_order_while_consumers_come_and_go(
    kind: str, history: list[tuple[str, object]], pace: int, joins: bool
) -> None:
    machine = Machine(kind, pace=pace, joins=joins)
    for what, value in [("attach", ("a", 0)), ("flow", ("a", 50)), *history]:
        do(machine, what, value)


BOTH_READY = [("attach", ("a", 0)), ("attach", ("b", 0)), ("flow", ("a", 9)), ("flow", ("b", 9))]
chunks = st.sampled_from(["u:0/3", "u:1/3", "u:2/3", "v:0/2", "v:1/2", "w:0/2", "w:1/2", "-"])
chunked_steps = st.one_of(
    st.tuples(st.just("publish chunks"), st.lists(chunks, min_size=1, max_size=5)),
    st.tuples(
        st.just("publish chunks"), st.sampled_from([["u:0/3"], ["u:1/3"], ["u:2/3"], ["v:0/2"], ["v:1/2"]])
    ),
    st.tuples(st.just("attach"), st.tuples(names, st.integers(0, 1))),
    st.tuples(st.just("flow"), st.tuples(names, st.sampled_from([1, 1, 2, 5]))),
    st.tuples(st.just("ack"), entries),
    st.tuples(st.just("ack part"), st.tuples(st.integers(0, 12), st.integers(0, 1))),
    st.tuples(st.just("again"), st.tuples(names, st.one_of(st.none(), entries))),
    st.tuples(st.just("detach"), names),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("seek"), st.integers(0, 12)),
)


@pytest.mark.parametrize("under_way_max", [1, 1_000])
@settings(max_examples=150, deadline=None)
@given(
    history=st.lists(chunked_steps, min_size=8, max_size=40),
    pace=st.sampled_from([0, 0, 1]),
    joins=st.booleans(),
    look_ahead=st.sampled_from([1, 100]),
)
def test_chunks_go_to_the_holder_of_the_first(
    under_way_max: int, history: list[tuple[str, object]], pace: int, joins: bool, look_ahead: int
) -> None:
    machine = Machine("shared", pace=pace, joins=joins)
    machine.forgets_beginnings = under_way_max == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_queue, "CHUNKED_MESSAGES_MAX", under_way_max)
        patch.setattr(shared, "LOOK_AHEAD_ENTRIES_MAX", look_ahead)
        for what, value in [*BOTH_READY, *history]:
            do(machine, what, value)
        dispatch_the_rest(machine)


def test_of_too_many_messages_in_chunks_the_oldest_goes_to_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_queue, "CHUNKED_MESSAGES_MAX", 2)
    machine = Machine("shared")
    machine.forgets_beginnings = True
    for what, value in BOTH_READY:
        do(machine, what, value)
    machine.consumers["a"].permits = 1
    for words in (["u:0/3"], ["u:1/3"], ["v:0/2"]):
        do(machine, "publish chunks", words)
    assert list(machine.dispatched.values()) == ["a", "b"], "a chunk waits for a"
    do(machine, "publish chunks", ["w:0/2"])
    assert machine.dispatched[Position(1, 1)] == "b"


# -- scenarios -----------------------------------------------------------------------------------------


def entries_of(text: str) -> list[int]:
    """`0 3..5` as numbers."""
    found: list[int] = []
    for word in text.split():
        first, _, last = word.partition("..")
        found += range(int(first), int(last or first) + 1)
    return found


def say(machine: Machine, line: str) -> list[str]:
    """Perform one event; what follows from it."""
    word, _, rest = line.partition(" ")
    words = rest.split()
    ledger = machine.topic.ledgers[-1]
    said: list[str] = []
    match word:
        case "publish":
            machine.publish([int(count) for count in words])
        case "publish-keys":
            machine.publish_keys(words)
        case "publish-chunks":
            machine.publish_chunks(words)
        case "attach":
            ranges = [tuple(map(int, one.split(".."))) for one in words if ".." in one]
            level = int(words[1]) if len(words) > 1 and not ranges else 0
            done = machine.attach(words[0], level, ranges)  # type: ignore[arg-type]
            if done is not True:
                said.append(f"refused: {done or 'busy'}")
        case "detach":
            machine.detach(words[0])
        case "flow":
            machine.flow(words[0], int(words[1]))
        case "block":
            machine.consumers[words[0]].port.is_writable = False
        case "drain":
            machine.consumers[words[0]].port.is_writable = True
        case "ack":
            machine.ack(ledger, entries_of(rest))
        case "ack-up-to":
            machine.ack_up_to(Position(ledger, int(rest)))
        case "ack-part":
            machine.ack_part(Position(ledger, int(words[0])), int(words[1], 2))
        case "redeliver":
            some = entries_of(" ".join(words[1:]))
            machine.redeliver(words[0], {ledger: some} if some else None)
        case "roll":
            machine.topic.roll()
        case "seek":
            machine.seek(Position(ledger, int(rest)))
        case _:
            raise AssertionError(f"no event {word}")
    notices, machine.dispatcher.notices = machine.dispatcher.notices, []
    said += [f"{consumer.name} is {'active' if active else 'inactive'}" for consumer, active in notices]
    said += [f"{name} gets {what}" for name, what in machine.pump()]
    marked = "{}:{}".format(*machine.cursor.mark_delete)
    backlog = machine.backlog() if machine.dispatcher.read.ahead_known else "?"
    return [*said, f"mark-delete {marked} backlog {backlog}"]


def play(text: str) -> str:
    """A scenario with what follows from its events written behind each."""
    machine: Machine | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line.startswith("dispatcher "):
            words = line.split()
            machine = Machine(words[1], int(words[3]) if len(words) > 3 else -1)
        elif line and not line.startswith("#"):
            assert machine is not None
            lines += [f"    {said}" for said in say(machine, line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_scenario(file: Path) -> None:
    text = file.read_text()
    played = play(text)
    if os.environ.get("QUIRE_REWRITE"):
        file.write_text(played)
    assert played == text


def test_there_are_scenarios() -> None:
    assert SCENARIOS
