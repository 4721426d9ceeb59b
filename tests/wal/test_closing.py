"""A WAL is closed over stores that are slow, refuse and lose answers, while its writer goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest import mock

import pytest

from quire.metadata import paths
from quire.metadata.records import WalRecord, WalState, decode, encode
from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.runtime.limits import WAL_UPLOADS_MAX
from quire.testing.metadata import MemoryStore
from quire.wal import scrub, wal_object
from quire.wal.closing import close_wal
from quire.wal.closing_core import WalDamaged
from quire.wal.object_journal import ObjectJournal
from quire.wal.settings import WalSettings
from quire.wal.wal_object import data_name
from quire.wire import block
from quire.wire.bookie import Status

from .virtual import WAL, SlowStore, in_virtual_time

RECORD = WalRecord(uuid=WAL, broker="a", store="memory://")


class House:
    """A bucket, a metadata store, and the writer of a WAL."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.objects = SlowStore(clock)
        self.metadata = MemoryStore()
        self.ends: list[QuireError] = []
        self.acknowledged: list[int] = []
        self.journal = ObjectJournal(self.objects, WAL, WalSettings(), clock, lambda: 0, self.ends.append)

    async def begin(self, count: int = 0) -> House:
        """With so many objects, each of which knows the one before it to be durable."""
        await self.metadata.create(paths.wal(WAL), encode(RECORD))
        for number in range(count):
            self.add(number)
            self.journal.seal()
            await asyncio.sleep(0.03)
        assert self.acknowledged == list(range(count))
        return self

    def add(self, number: int) -> None:
        made = block.cut(9, number, number - 1, 1_000, number, [b"entry"])

        def done(statuses: Sequence[Status]) -> None:
            if statuses[0] is Status.OK:
                self.acknowledged.append(number)

        self.journal.append([made], len(made), done, (Status.OK,))

    async def close(self, who: str = "b", *, accept_loss: bool = False) -> WalRecord:
        return await close_wal(self.objects, self.metadata, self.clock, WAL, who, accept_loss=accept_loss)

    async def record(self) -> WalRecord:
        return decode(WalRecord, (await self.metadata.get(paths.wal(WAL))).value, "x")


def test_it_is_closed_and_its_writer_acknowledges_nothing_more() -> None:
    async def run(clock: Clock) -> None:
        house = await House(clock).begin(3)
        began_s = clock.monotonic()
        record = await house.close("broker-2")
        assert clock.monotonic() - began_s < 0.2, (
            "two rounds of headers and a fence, and no batch is waited for"
        )
        assert record == await house.record()
        assert (record.state, record.end_seq) == (WalState.CLOSED, 3)
        assert await scrub.closer_of(house.objects, record) == "broker-2"
        house.add(3)
        await asyncio.sleep(1)
        assert house.acknowledged == [0, 1, 2] and len(house.ends) == 1
        assert await house.close() == record

    in_virtual_time(run)


def test_two_closes_at_once_agree_while_the_writer_goes_on() -> None:
    async def run(clock: Clock) -> None:
        house = await House(clock).begin(2)

        async def write() -> None:
            for number in range(2, 60):
                house.add(number)
                house.journal.seal()
                await asyncio.sleep(0.05)

        one, other, _ = await asyncio.gather(house.close("b"), house.close("c"), write())
        await asyncio.sleep(1)
        assert one == other and len(house.ends) == 1
        assert house.acknowledged == list(range(one.end_seq)), "no less, and nothing beyond the end"

    in_virtual_time(run)


def test_stores_that_do_not_answer_are_waited_for_and_are_no_hole() -> None:
    async def run(clock: Clock) -> None:
        house = await House(clock).begin(4)
        for _ in range(3):
            house.objects.faults.fail_next("list", Unavailable("503"))
        for _ in range(30):
            house.objects.faults.fail_next("get_range", Unavailable("503"))
        house.objects.faults.fail_next("finish", Unavailable("503"))
        house.objects.faults.fail_next("finish", OutcomeUnknown("reset"), happened=True)
        house.metadata.fail_next(OutcomeUnknown("no answer"), happened=True)
        assert (await house.close()).end_seq == 4
        assert (await house.record()).state is WalState.CLOSED

    in_virtual_time(run)


@pytest.mark.parametrize("happened", [False, True])
def test_a_record_whose_change_is_in_doubt_is_looked_at(happened: bool) -> None:
    async def run(clock: Clock) -> None:
        house = await House(clock).begin(1)
        closing = asyncio.ensure_future(house.close())
        await asyncio.sleep(0.01)
        assert (await house.record()).state is WalState.CLOSING
        house.metadata.fail_next(OutcomeUnknown("no answer"), happened=happened)
        assert (await closing).end_seq == 1

    in_virtual_time(run)


def test_a_close_that_is_cut_off_anywhere_leaves_it_to_the_next() -> None:
    async def run(clock: Clock) -> None:
        for milliseconds in range(0, 200, 5):
            house = await House(clock).begin(2)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(house.close(), milliseconds / 1000)
                raise TimeoutError
            assert (await house.close("c")).end_seq == 2
            await house.journal.stop()

    in_virtual_time(run)


def test_damage_stops_it_and_names_the_object_until_the_loss_is_accepted() -> None:
    async def run(clock: Clock) -> None:
        house = await House(clock).begin(4)
        house.objects.faults.flip(data_name(WAL, 1), 40)
        del house.objects.faults.objects[data_name(WAL, 2)]
        with pytest.raises(WalDamaged, match=f"does not match its checksum in {data_name(WAL, 1)}") as raised:
            await house.close()
        assert raised.value.seq == 1 and (await house.record()).state is WalState.CLOSING
        record = await house.close(accept_loss=True)
        assert (record.end_seq, record.lost) == (4, (1, 2))

    in_virtual_time(run)


def test_a_window_of_lost_objects_is_told_by_what_is_listed_behind_it() -> None:
    async def run(clock: Clock) -> None:
        count = WAL_UPLOADS_MAX + 4
        house = await House(clock).begin(count)
        for seq in range(1, count - 1):
            del house.objects.faults.objects[data_name(WAL, seq)]
        house.objects.faults.fail_next("list", Unavailable("503"))
        house.objects.faults.fail_next("list", Unavailable("503"))
        with pytest.raises(WalDamaged, match=f"durable when object {count - 1} was made") as raised:
            await house.close()
        assert raised.value.seq == 1 and (await house.record()).state is WalState.CLOSING
        record = await house.close(accept_loss=True)
        assert (record.end_seq, record.lost) == (count, tuple(range(1, count - 1)))

    in_virtual_time(run)


def test_it_lists_once_and_beside_its_other_reads() -> None:
    async def run(clock: Clock) -> None:
        house = await House(clock).begin(3)
        with mock.patch.object(house.objects, "list", wraps=house.objects.list) as listed:
            assert (await house.close()).end_seq == 3
        listed.assert_called_once_with(f"wal/{WAL}/")

    in_virtual_time(run)


def test_without_a_record_or_a_store_that_lets_us_in_it_says_so() -> None:
    async def run(clock: Clock) -> None:
        house = House(clock)
        with pytest.raises(NotFound):
            await house.close()
        await house.begin(1)
        house.objects.faults.fail_next("get_range", ConfigurationError("AccessDenied"))
        with pytest.raises(ConfigurationError, match="AccessDenied"):
            await house.close()
        assert (await house.close()).end_seq == 1

    in_virtual_time(run)


def test_a_fence_that_is_rotten_under_another_name_is_damage() -> None:
    async def run(clock: Clock) -> None:
        house = await House(clock).begin(1)
        stray = wal_object.encode_fence(WAL, 7, 1, "b")
        await house.objects.put_whole(data_name(WAL, 1), [stray])
        with pytest.raises(WalDamaged, match="says that it is 7"):
            await house.close()

    in_virtual_time(run)
