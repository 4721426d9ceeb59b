"""Benchmark of dispatching (blocks to frames) and acknowledging (ids to the cursor): CPU in µs per entry.

python -m bench.dispatch
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from time import process_time

import uvloop

from bench.report import machine, show
from quire.runtime.clock import SystemClock
from quire.serving.model.ports import Position, SegmentView
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.subscription.subscriptions import (
    Consumer,
    CursorStore,
    SubscribeRequest,
    SubscriptionKind,
    Subscriptions,
)
from quire.wire import block, commands, message
from quire.wire.block import BlockHeader, Buffer

BLOCKS = 200


class Topic:
    """Minimal topic for subscriptions: every block is confirmed at once, and none is kept."""

    name = "persistent://public/default/bench"
    tracing = None
    last_confirmed = Position(1, -1)
    confirmed_index = 0
    is_terminated = False
    policies = TopicPolicies()
    dispatch_limits = None

    async def compacted_view(self) -> None:
        pass

    def segments(self) -> Sequence[SegmentView]:
        return [SegmentView(1, self.last_confirmed.entry_id, 0, 0, 0)]

    def first_position(self) -> Position:
        return Position(1, 0)

    def next_position(self, position: Position) -> Position:
        return Position(position.ledger_id, position.entry_id + 1)

    def cached(self, position: Position) -> Sequence[Buffer]:
        return ()

    async def read(self, position: Position, bytes_max: int) -> Sequence[Buffer]:
        return ()

    async def index_of(self, position: Position) -> int:
        return position.entry_id

    async def last_message(self) -> tuple[Position, int]:
        return self.last_confirmed, -1

    async def find_time(self, time_ms: int) -> Position:
        return Position(1, 0)


class Port:
    bytes_out = 0
    wants_index = False

    def reached_end(self) -> None:
        pass

    def deliver(self, parts: list[Buffer]) -> None:
        self.bytes_out += sum(map(len, parts))

    def writable(self) -> bool:
        return True

    def active_changed(self, is_active: bool) -> None:
        pass

    def close(self) -> None:
        pass


class Log:
    def append(self, record: bytes, done: Callable[[None], None] | None = None) -> None:
        if done is not None:
            done(None)


KEYS = 1_000


def blocks_of(entry_bytes: int, entries: int, messages: int, count: int) -> list[tuple[Buffer, BlockHeader]]:
    """Return `count` blocks of `entries` entries each, whose keys repeat after `KEYS` entries."""
    body = os.urandom(entry_bytes)
    one = [
        message.encode_one(message.OutgoingMessage(body, f"key-{at % KEYS}"), "standalone-0-1", at, 1 << 40)
        for at in range(entries)
    ]
    counts = None if messages == 1 else [messages] * entries
    made = [
        block.cut(1, at * entries, at * entries - 1, 1, at * entries * messages, one, counts)
        for at in range(count)
    ]
    return [(buffer, block.peek(buffer)) for buffer in made]


async def subscribed(kind: SubscriptionKind, consumers: int) -> tuple[Topic, Subscriptions, list[Consumer]]:
    topic, store = Topic(), CursorStore()
    store.attach(Log())
    subscriptions = Subscriptions(topic, store, 0, SystemClock())
    made = []
    for number in range(consumers):
        request = SubscribeRequest("s", kind, number, str(number), initial_earliest=True)
        made.append((await subscriptions.subscribe(request, Port())).consumer)
        made[-1].permits = 1 << 40
    return topic, subscriptions, made


async def dispatched_us(
    kind: SubscriptionKind,
    consumers: int,
    entry_bytes: int,
    entries: int,
    messages: int = 1,
    together: int = 1,
) -> float:
    """Measure dispatching. `together` blocks are confirmed in one iteration of the event loop."""
    best = float("inf")
    count = max(20, min(BLOCKS, 20_000_000 // (entry_bytes * entries)))
    for _ in range(5):
        topic, subscriptions, made = await subscribed(kind, consumers)
        published = blocks_of(entry_bytes, entries, messages, count)
        begin = process_time()
        for at in range(0, count, together):
            some = published[at : at + together]
            topic.last_confirmed = Position(1, some[-1][1].last_entry)
            for one in made:
                one.unacked = 0
            subscriptions.confirmed(some)
        best = min(best, process_time() - begin)
        assert sum(one.meter.messages_out for one in made) == count * entries * messages
    return best / (count * entries) * 1e6


async def acked_us(kind: SubscriptionKind, step: int, group: int) -> float:
    """Measure acknowledging, with `group` ids in one ACK: first every `step`-th entry, then the entries between."""
    total = 100_000
    best = float("inf")
    for _ in range(3):
        topic, subscriptions, made = await subscribed(kind, 1)
        for buffer, header in blocks_of(20, 1_000, 1, total // 1_000):
            topic.last_confirmed = Position(1, header.last_entry)
            made[0].unacked = 0
            subscriptions.confirmed([(buffer, header)])
        order = [entry for first in range(step) for entry in range(first, total, step)]
        acks = [
            commands.parse(
                commands.ack(1, [commands.message_id(1, e) for e in order[at : at + group]])[8:]
            ).body.message_id  # type: ignore[attr-defined]
            for at in range(0, total, group)
        ]
        subscription = subscriptions.get("s")
        assert subscription is not None
        begin = process_time()
        for ids in acks:
            subscription.pump.acknowledge(made[0], ids)
            await asyncio.sleep(0)
        best = min(best, process_time() - begin)
        assert subscription.mark_delete == (1, total - 1)
    return best / total * 1e6


async def dispatched_and_acked_us(
    kind: SubscriptionKind, consumers: int, entry_bytes: int, entries: int, together: int = 1
) -> float:
    """Measure dispatching and acknowledging together.

    `together` blocks are confirmed in one iteration of the event loop and dispatched. Then each consumer acknowledges
    its entries by their ids in one ACK.
    """
    best = float("inf")
    for _ in range(3):
        topic, subscriptions, made = await subscribed(kind, consumers)
        published = blocks_of(entry_bytes, entries, 1, 100 * together)
        subscription = subscriptions.get("s")
        assert subscription is not None
        spent = 0.0
        for at in range(0, len(published), together):
            some = published[at : at + together]
            topic.last_confirmed = Position(1, some[-1][1].last_entry)
            begin = process_time()
            subscriptions.confirmed(some)
            spent += process_time() - begin
            for one in made:
                held = [commands.message_id(1, entry) for entry in one.pending_acks.by_ledger.get(1, ())]
                if not held:
                    continue
                begin = process_time()
                subscription.pump.acknowledge(one, held)
                await asyncio.sleep(0)
                spent += process_time() - begin
        best = min(best, spent)
        assert subscription.mark_delete == (1, len(published) * entries - 1)
    return best / (len(published) * entries) * 1e6


async def fan_out_us(count: int, entry_bytes: int, entries: int) -> float:
    """Return the µs per entry and subscription for one topic with `count` exclusive subscriptions."""
    best = float("inf")
    for _ in range(5):
        topic, store = Topic(), CursorStore()
        store.attach(Log())
        subscriptions = Subscriptions(topic, store, 0, SystemClock())
        for number in range(count):
            request = SubscribeRequest(str(number), SubscriptionKind.EXCLUSIVE, number, initial_earliest=True)
            (await subscriptions.subscribe(request, Port())).consumer.permits = 1 << 40
        published = blocks_of(entry_bytes, entries, 1, 100)
        begin = process_time()
        for buffer, header in published:
            topic.last_confirmed = Position(1, header.last_entry)
            subscriptions.confirmed([(buffer, header)])
        best = min(best, process_time() - begin)
    return best / (100 * entries * count) * 1e6


async def main() -> None:
    show("machine", **machine())
    exclusive, shared = SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED
    keyed = SubscriptionKind.KEY_SHARED
    for size, entries in ((100, 1_000), (1_024, 250), (1_024, 20), (1_024, 1)):
        label = f"entries of {size} B in blocks of {entries}"
        show(f"dispatch {label}, key-shared by 3", us=await dispatched_us(keyed, 3, size, entries))
        show(
            f"dispatch and ack each, {label}, shared by 3",
            us=await dispatched_and_acked_us(shared, 3, size, entries),
        )
        show(
            f"dispatch and ack each, {label}, key-shared by 3",
            us=await dispatched_and_acked_us(keyed, 3, size, entries),
        )
    for entries, together in ((1, 4), (1, 16), (20, 4)):
        label = f"{together} blocks a turn of {entries} x 1 KiB"
        show(
            f"dispatch {label}, exclusive", us=await dispatched_us(exclusive, 1, 1_024, entries, 1, together)
        )
        for kind, consumers in ((shared, "shared by 3"), (keyed, "key-shared by 3")):
            show(
                f"dispatch and ack each, {label}, {consumers}",
                us=await dispatched_and_acked_us(kind, 3, 1_024, entries, together),
            )
    one, ten = await fan_out_us(1, 1_024, 250), await fan_out_us(10, 1_024, 250)
    show("ten subscriptions on a topic, 1 KiB in blocks of 250", us=ten, one_us=one)
    for size, entries in ((100, 1_000), (1_024, 250), (1_024, 20), (1_024, 1), (16_384, 16), (131_072, 2)):
        label = f"entries of {size} B in blocks of {entries}"
        show(f"dispatch {label}, exclusive", us=await dispatched_us(exclusive, 1, size, entries))
        show(f"dispatch {label}, shared by 3", us=await dispatched_us(shared, 3, size, entries))
    show("dispatch batches of 100 x 1 KiB, exclusive", us=await dispatched_us(exclusive, 1, 102_400, 2, 100))
    for group in (1, 10, 1_000):
        show(f"ack in order, {group} ids a command, exclusive", us=await acked_us(exclusive, 1, group))
        show(f"ack in order, {group} ids a command, shared", us=await acked_us(shared, 1, group))
        show(f"ack scattered, {group} ids a command, shared", us=await acked_us(shared, 7, group))


if __name__ == "__main__":
    uvloop.run(main())
