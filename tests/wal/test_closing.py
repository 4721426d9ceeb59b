"""A WAL is closed over stores that are slow, refuse and lose answers, while its writer goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from unittest import mock

import pytest
from msgspec.structs import replace

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
from quire.wire.block import Buffer
from quire.wire.bookie import Status

from .context import wal_context
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
        context = wal_context(self.objects, self.metadata, clock=self.clock, broker=who)
        return await close_wal(context, WAL, accept_loss=accept_loss)

    async def record(self) -> WalRecord:
        return decode(WalRecord, (await self.metadata.get(paths.wal(WAL))).value, "x")


async def until(holds: Callable[[], bool]) -> None:
    """Let virtual time pass until `holds`."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


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
        with pytest.raises(WalDamaged, match=f"durable when object {count - 1} was created") as raised:
            await house.close()
        assert raised.value.seq == 1 and (await house.record()).state is WalState.CLOSING
        record = await house.close(accept_loss=True)
        assert (record.end_seq, record.lost) == (count, tuple(range(1, count - 1)))

    in_virtual_time(run)


def test_it_lists_beside_its_other_reads_and_again_to_prove_the_end() -> None:
    async def run(clock: Clock) -> None:
        house = await House(clock).begin(3)
        with mock.patch.object(house.objects, "list", wraps=house.objects.list) as listed:
            assert (await house.close()).end_seq == 3
        assert listed.call_args_list == [mock.call(f"wal/{WAL}/")] * 2

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
        with pytest.raises(WalDamaged, match="belongs to object 7"):
            await house.close()

    in_virtual_time(run)


def test_a_fence_is_never_put_over_an_object_that_came_in_between() -> None:
    """An upload that was under way lands after its place was found empty: it counts, and the fence goes behind it."""

    async def run(clock: Clock) -> None:
        house = await House(clock).begin(2)
        real = house.objects.put_whole

        async def put_whole(name: str, parts: Sequence[Buffer]) -> None:
            if wal_object.read_header(parts[0], name).kind is wal_object.Kind.FENCE and not late:
                made = block.cut(9, 2, 1, 1_000, 2, [b"late"])
                late.extend(wal_object.encode_data(WAL, 2, 0, 1, 0, [made]))
                await real(data_name(WAL, 2), late)
            await real(name, parts)

        late: list[Buffer] = []
        house.objects.put_whole = put_whole  # type: ignore[method-assign]
        record = await house.close()
        assert record.end_seq == 3
        assert bytes(house.objects.faults.objects[data_name(WAL, 2)][0]) == b"".join(late)

    in_virtual_time(run)


def test_an_end_that_was_found_below_a_vanished_mount_is_not_recorded() -> None:
    """The listing, the headers and the fence go to an empty directory; the mount is back for the proof."""

    async def run(clock: Clock) -> None:
        house = await House(clock).begin(3)
        await house.metadata.put(paths.wal(WAL), encode(replace(RECORD, state=WalState.CLOSING)), 0)
        bucket = house.objects.blocking
        mounted, bucket.objects = bucket.objects, {}
        closing = asyncio.ensure_future(house.close())
        await until(lambda: bool(bucket.objects))
        bucket.objects = mounted
        with pytest.raises(Unavailable, match="end 0 could not be proven again"):
            await closing
        assert (await house.record()).state is WalState.CLOSING
        assert (await house.close()).end_seq == 3

    in_virtual_time(run)


@pytest.mark.parametrize("witness", ["header", "window"])
def test_no_end_is_recorded_at_a_lost_object_whose_witness_was_below_a_vanished_mount(witness: str) -> None:
    """The close finds the hole while the mount is missing; its fence goes to the place of the lost object."""

    async def run(clock: Clock) -> None:
        house = await House(clock).begin(3)
        await house.metadata.put(paths.wal(WAL), encode(replace(RECORD, state=WalState.CLOSING)), 0)
        bucket = house.objects.blocking
        del bucket.objects[data_name(WAL, 1)]
        if witness == "window":
            bucket.objects[data_name(WAL, 1 + WAL_UPLOADS_MAX + 1)] = bucket.objects.pop(data_name(WAL, 2))
        mounted, bucket.objects = bucket.objects, {data_name(WAL, 0): bucket.objects[data_name(WAL, 0)]}
        real = house.objects.put_whole

        async def put_whole(name: str, parts: Sequence[Buffer]) -> None:
            bucket.objects = mounted
            await real(name, parts)

        house.objects.put_whole = put_whole  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="end 1 could not be proven again"):
            await house.close()
        assert (await house.record()).state is WalState.CLOSING
        with pytest.raises(WalDamaged, match="an object is missing that was durable when object"):
            await house.close()
        accepted = await house.close(accept_loss=True)
        assert accepted.lost[0] == 1 and accepted.end_seq == (3 if witness == "header" else 2)

    in_virtual_time(run)


def test_no_loss_is_recorded_of_an_object_that_can_be_read_again() -> None:
    async def run(clock: Clock) -> None:
        house = await House(clock).begin(4)
        bucket = house.objects.blocking
        name = data_name(WAL, 1)
        kept = bucket.objects.pop(name)
        closing = asyncio.ensure_future(house.close(accept_loss=True))
        await until(lambda: data_name(WAL, 4) in bucket.objects)
        bucket.objects[name] = kept
        with pytest.raises(Unavailable, match="not be proven again"):
            await closing
        assert not (await house.close(accept_loss=True)).lost

    in_virtual_time(run)


def test_an_end_is_recorded_only_over_the_record_that_was_read() -> None:
    """The record is changed between the fence and the end: the close reads it again, and keeps what was changed."""

    async def run(clock: Clock) -> None:
        house = await House(clock).begin(2)
        real, changed = house.objects.put_whole, []

        async def put_whole(name: str, parts: Sequence[Buffer]) -> None:
            await real(name, parts)
            if not changed:
                changed.append(name)
                await real("wal/x/sets-1-x", ())
                node = await house.metadata.get(paths.wal(WAL))
                record = replace(
                    decode(WalRecord, node.value, "x"), catalogue="wal/x/sets-1-x", catalogue_crc=7
                )
                await house.metadata.put(paths.wal(WAL), encode(record), node.version)

        house.objects.put_whole = put_whole  # type: ignore[method-assign]
        record = await house.close()
        assert (record.state, record.end_seq, record.catalogue) == (WalState.CLOSED, 2, "wal/x/sets-1-x")
        assert await house.record() == record

    in_virtual_time(run)
