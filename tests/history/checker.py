"""The anomalies of a history. Each check takes one topic's operations in order and its version.

    inconsistent position   two values were told for one position
    duplicate               a value lies at two positions (judged where duplicates are dropped)
    phantom                 a value was read that nobody sent
    aborted read            a value was read whose send failed
    lost write              an acknowledged message was never read, though something behind it was
    unseen                  an acknowledged message was never read (judged when everything was read at the end)
    poll skip               a consumer got a message and then one with others, known to exist, between them
    nonmonotonic poll       a consumer got a message and then one that does not lie behind it
    nonmonotonic send       a producer's later send lies before its earlier one
    acknowledged read       a message came to a consumer that attached after its acknowledgement was answered
    internal ...            the same within one operation: the messages of one batch

Polls are compared within one attachment: a consumer that attaches anew begins where the subscription is, and gets again
what was not acknowledged. On shared subscriptions only what is read counts, not in which order.

Lost write and unseen differ in what they prove: a lost write shows without a last read, since logs have no gaps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.history.operations import F, Message, Operation, Outcome, Position, load
from tests.history.version import Version


class Anomaly(NamedTuple):
    """`kind` is one of the names at the top of the file; `shown_by` are the operations that show it."""

    kind: str
    topic: str
    what: str
    shown_by: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        lines = "".join(f"\n    {operation}" for operation in self.shown_by)
        return f"{self.kind} on {self.topic}: {self.what}{lines}"


@dataclass(frozen=True)
class Promises:
    """What holds for the history's topics, beyond what always does."""

    is_complete: bool = True
    """At the end, every topic was read to its end."""
    without_duplicates: Collection[str] = ()
    """Topics that drop duplicates. Elsewhere a producer that reconnects may write a message again."""


class History(NamedTuple):
    """One topic's part."""

    topic: str
    operations: list[Operation]
    version: Version
    promises: Promises

    def anomaly(self, kind: str, what: str, *shown_by: Operation) -> Anomaly:
        return Anomaly(kind, self.topic, what, shown_by)

    def polls(self) -> Iterator[tuple[Operation, Message]]:
        for operation in self.operations:
            if operation.f is F.POLL:
                for message in operation.messages:
                    yield operation, message


Check = Callable[[History], Iterator[Anomaly]]


def check(operations: Sequence[Operation], promises: Promises = Promises()) -> list[Anomaly]:
    """Every anomaly of every topic, in the order of the checks."""
    topics: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        topics[operation.topic].append(operation)
    histories = [History(topic, of_topic, Version(of_topic), promises) for topic, of_topic in topics.items()]
    return [anomaly for each in CHECKS for history in histories for anomaly in each(history)]


def check_file(file: Path, topics: Iterable[str], promises: Promises = Promises()) -> list[Anomaly]:
    """`check` of what a recorder wrote, one topic after the other: a long history need not fit into memory."""
    return [anomaly for topic in topics for anomaly in check(list(load(file, topic)), promises)]


# -- what lies where -----------------------------------------------------------------------------------
def _inconsistent_positions(history: History) -> Iterator[Anomaly]:
    for position, values in history.version.values.items():
        if len(values) > 1:
            told = [
                operation
                for operation in history.operations
                if any(message.position == position for message in operation.messages)
            ]
            yield history.anomaly("inconsistent position", f"{position} is {sorted(values)}", *told[:4])


def _duplicates(history: History) -> Iterator[Anomaly]:
    if history.topic not in history.promises.without_duplicates:
        return
    places: defaultdict[int, list[Position]] = defaultdict(list)
    for position, values in history.version.values.items():
        for value in values:
            places[value].append(position)
    for value, positions in places.items():
        if len(positions) > 1:
            yield history.anomaly("duplicate", f"{value} lies at {positions}")


# -- what was sent, and what was read ------------------------------------------------------------------
def _sends(history: History, *outcomes: Outcome) -> dict[int, tuple[Operation, Message]]:
    """By value, the last operation with such an outcome."""
    return {
        message.value: (operation, message)
        for operation in history.operations
        if operation.f is F.SEND and operation.outcome in outcomes
        for message in operation.messages
    }


def _phantoms(history: History) -> Iterator[Anomaly]:
    sent = _sends(history, *Outcome)
    for operation, message in history.polls():
        if message.value not in sent:
            yield history.anomaly("phantom", f"nobody sent {message.value}", operation)


def _aborted_reads(history: History) -> Iterator[Anomaly]:
    failed = _sends(history, Outcome.FAIL)
    done = _sends(history, Outcome.OK, Outcome.INFO)
    for operation, message in history.polls():
        if message.value in failed and message.value not in done:
            yield history.anomaly(
                "aborted read", f"the send of {message.value} failed", failed[message.value][0], operation
            )


def _lost_writes(history: History) -> Iterator[Anomaly]:
    """Of the acknowledged messages that nobody read."""
    read = {message.value for _, message in history.polls()}
    index = history.version.index
    furthest = max(
        ((index[m.position], operation) for operation, m in history.polls() if m.position is not None),
        key=lambda found: found[0],
        default=None,
    )
    for value, (operation, message) in _sends(history, Outcome.OK).items():
        if value in read:
            continue
        known = index[message.position] if message.position is not None else len(index)
        if furthest is not None and known < furthest[0]:
            yield history.anomaly(
                "lost write",
                f"{value} was acknowledged, and what lies behind it was read",
                operation,
                furthest[1],
            )
        elif history.promises.is_complete:
            yield history.anomaly("unseen", f"{value} was acknowledged, and nobody read it", operation)


# -- orders --------------------------------------------------------------------------------------------
class _Acks:
    """What a subscription was asked to acknowledge, or was told that it is."""

    def __init__(self) -> None:
        self.single: dict[Position, int] = {}
        """With the number of the operation that came first."""
        self.up_to = Position(-1, -1)

    def take(self, number: int, operation: Operation) -> None:
        for message in operation.messages:
            assert message.position is not None, "an ack without a position"
            if operation.is_cumulative:
                self.up_to = max(self.up_to, message.position)
            else:
                self.single.setdefault(message.position, number)

    def have(self, position: Position) -> bool:
        return position <= self.up_to or position in self.single


def _polls(history: History) -> Iterator[Anomaly]:
    last: dict[str, tuple[Operation, Message]] = {}
    shared: set[str] = set()
    asked: defaultdict[str, _Acks] = defaultdict(_Acks)
    for number, operation in enumerate(history.operations):
        process, acks = operation.process, asked[operation.subscription]
        if operation.f is F.ATTACH:
            last.pop(process, None)
            (shared.add if operation.is_shared else shared.discard)(process)
        elif operation.f is F.ACK:
            acks.take(number, operation)
        elif operation.f is F.POLL and process not in shared and operation.messages:
            before = last.get(process)
            if before is not None:
                yield from _steps(history, acks, before, (operation, operation.messages[0]))
            for first, then in pairwise(operation.messages):
                yield from _steps(history, acks, (operation, first), (operation, then))
            last[process] = (operation, operation.messages[-1])


def _steps(
    history: History, acks: _Acks, before: tuple[Operation, Message], after: tuple[Operation, Message]
) -> Iterator[Anomaly]:
    """From one message of a consumer to the next. What it asked to acknowledge need not come again."""
    first, then = before[1].position, after[1].position
    assert first is not None and then is not None, "a poll without a position"
    index = history.version.index
    if index[then] == index[first] + 1:
        return
    internal = "internal " if before[0] is after[0] else ""
    shown_by = dict.fromkeys((before[0], after[0]))
    names = f"{before[1].value} at {first} and {after[1].value} at {then}"
    if then <= first:
        yield history.anomaly(f"{internal}nonmonotonic poll", f"{names} came in this order", *shown_by)
        return
    skipped = [position for position in history.version.between(first, then) if not acks.have(position)]
    if skipped:
        values = [value for position in skipped[:5] for value in sorted(history.version.values[position])]
        yield history.anomaly(f"{internal}poll skip", f"{values} lie between {names}", *shown_by)


def _nonmonotonic_sends(history: History) -> Iterator[Anomaly]:
    done = _sends(history, Outcome.OK)
    last: dict[str, tuple[Operation, Message]] = {}
    for operation in history.operations:
        if operation.f is not F.SEND or operation.outcome is not Outcome.INVOKE:
            continue
        before = last.get(operation.process)
        for number, sent in enumerate(operation.messages):
            answer, message = done.get(sent.value, (operation, sent))
            if message.position is None:
                continue
            if (
                before is not None
                and before[1].position is not None
                and message.position <= before[1].position
            ):
                internal = "internal " if number else ""
                what = f"{message.value} was sent after {before[1].value}, and lies before it"
                yield history.anomaly(f"{internal}nonmonotonic send", what, before[0], answer)
            before = (answer, message)
        if before is not None:
            last[operation.process] = before


# -- acknowledgements ----------------------------------------------------------------------------------
def _acknowledged_reads(history: History) -> Iterator[Anomaly]:
    """What was answered as acknowledged when a consumer attached must not come to it."""
    answered: defaultdict[str, _Acks] = defaultdict(_Acks)
    attached: dict[str, tuple[int, Operation, Position]] = {}
    for number, operation in enumerate(history.operations):
        acks = answered[operation.subscription]
        if operation.f is F.ATTACH:
            attached[operation.process] = (number, operation, acks.up_to)
        elif operation.f is F.ACK and operation.outcome is Outcome.OK:
            acks.take(number, operation)
        elif operation.f is F.POLL and operation.subscription:
            since, attach, up_to = attached[operation.process]
            for message in operation.messages:
                assert message.position is not None, "a poll without a position"
                if message.position <= up_to or acks.single.get(message.position, number) < since:
                    what = f"{message.value} was acknowledged on {operation.subscription} before"
                    yield history.anomaly("acknowledged read", what, attach, operation)


CHECKS: tuple[Check, ...] = (
    _inconsistent_positions,
    _duplicates,
    _phantoms,
    _aborted_reads,
    _lost_writes,
    _polls,
    _nonmonotonic_sends,
    _acknowledged_reads,
)
