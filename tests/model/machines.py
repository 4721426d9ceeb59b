"""Cores as values. A core is deterministic, so a step of it is a function: (core, event) -> (core, effects).

`Machines` numbers every core it has met by its contents and keeps one specimen of each; a step copies the specimen,
hands the copy the event, and looks up the number of what became of it. There are few cores and few events compared to
the states of the whole world, so nearly every step is found in a dictionary.

Contents are found by walking the object, whatever its attributes are: a field that is added to a core takes part by
itself. Effects are recorded as tuples; an assertion of the core that fails is an effect, too: `Broken`.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum
from functools import cache
from types import MethodType
from typing import Any, NamedTuple
from weakref import ReferenceType

from msgspec import Struct

from quire.ledger.recovery_core import RecoveryCore
from quire.ledger.writer_core import Pending, Replica, WriterCore
from quire.metadata.records import Fragment, LedgerRecord
from quire.runtime.errors import QuireError
from quire.wire import block
from quire.wire.bookie import BookieId, ReadResponse, Status

LEDGER = 7
CHANGES_MAX = 8
BOOKIES = tuple(BookieId(f"b{number}", 1) for number in range(1, 9))
NUMBER = {bookie: number for number, bookie in enumerate(BOOKIES)}

Core = WriterCore | RecoveryCore
Event = Callable[..., None]


class Send(NamedTuple):
    """A block to a bookie; `bit` is the bookie's place in the ensemble, in its generation."""

    entry: int
    bookie: int
    bit: int


class Confirmed(NamedTuple):
    last_entry: int


class ArmChange(NamedTuple):
    pass


class Commit(NamedTuple):
    fragments: tuple[Fragment, ...]


class Failed(NamedTuple):
    error: str


class Read(NamedTuple):
    bookie: int
    entry: int


class Write(NamedTuple):
    found: bytes
    entry: int


class End(NamedTuple):
    last_entry: int


class Stop(NamedTuple):
    error: str


class Broken(NamedTuple):
    """An assertion of the core did not hold."""

    why: str


class Recorder:
    """The effects of both kinds of cores, written down."""

    def __init__(self) -> None:
        self.effects: list[tuple[Any, ...]] = []

    def __deepcopy__(self, memo: object) -> Recorder:
        return self

    def send(self, pending: Pending, replica: Replica) -> None:
        self.effects.append(Send(pending.last_entry, NUMBER[replica.bookie], replica.bit))

    def send_later(self, pending: Pending, replica: Replica) -> None:
        raise AssertionError("no bookie of the model is busy")

    def confirmed(self, last_entry: int) -> None:
        self.effects.append(Confirmed(last_entry))

    def conflict(self, replica: Replica) -> None:
        raise AssertionError("no other ledger has this id here")

    def arm_change(self) -> None:
        self.effects.append(ArmChange())

    def commit(self, fragments: tuple[Fragment, ...]) -> None:
        self.effects.append(Commit(fragments))

    def failed(self, error: QuireError) -> None:
        self.effects.append(Failed(type(error).__name__))

    def read(self, bookie: BookieId, first_entry: int) -> None:
        self.effects.append(Read(NUMBER[bookie], first_entry))

    def write(self, found: block.Buffer, header: block.BlockHeader) -> None:
        self.effects.append(Write(bytes(found), header.first_entry))

    def end(self, last_entry: int) -> None:
        self.effects.append(End(last_entry))

    def stop(self, error: QuireError) -> None:
        self.effects.append(Stop(type(error).__name__))


RECORDER = Recorder()


@cache
def one_entry(entry: int, lac: int) -> bytes:
    """The block of `entry`, cut when the writer had confirmed up to `lac`."""
    return bytes(block.cut(LEDGER, entry, lac, 0, entry, [b"entry %d" % entry]))


def contents(value: Any, seen: dict[int, int]) -> Hashable:
    """What `value` consists of, as a value that can be compared and hashed. Circles end where they began."""
    if value is None or isinstance(value, int | str | bytes | Enum | Struct | BookieId):
        return value
    if id(value) in seen:
        return ("seen", seen[id(value)])
    seen[id(value)] = len(seen)
    if isinstance(value, list | tuple | deque):
        return tuple([contents(each, seen) for each in value])
    if isinstance(value, dict):
        return frozenset([(key, contents(each, seen)) for key, each in value.items()])
    if isinstance(value, Recorder):
        return "recorder"
    if isinstance(value, ReferenceType):
        return contents(value(), seen)
    if isinstance(value, MethodType):
        return value.__name__
    names = sorted(getattr(value, "__dict__", None) or type(value).__slots__)
    return (type(value).__name__, *[contents(getattr(value, name), seen) for name in names])


# -- events: what can happen to a core -----------------------------------------------------------------
def add(core: WriterCore, entry: int, found: bytes) -> None:
    core.add(Pending(found, entry))


def answered(core: WriterCore, entry: int, bookie: int, bit: int, status: Status) -> None:
    """A bookie's answer to one block, whether or not anybody still waits for it."""
    pending = next((p for p in (*core._lagging.blocks, *core._unconfirmed) if p.last_entry == entry), None)
    replica = next((r for r in core._ensemble.replicas if r.bit == bit), None)
    if replica is None:  # replaced since
        replica = Replica(core, BOOKIES[bookie], bit)
        replica.is_live = False
    core.answered(pending or Pending(b"", entry), replica, status)
    core.advance()


def begin_change(core: WriterCore, replacements: tuple[int, ...]) -> None:
    core.begin_change([BOOKIES[number] for number in replacements])


def change_committed(core: WriterCore) -> None:
    core.change_committed()


def start(core: RecoveryCore) -> None:
    core.start()


def read_answered(
    core: RecoveryCore, bookie: int, entry: int, status: Status, lac: int, blocks: tuple[bytes, ...]
) -> None:
    core.answered(BOOKIES[bookie], entry, ReadResponse(status, lac, blocks))


def written(core: RecoveryCore, last_entry: int) -> None:
    core.written(last_entry)


def write_failed(core: RecoveryCore) -> None:
    core.write_failed(QuireError("the rewriter failed"))


class Machines:
    """Cores are numbered from 0 in the order in which they were met."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._specimens: list[Core] = []
        self._steps: dict[tuple[Any, ...], tuple[int, tuple[Any, ...]]] = {}

    def __len__(self) -> int:
        return len(self._specimens)

    def writer(self, fragments: tuple[Fragment, ...], ack_quorum: int, next_entry: int = 0) -> int:
        key = ("writer", fragments, ack_quorum, next_entry)
        if key not in self._steps:
            core = WriterCore(
                LEDGER, fragments, ack_quorum, RECORDER, changes_max=CHANGES_MAX, next_entry=next_entry
            )
            self._steps[key] = (self._number(core), ())
        return self._steps[key][0]

    def recovery(self, record: LedgerRecord) -> int:
        last = record.fragments[-1]
        key = ("recovery", last, record.ack_quorum)
        if key not in self._steps:
            self._steps[key] = (self._number(RecoveryCore(LEDGER, last, record.ack_quorum, RECORDER)), ())
        return self._steps[key][0]

    def specimen(self, number: int) -> Any:
        """A core with this number, to look at."""
        return self._specimens[number]

    def step(self, number: int, event: Event, *arguments: Any) -> tuple[int, tuple[Any, ...]]:
        """The number of what core `number` becomes by `event`, and its effects in order."""
        key = (number, event, *arguments)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._step(number, event, arguments)
        return found

    def _step(self, number: int, event: Event, arguments: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
        core = copy.deepcopy(self._specimens[number])
        RECORDER.effects = []
        try:
            event(core, *arguments)
        except AssertionError as error:
            return number, (Broken(str(error) or "an assertion of the core"),)
        return self._number(core), tuple(RECORDER.effects)

    def _number(self, core: Core) -> int:
        key = contents(core, {})
        if key not in self._numbers:
            self._numbers[key] = len(self._specimens)
            self._specimens.append(core)
        return self._numbers[key]
