"""Benchmark of a subscription with a million holes: memory, bytes in the state log, and time to resume after failover.

Every other one of two million entries is acknowledged, a thousand ids per ACK. Then another broker replays the state
log, and dispatches the other entries. In a second measurement, one message is acknowledged in each of a million batches
of ten. Memory is the growth of the process, including the state log's records.

python -m bench.holes
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from time import process_time

from bench.dispatch import Port, Topic, blocks_of
from bench.report import machine, show, usage
from quire.runtime.clock import SystemClock
from quire.serving.model.ports import Position, SegmentView
from quire.serving.model.request import Done
from quire.serving.subscription.subscriptions import (
    CursorStore,
    SubscribeRequest,
    SubscriptionKind,
    Subscriptions,
)
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer

ENTRIES = 2_000_000
BLOCK_ENTRIES = 1_000
BATCH = 10


class Kept(Topic):
    """Topic of small entries, which can be read again."""

    def __init__(self, entries: int, messages: int) -> None:
        made = blocks_of(20, BLOCK_ENTRIES, messages, entries // BLOCK_ENTRIES)
        self.blocks = [buffer for buffer, _ in made]
        self.last_confirmed = Position(1, entries - 1)
        self.confirmed_index = entries * messages

    def segments(self) -> list[SegmentView]:
        return [SegmentView(1, self.last_confirmed.entry_id, 0, self.confirmed_index, 0)]

    def cached(self, position: Position) -> list[Buffer]:
        at = position.entry_id // BLOCK_ENTRIES
        return self.blocks[at : at + 8]


class Log:
    def __init__(self) -> None:
        self.records: list[bytes] = []

    def append(self, record: bytes, done: Done | None = None) -> None:
        self.records.append(record)
        if done is not None:
            done(None)


async def opened(topic: Topic, records: list[bytes], kind: SubscriptionKind) -> tuple[Subscriptions, Log]:
    """Return a broker's subscriptions after a replay of the state log's `records`."""
    store, log = CursorStore(), Log()
    for record in records:
        store.apply(record)
    log.records = list(records)
    store.attach(log)
    subscriptions = Subscriptions(topic, store, 0, SystemClock())
    subscriptions.load()
    return subscriptions, log


async def memory_bytes() -> int:
    """Return the resident memory of this process. Between two calls only subscriptions grow."""
    gc.collect()
    return usage(os.getpid()).resident_bytes


def each_but_one(first: int) -> list[pb.MessageIdData]:
    """Return the ids of every other one of the next two thousand entries."""
    return [commands.message_id(1, entry) for entry in range(first + 1, first + 2 * BLOCK_ENTRIES, 2)]


def one_of_each(first: int) -> list[pb.MessageIdData]:
    """Return ids that acknowledge the first message of each of the next two thousand batches."""
    return [
        pb.MessageIdData(ledgerId=1, entryId=entry, batch_size=BATCH, ack_set=[(1 << BATCH) - 2])
        for entry in range(first, first + 2 * BLOCK_ENTRIES)
    ]


async def measure(kind: SubscriptionKind, *, partly: bool) -> None:
    entries, messages, acks = (ENTRIES // 2, BATCH, one_of_each) if partly else (ENTRIES, 1, each_but_one)
    topic = Kept(entries, messages)
    subscriptions, log = await opened(topic, [], kind)
    request = SubscribeRequest("s", kind, 1, initial_earliest=True)
    subscription, made = await subscriptions.subscribe(request, Port())
    await asyncio.sleep(0)
    before = await memory_bytes()
    acking = 0.0
    for first in range(0, entries, 2 * BLOCK_ENTRIES):
        subscription.pump.flow(made, 2 * BLOCK_ENTRIES * messages)
        made.unacked = 0
        await asyncio.sleep(0)
        ids = acks(first)
        begin = process_time()
        subscription.pump.acknowledge(made, ids)
        acking += process_time() - begin
        await asyncio.sleep(0)
    held = await memory_bytes() - before
    deltas = sum(map(len, log.records))
    acked = entries if partly else ENTRIES // 2
    backlog = entries * messages - acked
    store = subscription._store
    assert store is not None
    records = list(store.snapshot())
    begin = process_time()
    subscriptions, _ = await opened(topic, records, kind)
    port = Port()
    found, again = await subscriptions.subscribe(SubscribeRequest("s", kind, 2), port)
    found.pump.flow(again, 1)
    opening = process_time() - begin
    begin = process_time()
    assert (await found.stats.describe()).msg_backlog == backlog
    counting = process_time() - begin
    begin, got = process_time(), again.meter.messages_out
    while again.meter.messages_out < 100_000:
        again.unacked = 0
        found.pump.flow(again, BLOCK_ENTRIES)
        await asyncio.sleep(0)
    dispatching = process_time() - begin
    show(
        f"a million batches in part, {kind.label}" if partly else f"a million holes, {kind.label}",
        ack_us=acking / acked * 1e6,
        memory_mib=held / 2**20,
        deltas_mib=deltas / 2**20,
        snapshot_kib=sum(map(len, records)) / 1024,
        open_ms=opening * 1e3,
        stats_ms=counting * 1e3,
        dispatch_us=dispatching / (again.meter.messages_out - got) * 1e6,
    )


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(measure(SubscriptionKind[sys.argv[1]], partly=sys.argv[2:] == ["partly"]))
        return
    show("machine", **machine())
    kinds = (SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED, SubscriptionKind.EXCLUSIVE)
    for words in ([kind.name, how] for how in ("whole", "partly") for kind in kinds):
        # Each measurement has its own process, because memory that one frees would hide the growth of the next.
        subprocess.run([sys.executable, "-m", "bench.holes", *words], check=True)


if __name__ == "__main__":
    main()
