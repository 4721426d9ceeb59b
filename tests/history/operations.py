"""Operations, and the file that keeps them: JSON, one line each, in the order in which they were seen.

    f        process                messages                       outcome
    send     a producer             what is sent                   invoke, then ok (with positions), fail or info
    attach   a consumer or reader   none                           ok: what follows is a new delivery
    poll     a consumer or reader   what came, in order            ok
    ack      a consumer             what is acknowledged           invoke, then ok or info

`fail` is a promise: it did not happen and never will. Whatever is not known is `info`: it may have happened, or may
still. A send or ack that was invoked and has no other outcome is `info`, too. A process does one thing after the other,
but for sends and acks, which may overlap; the order of a producer's sends is that of their `invoke` lines.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec


class F(StrEnum):
    SEND = "send"
    ATTACH = "attach"
    POLL = "poll"
    ACK = "ack"


class Outcome(StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Position(NamedTuple):
    """Where a message lies in its topic; `batch` is its index in the entry, 0 when it is alone."""

    ledger: int
    entry: int
    batch: int = 0


class Message(NamedTuple):
    """`position` is None where nobody said it: before an answer, and where a duplicate was dropped."""

    value: int
    position: Position | None = None


class Operation(msgspec.Struct, frozen=True, omit_defaults=True, array_like=False):
    """One line. `time_s` is from the recorder's beginning."""

    process: str
    f: F
    outcome: Outcome
    topic: str
    messages: tuple[Message, ...] = ()
    subscription: str = ""
    """Of attach, poll and ack; empty: a reader that keeps nothing."""
    is_shared: bool = False
    """Of attach: other consumers get part of the messages, so gaps and repetitions prove nothing."""
    is_cumulative: bool = False
    """Of ack: everything up to the message is acknowledged."""
    time_s: float = 0.0

    def __str__(self) -> str:
        what = " ".join(
            f"{each.value}@{':'.join(map(str, each.position))}" if each.position else str(each.value)
            for each in self.messages
        )
        name = f" {self.subscription}" if self.subscription else ""
        return (
            f"{self.time_s:.3f} s {self.process}: {self.f} {self.outcome}{name} {self.topic} {what}".rstrip()
        )


class Recorder:
    """Writes down what clients do, from any thread, and counts it: by what was done, and by topic."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.kinds: Counter[tuple[F, Outcome]] = Counter()
        self.topics: Counter[str] = Counter()
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._out = file.open("wb")

    def __call__(
        self,
        process: str,
        f: F,
        outcome: Outcome,
        topic: str,
        messages: Sequence[Message] = (),
        *,
        subscription: str = "",
        is_shared: bool = False,
        is_cumulative: bool = False,
    ) -> None:
        with self._lock:
            now_s = round(time.monotonic() - self._began, 6)
            operation = Operation(
                process, f, outcome, topic, tuple(messages), subscription, is_shared, is_cumulative, now_s
            )
            self.kinds[f, outcome] += 1
            self.topics[topic] += 1
            self._out.write(msgspec.json.encode(operation) + b"\n")

    def close(self) -> None:
        self._out.close()


def save(operations: Iterable[Operation], file: Path) -> None:
    file.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in operations))


def load(file: Path, topic: str = "") -> Iterator[Operation]:
    """What a recorder wrote, of one topic or all; a last line that is cut short is left out."""
    decode = msgspec.json.Decoder(Operation).decode
    with file.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n") and (not topic or topic.encode() in line):
                operation = decode(line)
                if not topic or operation.topic == topic:
                    yield operation
