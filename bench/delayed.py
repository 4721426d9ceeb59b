"""Benchmark of delayed delivery: memory of a million delayed messages, lateness, and the cost without any.

python -m bench.delayed

Memory is the growth of a process with one shared subscription to a million delayed entries. Their delivery times are
spread at random over an hour, or are all equal. It includes the snapshot of these entries: `survey_mib` is its size in
the state log, and `restore_ms` the time that another dispatcher takes to restore it. Lateness is the time from a
message's delivery time to its arrival at a client in another process, while later messages are waiting.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
from collections.abc import Sequence

import uvloop

from bench import server
from bench.report import machine, show, usage
from quire.client import EARLIEST, Client
from quire.serving.model.ports import Position, SegmentView
from quire.serving.model.positions import Segments
from quire.serving.subscription.cursor import cursor_record
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.delayed.delayed_delivery import SNAPSHOT_ENTRIES
from quire.serving.subscription.delayed.delays import Delays
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.shared import Shared
from quire.wire import block
from quire.wire.deliver_at import delivery_times
from quire.wire.message import OutgoingMessage, encode_one

NOW_MS = 1_800_000_000_000
PER_BLOCK = 250
HOUR_MS = 3_600_000
TICKS_MAX = 200


class Ready:
    """Consumer that is always ready. No messages are sent to it."""

    priority_level = arrival = unacked = 0
    is_ready = True
    permits = 1 << 30


def block_of(first: int, times_ms: Sequence[int]) -> BlockView:
    entries = [
        encode_one(OutgoingMessage(bytes(100), deliver_at_ms=time_ms), "bench", first + at, NOW_MS)
        for at, time_ms in enumerate(times_ms)
    ]
    made = block.cut(1, first, first - 1, NOW_MS, first, entries)
    return BlockView(made, block.peek(made))


def wait_in_memory(count: int, spread_ms: int) -> None:
    """Add `count` delayed entries to a dispatcher, and advance its clock tick by tick."""
    last = count - 1
    segments = Segments(lambda: [SegmentView(1, last, 0, count, 0)])
    cursor = Cursor(CursorKey("bench", 0, "s"), Position(1, -1))
    dispatcher = Shared(cursor, segments)
    dispatcher.delayed.delays = delays = Delays(20)
    dispatcher.consumers.append(Ready())  # type: ignore[arg-type]
    delays.now_ms = NOW_MS
    rng = random.Random(1)
    gc.collect()
    before = usage(os.getpid()).resident_bytes
    offered_s = surveyed_s = 0.0
    survey_bytes = 0
    for first in range(0, count, PER_BLOCK):
        view = block_of(first, [NOW_MS + 1 + rng.randrange(spread_ms) for _ in range(PER_BLOCK)])
        begin = time.perf_counter()
        assert dispatcher.offer(view) == []
        offered_s += time.perf_counter() - begin
        if dispatcher.delayed.found_count >= SNAPSHOT_ENTRIES or first + PER_BLOCK == count:
            begin = time.perf_counter()
            for segment in dispatcher.delayed.delayed_snapshot():
                cursor.delayed_snapshot.extend(segment)
                survey_bytes += len(cursor_record.delayed_snapshot(1, segment))
            surveyed_s += time.perf_counter() - begin
    del view
    gc.collect()
    grown = usage(os.getpid()).resident_bytes - before
    assert len(delays) == count
    begin = time.perf_counter()
    following = Shared(cursor, segments)
    following.delayed.delays = Delays(20)
    following.delayed.delays.now_ms = NOW_MS
    following.delayed.restore(cursor.delayed_snapshot)
    restored_s = time.perf_counter() - begin
    assert len(following.delayed.delays) == count
    ticks, worst_s, begin = 0, 0.0, time.perf_counter()
    while ticks < TICKS_MAX and (next_ms := delays.next_ms()) is not None:
        at = time.perf_counter()
        delays.now_ms = next_ms
        delays.take_due()
        worst_s = max(worst_s, time.perf_counter() - at)
        ticks += 1
    show(
        f"a million delayed messages, times spread over {spread_ms / 1000:g} s",
        count=count,
        mib=grown / (1 << 20),
        offer_us=offered_s / count * 1e6,
        survey_us=surveyed_s / count * 1e6,
        survey_mib=survey_bytes / (1 << 20),
        restore_ms=restored_s * 1e3,
        ticks=ticks,
        tick_us=(time.perf_counter() - begin) / ticks * 1e6,
        tick_worst_ms=worst_s * 1e3,
    )


def cost_without() -> None:
    """Measure the cost per entry of looking for delayed entries in blocks that have none."""
    for size, entries in ((100, 1_000), (1_024, 250)):
        payload = random.Random(2).randbytes(size)
        made = block.cut(1, 0, -1, 0, 0, [encode_one(OutgoingMessage(payload), "bench", 1, NOW_MS)] * entries)
        header = block.peek(made)
        best = float("inf")
        for _ in range(200):
            begin = time.perf_counter()
            delivery_times(made, header, 0, NOW_MS)
            best = min(best, time.perf_counter() - begin)
        show(
            f"entries of {size} B that are not delayed, in blocks of {entries}", look_us=best / entries * 1e6
        )


async def lateness(url: str, count: int, spread_s: float, waiting: int) -> None:
    """Measure the lateness of `count` messages due within `spread_s`, while `waiting` more are due in an hour."""
    topic = f"bench-delayed-{time.time_ns()}"
    late: list[float] = []
    async with Client(url) as client, client.consumer(topic, "s", type="shared", start=EARLIEST) as consumer:
        async with client.producer(topic) as producer:
            for _ in range(waiting):
                await producer.enqueue(b"", deliver_at_ms=time.time_ns() // 1_000_000 + HOUR_MS)
            await producer.flush()
            start_ms = time.time_ns() // 1_000_000 + 1_500 + count // 10
            for at in range(count):
                due_ms = start_ms + int(at * 1000 * spread_s / count)
                await producer.enqueue(b"%d" % due_ms, deliver_at_ms=due_ms)
            await producer.flush()
        for _ in range(count):
            message = await consumer.receive()
            late.append(time.time_ns() / 1e6 - int(message.payload or b"0"))
            await consumer.ack(message)
    late.sort()
    show(
        f"lateness of {count / spread_s:g} delayed messages/s, {waiting} others waiting",
        p50_ms=late[len(late) // 2],
        p99_ms=late[len(late) * 99 // 100],
        max_ms=late[-1],
        earliest_ms=late[0],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="messages that wait in memory")
    parser.add_argument(
        "--waiting", type=int, default=100_000, help="messages that wait behind those that are due"
    )
    arguments = parser.parse_args()
    show("machine", **machine())
    for spread_ms in (HOUR_MS, 1):
        wait_in_memory(arguments.count, spread_ms)
    cost_without()
    with server.fresh() as running:
        url = f"pulsar://127.0.0.1:{running.port}"
        uvloop.run(lateness(url, 2_000, 5.0, 0))
        uvloop.run(lateness(url, 2_000, 5.0, arguments.waiting))


if __name__ == "__main__":
    main()
