"""Closing a WAL: where it ends, whatever the order of answers, and what is damage."""

from __future__ import annotations

from random import Random
from unittest import mock

import pytest
from msgspec.structs import replace

from quire.metadata.records import WalRecord, WalState
from quire.runtime.errors import CorruptionError, QuireError
from quire.wal import wal_object
from quire.wal.closing_core import ClosingCore, State
from quire.wal.wal_object import Header

from .virtual import WAL

ROTTEN = "rotten"


def data(seq: int, confirmed_seq: int = -1) -> Header:
    return wal_object.read_header(wal_object.encode_data(WAL, seq, 0, confirmed_seq, 1, [])[0], "x")


def fence(seq: int) -> Header:
    return wal_object.read_header(wal_object.encode_fence(WAL, seq, 1, "b"), "x")


class World:
    """A record, objects, and closes of them, whose every call waits until `step` lets it through."""

    def __init__(
        self, objects: dict[int, Header | str], trim_seq: int = 0, rng: Random | None = None
    ) -> None:
        self.objects = objects
        self.record = WalRecord(uuid=WAL, broker="a", store="memory://", trim_seq=trim_seq)
        self.version = 3
        self.rng = rng or Random(0)
        self.reads = self.lists = 0
        self.unlisted: set[int] = set()
        """What a listing lacks."""

    def change(self, **changes: object) -> None:
        self.record = replace(self.record, **changes)
        self.version += 1


class Close:
    """A close of it, with small numbers. `waiting` are its calls."""

    def __init__(self, world: World, *, accept_loss: bool = False) -> None:
        self.world = world
        self.waiting: list[tuple[str, tuple[object, ...]]] = []
        self.result: WalRecord | None = None
        self.error: QuireError | None = None
        self.core = ClosingCore(self, accept_loss=accept_loss, reads_max=3, look_behind=4)
        self.core.start()

    def read_record(self) -> None:
        self.waiting.append(("read record", ()))

    def write_record(self, record: WalRecord, version: int) -> None:
        self.waiting.append(("write record", (record, version)))

    def list_objects(self, record: WalRecord) -> None:
        self.waiting.append(("list", ()))

    def read_header(self, seq: int) -> None:
        assert sum(what == "read" for what, _ in self.waiting) < 3
        self.waiting.append(("read", (seq,)))

    def look_again(self, seq: int) -> None:
        self.read_header(seq)

    def put_fence(self, seq: int) -> None:
        self.waiting.append(("fence", (seq,)))

    def closed(self, record: WalRecord) -> None:
        self.result = record

    def damaged(self, error: QuireError) -> None:
        self.error = error

    # -- the world's answers --
    def step(self) -> str:
        """Let one of the calls through."""
        what, args = self.waiting.pop(self.world.rng.randrange(len(self.waiting)))
        world = self.world
        if what == "read record":
            self.core.record_read(world.record, world.version)
        elif what == "write record":
            record, version = args
            assert isinstance(record, WalRecord)
            if version != world.version:
                self.core.record_doubtful()
            else:
                world.record, world.version = record, world.version + 1
                self.core.record_written(record, world.version)
        elif what == "list":
            world.lists += 1
            self.core.listed(max(set(world.objects) - world.unlisted, default=-1))
        elif what == "read":
            (seq,) = args
            world.reads += 1
            found = world.objects.get(seq)  # type: ignore[call-overload]
            self.core.header_read(seq, CorruptionError("rot") if found == ROTTEN else found)  # type: ignore[arg-type]
        else:
            (seq,) = args
            if seq in world.objects:
                self.core.fence_refused()
            else:
                world.objects[seq] = fence(seq)  # type: ignore[index, arg-type]
                self.core.fenced()
        return what

    def run(self, until: str = "") -> None:
        """Up to the end, or to a call of this name, which then waits alone, or with a listing, to be let through."""
        while self.result is None and self.error is None:
            if until and any(what == until for what, _ in self.waiting):
                self.waiting = [each for each in self.waiting if each[0] in (until, "list")]
                return
            self.step()


def closed(world: World) -> WalRecord:
    close = Close(world)
    close.run()
    assert close.result == world.record and close.core.state is State.ENDED
    return close.result


@pytest.mark.parametrize("count", [0, 1, 3, 11])
def test_it_ends_where_the_first_hole_was_and_a_fence_lies_there(count: int) -> None:
    world = World({seq: data(seq, seq - 4) for seq in range(count)})
    record = closed(world)
    assert (record.state, record.end_seq, record.lost) == (WalState.CLOSED, count, ())
    assert world.objects[count] == fence(count)
    assert world.reads <= count + 5, "each object once, and those behind the hole"
    assert world.lists == 1


def test_objects_below_the_trim_point_say_nothing() -> None:
    world = World({0: ROTTEN, 5: data(5, 4), 6: data(6, 4)}, trim_seq=5)
    assert closed(world).end_seq == 7


def test_objects_behind_a_hole_that_were_never_confirmed_do_not_count() -> None:
    world = World({0: data(0), 2: data(2, 0), 3: data(3, 0), 4: ROTTEN})
    assert closed(world).end_seq == 1


def test_a_closed_one_is_left_as_it_is() -> None:
    world = World({0: data(0)})
    world.change(state=WalState.CLOSED, end_seq=0)
    assert closed(world).end_seq == 0
    assert list(world.objects) == [0] and world.reads == world.lists == 0


def test_a_fence_of_a_close_that_was_cut_off_is_the_end() -> None:
    world = World({0: data(0), 1: fence(1)})
    world.change(state=WalState.CLOSING)
    assert closed(world).end_seq == 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("witness", [data(2, 1), data(5, 1), data(9, 0)])
def test_a_fence_at_the_place_of_an_object_that_was_durable_is_damage(witness: Header, seed: int) -> None:
    """A close put it that could not see the witness. An operator's close skips it and ends at a fence of its own."""
    world = World({0: data(0), 1: fence(1), witness.seq: witness}, rng=Random(seed))
    world.change(state=WalState.CLOSING)
    close = Close(world)
    close.run()
    assert close.error is not None and close.error.seq == 1
    assert f"an object is missing that was durable when object {witness.seq} was created" in str(close.error)
    accepting = Close(world, accept_loss=True)
    accepting.run()
    assert accepting.result == world.record and world.record.lost[0] == 1
    assert world.objects[world.record.end_seq] == fence(world.record.end_seq) and world.record.end_seq > 1


def test_the_claim_takes_the_trim_point_that_a_writer_was_just_raising() -> None:
    world = World({3: data(3, 2)})
    close = Close(world)
    close.run("write record")
    world.change(trim_seq=3)
    close.run()
    assert close.result is not None and (close.result.trim_seq, close.result.end_seq) == (3, 4)


def test_an_upload_that_lands_before_the_fence_counts() -> None:
    world = World({0: data(0), 2: data(2, -1)})
    close = Close(world)
    close.run("fence")
    world.objects[1] = data(1)
    close.run()
    assert close.result is not None and close.result.end_seq == 3


def test_the_end_that_is_recorded_holds_whatever_another_close_has_found() -> None:
    """The slow one's objects are in a set by then, and gone: it puts its fence into nothing."""
    world = World({0: data(0), 1: data(1, 0)})
    slow = Close(world)
    slow.run("read")
    assert closed(world).end_seq == 2
    world.change(trim_seq=2)
    world.objects.clear()
    slow.run()
    assert slow.result is not None and slow.result.end_seq == 2


def test_an_object_that_goes_because_another_closed_it_is_no_damage() -> None:
    world = World({0: data(0), 1: data(1, 0), 2: data(2, 1)})
    slow = Close(world)
    slow.run("read")
    closed(world)
    world.change(trim_seq=3)
    del world.objects[0]
    slow.run()
    assert slow.error is None and slow.result is not None and slow.result.end_seq == 3


@pytest.mark.parametrize("witness", [1, 4])
def test_a_hole_that_was_durable_once_is_damage(witness: int) -> None:
    world = World({0: data(0), 1 + witness: data(1 + witness, 1)})
    close = Close(world)
    close.run()
    assert close.error is not None and close.error.seq == 1
    assert f"an object is missing that was durable when object {1 + witness} was created" in str(close.error)
    assert world.record.state is WalState.CLOSING and 1 not in world.objects


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("last", [data(9, 5), fence(9), ROTTEN])
def test_holes_as_many_as_a_window_are_damage_when_something_is_listed_behind_them(
    last: Header | str, seed: int
) -> None:
    """Whatever lies there: nothing is put five behind a hole before the hole's object is durable."""
    world = World({0: data(0), 9: last}, rng=Random(seed))
    close = Close(world)
    close.run()
    assert close.error is not None and close.error.seq == 1
    assert "an object is missing that was durable when object 9 was created" in str(close.error)
    assert world.record.state is WalState.CLOSING and 1 not in world.objects
    assert world.lists == 1


@pytest.mark.parametrize("seed", range(20))
def test_an_object_that_only_the_listing_knows_keeps_no_window_from_telling(seed: int) -> None:
    """Objects in the window that know nothing of the hole do not end the search."""
    world = World({0: data(0), 3: data(3, 0), 5: data(5, 0), 6: data(6, 4)}, rng=Random(seed))
    close = Close(world)
    close.run()
    assert close.error is not None and close.error.seq == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_listing_that_lags_is_no_evidence_of_anything(seed: int) -> None:
    world = World({seq: data(seq, seq - 4) for seq in range(11)}, rng=Random(seed))
    world.unlisted = {2, 7, 8, 9, 10}
    assert closed(world).end_seq == 11
    damaged = World({0: data(0), 3: data(3, 1)}, rng=Random(seed))
    damaged.unlisted = {0, 3}
    close = Close(damaged)
    close.run()
    assert close.error is not None and close.error.seq == 1, "the window tells it without a listing"


def test_no_fence_is_put_before_the_listing_is_there() -> None:
    close = Close(World({0: data(0)}))
    while any(what != "list" for what, _ in close.waiting):
        close.waiting.sort(key=lambda call: call[0] == "list")
        with mock.patch.object(close.world.rng, "randrange", lambda count: 0):
            assert close.step() != "fence"
    close.run()
    assert close.result is not None and close.result.end_seq == 1


def test_what_was_listed_and_is_gone_is_a_witness_unless_another_has_closed_it_meanwhile() -> None:
    """Objects go only when the record says CLOSED."""
    for is_closed in (False, True):
        world = World({0: data(0), 1: data(1), 9: data(9, 5)})
        close = Close(world)
        close.run("list")
        close.step()
        world.objects.clear()
        if is_closed:
            world.change(state=WalState.CLOSED, end_seq=10)
        close.waiting = [("read", (seq,)) for seq in range(3)]
        close.run()
        assert (close.error is None) == is_closed and close.result == (world.record if is_closed else None)


def test_an_object_that_came_after_its_place_was_looked_at_is_no_damage() -> None:
    world = World({0: data(0)})
    close = Close(world)
    with mock.patch.object(world.rng, "randrange", lambda count: 0):  # one after the other
        while world.reads < 2:
            close.step()
    world.objects |= {1: data(1), 2: data(2, 1)}
    close.run()
    assert close.error is None and close.result is not None and close.result.end_seq == 3


def test_an_object_that_cannot_be_read_is_damage_and_no_end() -> None:
    close = Close(World({0: data(0), 1: ROTTEN}))
    close.run()
    assert close.error is not None and close.error.seq == 1


def test_on_an_operators_word_damage_is_passed_over_and_told() -> None:
    world = World({0: data(0), 1: ROTTEN, 3: data(3, 2), 4: data(4, 2)})
    close = Close(world, accept_loss=True)
    close.run()
    assert close.error is None and close.result == world.record
    assert (world.record.end_seq, world.record.lost) == (5, (1, 2))


def test_on_an_operators_word_holes_that_what_is_listed_knows_of_are_passed_over_and_told() -> None:
    """Those near it may have been on their way: there its own word counts, as ever."""
    world = World({0: data(0), 9: data(9, 5)})
    close = Close(world, accept_loss=True)
    close.run()
    assert close.error is None and close.result == world.record
    assert (world.record.end_seq, world.record.lost) == (6, (1, 2, 3, 4, 5))


def test_it_says_no_damage_of_a_wal_that_another_has_closed() -> None:
    world = World({0: ROTTEN})
    close = Close(world)
    close.run("read")
    world.change(state=WalState.CLOSED, end_seq=2)
    close.run()
    assert close.error is None and close.result == world.record


@pytest.mark.parametrize("seed", range(300))
def test_two_closes_and_a_writer_in_any_order_agree(seed: int) -> None:
    """Uploads land late, closes are cut off: all that the writer could acknowledge lies before the end."""
    rng = Random(seed)
    durable = rng.randint(0, 5)
    world = World({seq: data(seq, seq - 2) for seq in range(durable)}, rng=rng)
    under_way = rng.sample(range(durable, durable + 3), rng.randint(0, 3))
    closes = [Close(world), Close(world)]
    while any(close.result is None for close in closes):
        if under_way and rng.random() < 0.1:
            seq = under_way.pop()
            if world.objects.setdefault(seq, data(seq, durable - 1)) == fence(seq):
                under_way.clear()  # its writer knows that it has ended
            while world.objects.get(durable) not in (None, fence(durable)):
                durable += 1
        else:
            close = rng.choice([each for each in closes if each.result is None])
            if rng.random() < 0.05:
                closes[closes.index(close)] = Close(world)  # it was killed, and another begins
            else:
                close.step()
    assert closes[0].result == closes[1].result == world.record
    assert world.record.end_seq >= durable and world.objects[world.record.end_seq] == fence(
        world.record.end_seq
    )
