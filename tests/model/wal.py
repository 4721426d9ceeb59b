"""A write-ahead log on object storage as a small model: every order of every event, within bounds.

One writer with a window of uploads, two who close it, and whoever brings it into sets and deletes what is in them.
What they *decide* is the product's own: `wal/wal_core` and `wal/closing_core`, stepped as they are. What is around
them, the object store, the record and the shells, is here, in the words of the laws (`docs/decisions/wal.md`).

Answers get lost, uploads land when nobody waits for them any more, also a second time, and everybody may stand still
for as long as he likes: a move that is possible need not be made. A state is compared by what its parties know; the
two who close are alike. A listing that cannot show anything beyond the window changes nothing, and is answered before
all else. What is not here (damage, slow reads, ledgers) is in the simulation.

`python -m tests.model.wal` searches the larger bounds; each of `OMISSIONS` must lead to a loss, or to two ends.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from msgspec.structs import replace

from quire.metadata.records import WalRecord, WalState
from quire.runtime.errors import Fenced, QuireError
from quire.wal import wal_object
from quire.wal.closing_core import ClosingCore
from quire.wal.wal_core import Group, WalCore
from quire.wal.wal_object import HEADER_BYTES, Header, Kind
from quire.wire import block as blocks
from quire.wire.bookie import Status

WAL: Final = "00000000-0000-4000-8000-000000000001"
BLOCK: Final = blocks.cut(1, 0, -1, 1, 0, [b"entry"])


@dataclass(frozen=True)
class Bounds:
    """`objects` that the writer makes at most, `window` uploads at once, `late` uploads that may land a second time."""

    objects: int = 2
    window: int = 2
    closers: int = 2
    late: int = 1


@dataclass
class Writer:
    """The journal's shell, and the one who trims. See `WalEffects`."""

    world: World
    core: WalCore = field(init=False)
    sent: dict[int, Header] = field(default_factory=dict)
    on_way: set[int] = field(default_factory=set)
    """Uploads that have no answer."""
    may_land: set[int] = field(default_factory=set)
    """Uploads whose answer nobody waits for, or that were sent twice."""
    version: int = 0
    trim_seq: int = 0

    def __post_init__(self) -> None:
        window = self.world.bounds.window
        self.core = WalCore(self, batch_s=1, batch_bytes=1, uploads_max=window)

    def arm(self, delay_s: float) -> None:
        """No group waits here: each block fills one."""

    def upload(self, group: Group, confirmed_seq: int) -> None:
        parts = wal_object.encode_data(WAL, group.seq, self.trim_seq, confirmed_seq, 1, group.blocks, ())
        self.sent[group.seq] = wal_object.read_header(b"".join(parts)[:HEADER_BYTES], "object")
        self.on_way.add(group.seq)

    def durable(self, groups: Sequence[Group]) -> None:
        self.world.acked |= {group.seq for group in groups}

    def ended(self, why: QuireError, groups: Sequence[Group]) -> None:
        self.may_land |= self.on_way
        self.on_way.clear()

    @property
    def key(self) -> Any:
        core = self.core
        queued = tuple((group.seq, group.is_durable) for group in (*core._under_way, *core._line))
        known = self.version, self.trim_seq, core.durable_seq, core._next_seq, core.failure is None
        return queued, known, frozenset(self.on_way), frozenset(self.may_land)


@dataclass
class Closer:
    """The shell of a close. See `ClosingEffects`."""

    world: World
    core: ClosingCore = field(init=False)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    """What has no answer yet."""
    end: int | None = None

    def __post_init__(self) -> None:
        self.core = ClosingCore(self, reads_max=1, look_behind=self.world.bounds.window)
        self.core.start()

    def read_record(self) -> None:
        self.asked.append(("read the record",))

    def write_record(self, record: WalRecord, version: int) -> None:
        self.asked.append(("write the record", record, version))

    def list_objects(self, record: WalRecord) -> None:
        self.asked.append(("list",))

    def read_header(self, seq: int) -> None:
        self.asked.append(("read", seq))

    def look_again(self, seq: int) -> None:
        self.read_header(seq)

    def put_fence(self, seq: int) -> None:
        self.asked.append(("fence", seq))

    def closed(self, record: WalRecord) -> None:
        self.end = record.end_seq

    def damaged(self, error: QuireError) -> None:
        self.world.wrong = f"an order of events is taken for damage: {error}"

    @property
    def answerable(self) -> list[tuple[Any, ...]]:
        bounds, listing = self.world.bounds, ("list",)
        is_first = listing in self.asked and bounds.objects <= bounds.window + 1
        return [listing] if is_first else self.asked

    @property
    def key(self) -> Any:
        core = self.core
        last = core._last_listed
        beyond = last if last is None else max(last - core._next_seq - self.world.bounds.window, 0)
        found = tuple(
            (seq, (one.kind, one.confirmed_seq) if isinstance(one, Header) else None)
            for seq, one in sorted(core._found.items())
        )
        known = core.state.name, core._version, core._next_seq, beyond, found
        return known, tuple(sorted(map(repr, self.asked))), -1 if self.end is None else self.end


Move = tuple[str, Callable[["World"], None]]


@dataclass
class World:
    bounds: Bounds
    words: frozenset[str] = frozenset()
    """Laws that are left out around the cores."""
    objects: dict[int, Header] = field(default_factory=dict)
    record: WalRecord = field(default_factory=lambda: WalRecord(uuid=WAL, broker="one", store="memory"))
    version: int = 0
    in_sets: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    wrong: str = ""
    writer: Writer = field(init=False)
    closers: list[Closer] = field(init=False)

    def __post_init__(self) -> None:
        self.writer = Writer(self)
        self.closers = [Closer(self) for _ in range(self.bounds.closers)]

    def copied(self) -> World:
        """What never changes is shared."""
        shared: list[Any] = [self.record, *self.objects.values(), *self.writer.sent.values(), BLOCK]
        shared += [closer.core._damage for closer in self.closers]
        return deepcopy(self, {id(one): one for one in shared})

    @property
    def key(self) -> Any:
        there = tuple(sorted((seq, one.kind, one.confirmed_seq) for seq, one in self.objects.items()))
        record = self.record.state, self.record.trim_seq, self.record.end_seq, self.version
        both = tuple(sorted((closer.key for closer in self.closers), key=repr))
        return there, record, frozenset(self.in_sets), frozenset(self.acked), self.writer.key, both

    def why_wrong(self) -> str:
        """Why this must not be; "" when all is well."""
        is_closed = self.record.state is WalState.CLOSED
        end = self.record.end_seq if is_closed else 1 << 60
        kept = {seq for seq, one in self.objects.items() if one.kind is Kind.DATA and seq < end}
        kept = {seq for seq in kept if seq >= self.record.trim_seq} | self.in_sets
        if lost := self.acked - kept:
            return f"objects {sorted(lost)} were acknowledged, and are gone"
        ends = {closer.end for closer in self.closers if closer.end is not None}
        if len(ends) > 1:
            return f"two ends are told: {sorted(ends)}"
        return self.wrong

    # -- what can happen -----------------------------------------------------------------------------------
    def moves(self) -> Iterator[Move]:
        yield from self._of_writer()
        for number, closer in enumerate(self.closers):
            for asked in closer.answerable:
                yield from _answers(number, asked, self)
        yield from self._of_keepers()

    def _of_writer(self) -> Iterator[Move]:
        writer, core = self.writer, self.writer.core
        if core.failure is None:
            if core._next_seq < self.bounds.objects:
                yield "the writer queues a block", _queue
            if core.durable_seq + 1 > writer.trim_seq:
                yield f"the writer trims below {core.durable_seq + 1}", _trim
            if self.record.state is not WalState.OPEN:
                yield "the writer hears that it is closed", _hear
        for seq in sorted(writer.on_way):
            yield f"upload {seq} is answered", partial(_land, seq=seq)
            if seq not in self.objects:
                yield f"upload {seq} lands, its answer is lost", partial(_put, seq=seq)
        for seq in sorted(writer.may_land):
            if seq not in self.objects or "a blind upload" in self.words:
                yield f"upload {seq} lands late", partial(_land_late, seq=seq)

    def _of_keepers(self) -> Iterator[Move]:
        record = self.record
        for seq, one in sorted(self.objects.items()):
            early = "deletion before the record" in self.words and seq in self.acked
            if one.kind is Kind.DATA and (seq < record.trim_seq or early):
                yield f"object {seq} is deleted", partial(_delete, seq=seq)
        if record.state is not WalState.CLOSED:
            return
        if record.trim_seq < record.end_seq:
            yield "what is left goes into a set", _keep
        elif "the fence is deleted" in self.words and record.end_seq in self.objects:
            yield "the fence is deleted", partial(_delete, seq=record.end_seq)


def _queue(world: World) -> None:
    world.writer.core.queued([BLOCK], 1, (lambda _: None, (Status.OK,)), 0.0)


def _hear(world: World) -> None:
    world.writer.core.end(Fenced("somebody took over"))


def _trim(world: World) -> None:
    writer, upto = world.writer, world.writer.core.durable_seq + 1
    world.in_sets |= set(range(writer.trim_seq, upto))
    is_current = writer.version == world.version or "a trim without version" in world.words
    if not is_current:
        _hear(world)
        return
    world.record = replace(world.record, trim_seq=upto)
    world.version += 1
    writer.version, writer.trim_seq = world.version, upto


def _delete(world: World, seq: int) -> None:
    del world.objects[seq]


def _put(world: World, seq: int) -> None:
    world.objects[seq] = world.writer.sent[seq]


def _land(world: World, seq: int) -> None:
    writer, found = world.writer, world.objects.get(seq)
    writer.on_way.discard(seq)
    if found is None or "a blind upload" in world.words:
        _put(world, seq)
        if len(writer.may_land) < world.bounds.late:
            writer.may_land.add(seq)
        writer.core.uploaded(seq)
    else:
        writer.core.taken(seq, writer.sent[seq], found)


def _land_late(world: World, seq: int) -> None:
    world.writer.may_land.discard(seq)
    _put(world, seq)


def _keep(world: World) -> None:
    record = world.record
    rest = range(record.trim_seq, record.end_seq)
    world.in_sets |= {seq for seq in rest if seq in world.objects and world.objects[seq].kind is Kind.DATA}
    world.record = replace(record, trim_seq=record.end_seq)
    world.version += 1


# -- who closes --------------------------------------------------------------------------------------------
def _answers(number: int, asked: tuple[Any, ...], world: World) -> Iterator[Move]:
    def answered(work: Callable[[World, Closer], None]) -> Callable[[World], None]:
        def move(after: World) -> None:
            closer = after.closers[number]
            closer.asked.remove(asked)
            work(after, closer)

        return move

    name = f"closer {number + 1}"
    match asked:
        case ("read the record",):
            yield f"{name} reads the record", answered(lambda w, c: c.core.record_read(w.record, w.version))
        case ("write the record", record, version):
            if version == world.version or "a close without version" in world.words:
                told = f"{record.state}, end {record.end_seq}"
                yield f"{name} writes the record: {told}", answered(lambda w, c: _write(w, c, record, True))
                yield (
                    f"{name} writes the record, unheard: {told}",
                    answered(lambda w, c: _write(w, c, record, False)),
                )
            else:
                yield f"{name} finds another record", answered(lambda w, c: c.core.record_doubtful())
        case ("list",):
            last = max(world.objects, default=-1)
            yield f"{name} lists objects up to {last}", answered(lambda w, c: c.core.listed(last))
        case ("read", seq):
            yield (
                f"{name} reads object {seq}",
                answered(lambda w, c: c.core.header_read(seq, w.objects.get(seq))),
            )
        case ("fence", seq):
            if seq in world.objects and "a blind fence" not in world.words:
                yield f"{name} finds object {seq}", answered(lambda w, c: c.core.fence_refused())
            else:
                yield f"{name} puts a fence at {seq}", answered(lambda w, c: _fence(w, c, seq, True))
                yield (
                    f"{name} puts a fence at {seq}, unheard",
                    answered(lambda w, c: _fence(w, c, seq, False)),
                )


def _write(world: World, closer: Closer, record: WalRecord, is_heard: bool) -> None:
    world.record = replace(record, trim_seq=max(record.trim_seq, world.record.trim_seq))
    world.version += 1
    if is_heard:
        closer.core.record_written(record, world.version)
    else:
        closer.core.record_doubtful()


def _fence(world: World, closer: Closer, seq: int, is_heard: bool) -> None:
    at = seq + 1 if "a fence behind the hole" in world.words else seq
    if "no fence" not in world.words:
        content = wal_object.encode_fence(WAL, at, 1, "closer")
        world.objects[at] = wal_object.read_header(content[:HEADER_BYTES], "fence")
    if is_heard:
        closer.core.fenced()
    else:
        closer.core.fence_refused()


# -- the search --------------------------------------------------------------------------------------------
@dataclass
class Found:
    """`history` leads to what is wrong; empty when nothing is."""

    states: int
    wrong: str = ""
    history: tuple[str, ...] = ()


def search(bounds: Bounds, words: frozenset[str] = frozenset()) -> Found:
    """Breadth first, until nothing new happens or something is wrong."""
    first = World(bounds, words)
    ways: dict[Any, tuple[Any, str]] = {first.key: (None, "")}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        before = world.key
        for number, (label, _) in enumerate(world.moves()):
            after = world.copied()
            list(after.moves())[number][1](after)
            if (key := after.key) in ways:
                continue
            ways[key] = before, label
            if wrong := after.why_wrong():
                return Found(len(ways), wrong, _way(ways, key))
            queue.append(after)
    return Found(len(ways))


def _way(ways: dict[Any, tuple[Any, str]], key: Any) -> tuple[str, ...]:
    found = []
    while key is not None:
        key, label = ways[key]
        found.append(label)
    return tuple(found[-2::-1])


# -- laws that are left out ----------------------------------------------------------------------------------
def _acknowledge_any(core: WalCore, seq: int) -> None:
    group = next((one for one in core._under_way if one.seq == seq), None)
    if group is not None:
        core._under_way.remove(group)
        core.durable_seq = seq
        core._effects.durable([group])


def _patched(kind: type, name: str, instead: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(kind, name, instead)


OMISSIONS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "a blind upload": nullcontext,
    "a blind fence": nullcontext,
    "no fence": nullcontext,
    "a fence behind the hole": nullcontext,
    "the fence is deleted": nullcontext,
    "a trim without version": nullcontext,
    "deletion before the record": nullcontext,
    "a close without version": nullcontext,
    "acknowledgement in any order": _patched(WalCore, "uploaded", _acknowledge_any),
    "whatever has the name is ours": _patched(
        WalCore, "taken", lambda core, seq, ours, found: core.uploaded(seq)
    ),
    "no claim before the probe": _patched(ClosingCore, "_claim", ClosingCore._probe),
}
"""By what is left out; where it is in a core, what is put in its place."""


SMALL: Final = (
    Bounds(closers=1),
    Bounds(objects=1, late=0),
    Bounds(objects=3, window=1, closers=1, late=0),
)
"""Searched in seconds."""


def main() -> int:
    """Search the larger bounds, and each omission."""
    failed = False
    for bounds in (*SMALL, Bounds(objects=3, closers=1), Bounds(objects=3, window=1, late=0), Bounds()):
        began = time.monotonic()
        found = search(bounds)
        print(
            f"{bounds}: {found.states:,} states, {found.wrong or 'nothing wrong'} ({time.monotonic() - began:.0f} s)"
        )
        failed |= bool(found.wrong)
    for name, applied in OMISSIONS.items():
        with applied():
            found = search(Bounds(closers=1), frozenset([name]))
        print(f"without its law, {name}: {found.wrong or 'NOTHING FOUND'} ({found.states:,} states)")
        for line in found.history:
            print(f"    {line}")
        failed |= not found.wrong
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
