"""Delayed entries by their times, against a model; and where times are found in a block."""

from __future__ import annotations

import random

import pytest
from pyroaring import BitMap

from quire.serving.ports import Position
from quire.serving.subscription.delays import Delays
from quire.wire import block as blocks
from quire.wire import pulsar_pb2 as pb
from quire.wire.deliver_at import delivery_times
from quire.wire.message import OutgoingMessage, encode_batch, encode_one, seal


@pytest.mark.parametrize("seed", range(20))
def test_any_history_gives_what_a_plain_table_gives(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    tick_ms = rng.choice((1, 7, 20, 1000))
    delays, model, now_ms = Delays(tick_ms), dict[Position, int](), 1_700_000_000_000
    next_entry = [0, 0, 0]
    for _ in range(200):
        delays.now_ms = now_ms
        choice = rng.random()
        ledger_id = rng.randrange(3)
        if choice < 0.5:
            count = rng.choice((1, 5, 100))
            ids = [next_entry[ledger_id] + 2 * i for i in range(count)]
            times = [now_ms + 1 + rng.randrange(1 << rng.randrange(1, 42)) for _ in ids]
            next_entry[ledger_id] = ids[-1] + 1
            delays.add(ledger_id, ids, times)
            model |= {Position(ledger_id, one): at for one, at in zip(ids, times, strict=True)}
        elif choice < 0.7:
            now_ms += rng.randrange(1 << rng.randrange(1, 36))
            delays.now_ms = now_ms
            due = {Position(ledger, one) for ledger, some in delays.take_due() for one in some}
            assert due == {at for at, time in model.items() if -(-time // tick_ms) * tick_ms <= now_ms}
            model = {at: time for at, time in model.items() if at not in due}
        elif choice < 0.9:
            gone = BitMap(rng.sample(range(next_entry[ledger_id] + 1), min(5, next_entry[ledger_id])))
            delays.remove(ledger_id, gone)
            for one in gone:
                model.pop(Position(ledger_id, one), None)
        else:
            marked = Position(ledger_id, rng.randrange(next_entry[ledger_id] + 1) - 1)
            delays.remove_up_to(marked)
            model = {at: time for at, time in model.items() if at > marked}
        assert len(delays) == len(model) and bool(delays) == bool(model)
        least = min((-(-time // tick_ms) * tick_ms for time in model.values()), default=None)
        assert delays.next_ms() == least
    assert sum(len(some) for _, some in delays.take_all()) == len(model)
    assert not delays and delays.next_ms() is None


def test_a_delay_is_cut_to_the_longest_that_is_allowed() -> None:
    delays = Delays(10, delay_ms_max=1000)
    delays.now_ms = 5000
    delays.add(1, [0, 1], [5100, 9000])
    assert delays.next_ms() == 5100
    delays.now_ms = 6000
    assert delays.take_due() == [(1, BitMap([0, 1]))]


@pytest.mark.parametrize("size", [1, 2000])
def test_the_times_of_a_block_are_found_and_nothing_else_is_taken_for_one(size: int) -> None:
    """Large and small entries are looked through in two ways."""

    def entry(number: int, deliver_at_ms: int | None, payload: bytes = b"x" * size) -> bytes:
        return encode_one(OutgoingMessage(payload, deliver_at_ms=deliver_at_ms), "p", number, 1)

    tag = b"\x98\x01"
    bare = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    looks_like = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, ordering_key=tag * 3)
    broken = b"\x0e\x01" + bytes(4) + (20).to_bytes(4, "big") + tag + b"\xff" * 18
    entries = [
        entry(0, 5000),
        entry(1, None),
        entry(2, None, payload=tag * 10),
        entry(3, 7000, payload=tag * 10),
        seal(bare, b""),
        seal(looks_like, b""),
        entry(6, 900),
        broken,
        tag + tag,
        encode_batch([OutgoingMessage(tag), OutgoingMessage(b"2")], "p", 9, 1),
        entry(11, 2**62),
    ]
    for buffer in (
        blocks.cut(7, 100, -1, 0, 0, entries),
        memoryview(bytes(blocks.cut(7, 100, -1, 0, 0, entries))),
    ):
        header = blocks.peek(buffer)
        assert delivery_times(buffer, header, 0, 1000) == ([0, 3, 10], [5000, 7000, 2**62])
        assert delivery_times(buffer, header, 1, 5000) == ([3, 10], [7000, 2**62])
    plain = blocks.cut(7, 0, -1, 0, 0, [entry(0, None)] * 3)
    assert delivery_times(plain, blocks.peek(plain), 0, 0) == ([], [])
