"""The journal of a WAL over a store that is slow, refuses, loses answers, or has been given to somebody else."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from quire.bookie.journal_core import Control, ControlKind
from quire.runtime.clock import Clock
from quire.runtime.errors import (
    ConfigurationError,
    CorruptionError,
    Fenced,
    OutcomeUnknown,
    QuireError,
    Unavailable,
)
from quire.runtime.limits import MIB
from quire.wal import wal_object
from quire.wal.object_journal import ENOUGH, ObjectJournal
from quire.wal.settings import WalSettings
from quire.wire import block
from quire.wire.bookie import Status
from tests.simulation.world import InjectedError

from .virtual import WAL, SlowStore, in_virtual_time

OK, UNREACHABLE = Status.OK, Status.UNREACHABLE


class Log:
    """A journal over a slow store, and what its callers and its owner heard, with the time."""

    def __init__(self, clock: Clock, **settings: Any) -> None:
        self.clock = clock
        self.store = SlowStore(clock)
        self.heard: list[tuple[str, Sequence[Status]]] = []
        self.heard_at_s: list[float] = []
        self.ends: list[QuireError] = []
        self.trim_seq = 0
        self.journal = ObjectJournal(
            self.store, WAL, WalSettings(**settings), clock, lambda: self.trim_seq, self.ends.append
        )
        self.entries = 0

    def add(self, word: str, size: int = 100) -> None:
        made = block.cut(9, self.entries, self.entries - 1, 1_000, self.entries, [bytes(size)])
        self.entries += 1
        self.journal.append([made], len(made), lambda statuses: self.hear(word, statuses), (OK,))

    def hear(self, word: str, statuses: Sequence[Status]) -> None:
        self.heard.append((word, statuses))
        self.heard_at_s.append(round(self.clock.monotonic(), 3))

    async def drained(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.journal.barrier(lambda _: waiting.set_result(None), (OK,))
        await waiting

    def headers(self) -> list[wal_object.Header]:
        return [
            wal_object.read_header(content, name)
            for name, (content, _) in sorted(self.store.faults.objects.items())
        ]


def test_blocks_are_in_objects_when_their_callers_hear_of_it() -> None:
    async def run(clock: Clock) -> None:
        log = Log(clock)
        log.add("a")
        log.add("b")
        assert not log.heard
        await log.drained()
        log.trim_seq = 1
        log.add("c")
        log.journal.seal()
        await log.drained()
        assert log.heard == [("a", (OK,)), ("b", (OK,)), ("c", (OK,))]
        assert log.heard_at_s == [0.03, 0.03, 0.05]
        one, two = log.headers()
        assert (one.seq, one.trim_seq, one.confirmed_seq, one.block_count) == (0, 0, -1, 2)
        assert (two.seq, two.trim_seq, two.confirmed_seq, two.block_count) == (1, 1, 0, 1)
        assert log.journal.durable_seq == 1
        await log.journal.stop()

    in_virtual_time(run)


def test_a_tombstone_is_in_an_object_and_a_fence_only_waits() -> None:
    async def run(clock: Clock) -> None:
        log = Log(clock)
        for kind in (ControlKind.FENCE, ControlKind.LAC):
            log.journal.control(Control(kind, 9, 5), lambda statuses: log.hear("at once", statuses))
        await log.drained()
        assert log.heard == [("at once", (OK,))] * 2 and not log.store.faults.objects
        log.add("block")
        log.journal.control(Control(ControlKind.FENCE, 9), lambda statuses: log.hear("fence", statuses))
        log.journal.control(
            Control(ControlKind.TOMBSTONE, 8, 4), lambda statuses: log.hear("tombstone", statuses)
        )
        await log.drained()
        assert [word for word, _ in log.heard[2:]] == ["block", "fence", "tombstone"]
        ((content, _),) = log.store.faults.objects.values()
        header = wal_object.read_header(content, "x")
        _, deleted = wal_object.read_data_tail(header, content[header.tail_offset :], "x")
        assert deleted == {8: 4}
        await log.journal.stop()

    in_virtual_time(run)


@pytest.mark.parametrize(
    "error, happened",
    [
        (Unavailable("503"), False),
        (OutcomeUnknown("reset"), False),
        (OutcomeUnknown("reset"), True),
    ],
)
def test_an_upload_is_tried_until_it_has_an_answer(error: QuireError, happened: bool) -> None:
    async def run(clock: Clock) -> None:
        log = Log(clock)
        log.store.faults.fail_next("finish", error, happened=happened)
        for _ in range(9):
            log.store.faults.fail_next("finish", Unavailable("503"))
        log.add("a")
        await log.drained()
        assert log.heard == [("a", (OK,))]
        assert len(log.store.faults.objects) == 1 and not log.ends
        assert 8 < log.heard_at_s[0] < 15, "it waits longer and longer, and not for ever"
        await log.journal.stop()

    in_virtual_time(run)


def test_what_comes_in_trouble_is_uploaded_in_large_objects_when_it_is_over() -> None:
    async def run(clock: Clock) -> None:
        log = Log(clock, wal_uploads_max=1)
        for _ in range(3):
            log.store.faults.fail_next("finish", Unavailable("503"))
        for number in range(30):
            log.add(str(number), MIB // 8)
            await asyncio.sleep(0.01)
        await log.drained()
        assert [header.block_count for header in log.headers()] == [1, 29]
        assert [word for word, _ in log.heard] == list(map(str, range(30)))
        await log.journal.stop()

    in_virtual_time(run)


def test_an_upload_that_is_late_is_made_once_more_beside_it() -> None:
    async def run(clock: Clock) -> None:
        log = Log(clock)
        for number in range(ENOUGH):
            log.add(str(number))
            log.journal.seal()
            await log.drained()
        assert log.journal.uploads_hedged == 0
        log.store.delays_s = [30.0]
        began_s = clock.monotonic()
        log.add("late")
        log.journal.seal()
        await log.drained()
        took_s = clock.monotonic() - began_s
        assert log.journal.uploads_hedged == 1
        assert 3 * 0.02 <= took_s < 0.1, "after three times of what the others took, and one more"
        await asyncio.sleep(40)  # the first one arrives, and changes nothing
        log.add("after it")
        await log.drained()
        assert [statuses for _, statuses in log.heard] == [(OK,)] * (ENOUGH + 2)
        assert not log.ends and len(log.store.faults.objects) == ENOUGH + 2
        await log.journal.stop()

    in_virtual_time(run)


def test_the_slower_of_two_uploads_may_have_made_the_object() -> None:
    async def run(clock: Clock) -> None:
        log = Log(clock)
        log.store.delays_s = [
            2.4,
            5.0,
        ]  # the first puts after 1.2 s, and the second one, begun after 1 s, is refused
        log.add("a")
        await log.drained()
        assert log.heard == [("a", (OK,))] and log.journal.uploads_hedged == 1
        await log.journal.stop()

    in_virtual_time(run)


def test_a_fence_ends_the_journal_for_all_that_waits_and_all_that_comes() -> None:
    async def run(clock: Clock) -> None:
        log = Log(clock)
        log.add("in time")
        await log.drained()
        fence = wal_object.encode_fence(WAL, 1, 1, "another")
        await log.store.put_whole(wal_object.data_name(WAL, 1), [fence])
        log.add("too late")
        log.journal.seal()
        log.add("behind")
        await asyncio.sleep(1)
        assert [word for word, _ in log.heard] == ["in time", "too late", "behind"]
        assert [tuple(statuses) for _, statuses in log.heard] == [(OK,), (UNREACHABLE,), (UNREACHABLE,)]
        (why,) = log.ends
        assert isinstance(why, Fenced) and log.journal.failure is why
        log.add("after the end")
        log.journal.barrier(lambda statuses: log.hear("barrier", statuses), (OK, Status.FENCED))
        log.journal.control(Control(ControlKind.TOMBSTONE, 8), lambda statuses: log.hear("dead", statuses))
        await asyncio.sleep(1)
        assert [tuple(statuses) for _, statuses in log.heard[3:]] == [
            (UNREACHABLE,),
            (UNREACHABLE, Status.FENCED),
            (UNREACHABLE,),
        ]
        await log.journal.stop()
        assert len(log.ends) == 1

    in_virtual_time(run)


def test_a_store_that_bars_us_ends_it_and_rot_under_the_own_name_too() -> None:
    async def run(clock: Clock) -> None:
        barred = Log(clock)
        barred.store.faults.fail_next("finish", ConfigurationError("AccessDenied"))
        barred.add("a")
        rotten = Log(clock)
        rotten.store.faults.objects[wal_object.data_name(WAL, 0)] = (bytes(200), 0)
        rotten.add("a")
        await asyncio.sleep(1)
        assert [type(why) for why in (*barred.ends, *rotten.ends)] == [ConfigurationError, CorruptionError]
        assert tuple(barred.heard[0][1]) == tuple(rotten.heard[0][1]) == (UNREACHABLE,)

    in_virtual_time(run)


def test_an_end_from_outside_is_not_told_to_who_ended_it() -> None:
    async def run(clock: Clock) -> None:
        log = Log(clock)
        log.add("a")
        log.journal.end(Unavailable("the session is over"))
        await asyncio.sleep(1)
        assert [tuple(statuses) for _, statuses in log.heard] == [(UNREACHABLE,)] and not log.ends
        assert not log.store.faults.objects, "nothing is uploaded after it"

    in_virtual_time(run)


def test_rows_lead_to_the_blocks() -> None:
    async def run(clock: Clock) -> None:
        log = Log(clock)
        log.add("a")
        log.add("b")
        await log.drained()
        ((content, _),) = log.store.faults.objects.values()
        header = wal_object.read_header(content, "x")
        rows, _ = wal_object.read_data_tail(header, content[header.tail_offset :], "x")
        ((ledger_id, first, last, offset, length, _),) = struct.iter_unpack(">QQQQII", rows)
        assert (ledger_id, first, last) == (9, 0, 1)
        assert block.peek(content[offset : offset + length]).first_entry == 0
        await log.journal.stop()

    in_virtual_time(run)


@pytest.mark.parametrize("where", ["put_whole", "encode_data", "due"])
def test_an_unexpected_exception_ends_it_for_all_that_waits(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = InjectedError("out of memory")

    async def run(clock: Clock) -> None:
        log = Log(clock)
        target = {"put_whole": log.store, "encode_data": wal_object, "due": log.journal._core}[where]
        real = getattr(target, where)

        def once(*args: Any) -> Any:
            monkeypatch.setattr(target, where, real)
            raise error

        monkeypatch.setattr(target, where, once)
        for word in "abc":
            log.add(word)
            await asyncio.sleep(0.02)
        log.add("d")
        await asyncio.sleep(1)
        assert [word for word, _ in log.heard] == ["a", "b", "c", "d"], "each has an answer"
        assert tuple(log.heard[-1][1]) == (UNREACHABLE,)
        assert len(log.ends) == 1 and repr(error) in str(log.ends[0])
        assert log.journal.failure is log.ends[0]
        await log.journal.stop()

    in_virtual_time(run)


def test_each_object_says_of_those_before_it_only_what_is_so() -> None:
    """A header's `confirmed` is what a close takes for proof, so it must never say too much, nor lag a whole window."""

    async def run(clock: Clock) -> None:
        log = Log(clock, wal_uploads_max=4)
        log.store.delays_s = [0.3, 0.02, 0.5, 0.02, 0.02, 0.9, 0.02, 0.02, 0.4]
        seen: list[int] = []
        real = log.store.put_whole

        async def put_whole(name: str, parts: Sequence[Any]) -> None:
            header = wal_object.read_header(parts[0], name)
            there = {wal_object.seq_of(each) for each in log.store.faults.objects}
            assert header.confirmed_seq <= log.journal.durable_seq
            assert {*range(header.confirmed_seq + 1)} <= there, "it is said to be durable, and is there"
            assert header.seq - header.confirmed_seq <= 4, "the window is one of numbers"
            seen.append(header.seq)
            await real(name, parts)

        log.store.put_whole = put_whole  # type: ignore[method-assign]
        for number in range(30):
            log.add(str(number))
            log.journal.seal()
            await asyncio.sleep(0.01)
        await log.drained()
        assert {*seen} == {*range(30)}
        await log.journal.stop()

    in_virtual_time(run)
