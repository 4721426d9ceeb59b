"""The store is lost at any moment: what the bucket holds then, at any call of a history, is enough for all that counts.

A history writes, flushes, deletes, closes logs and keeps closed ones in order. Before some of its calls to the object
store a picture is taken: of the objects, as they are, and of what was acknowledged and deleted by then. Each picture is
rescued without a copy of the metadata.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest

from quire.ledger.ledgers import LedgerWriter
from quire.metadata.records import WalState
from quire.runtime.errors import NotFound, QuireError
from quire.testing.cluster import Listener, expected, read_all, write
from quire.wal import own_record, tombstones
from quire.wal.collector import Collector
from tests.rescue.test_wals import World
from tests.wal.test_with_ledgers import Broker

SEEDS = int(os.environ.get("QUIRE_CRASH_SEEDS", "6"))
STEPS, CALLS, PICTURES = 40, 600, 24


@dataclass
class Picture:
    """`acknowledged`: the last entry of each ledger. `gone`: ledgers that nobody but tombstones knows; `going`: or are
    being deleted."""

    acknowledged: dict[int, int]
    gone: set[int]
    going: set[int] = field(default_factory=set)
    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)


class History:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world = World()
        self.writers: dict[int, tuple[Broker, LedgerWriter, Listener]] = {}
        self.acknowledged: dict[int, int] = {}
        self.deleted: set[int] = set()
        self.gone: set[int] = set()
        self.going: set[int] = set()
        self.pictures: list[Picture] = []
        self.calls = 0
        self.numbers = count()
        """Of topics: of two ledgers that begin with one message the first would be cut."""
        self.moments: set[int] = set()

    def look(self, _call: str) -> None:
        """In a thread of the store's, before a call: what was acknowledged first, what is being deleted last."""
        self.calls += 1
        if self.calls in self.moments:
            picture = Picture(dict(self.acknowledged), set(self.gone))
            picture.objects = dict(self.world.objects.faults.objects)
            picture.going = set(self.going)
            self.pictures.append(picture)

    async def run(self) -> None:
        self.brokers = [await self.world.broker(name) for name in ("first", "second")]
        self.collectors = [
            Collector(broker.wals.context, broker.wals.own_wal, lambda: True) for broker in self.brokers
        ]
        self.moments = set(self.rng.sample(range(CALLS), PICTURES))
        self.world.objects.faults.before = self.look
        try:
            for _ in range(STEPS):
                with suppress(QuireError):  # a log ends while it is flushed
                    await self.step()
                await self.look_who_is_gone()
        finally:
            self.world.objects.faults.before = lambda _call: None
            await self.world.stop()
            for collector in self.collectors:
                await collector.stop()

    async def step(self) -> None:
        rng = self.rng
        broker = rng.choice(self.brokers)
        match rng.choices(("new", "write", "flush", "delete", "close", "collect"), (4, 8, 3, 3, 1, 3))[0]:
            case "new":
                writer = await broker.ledgers.create(
                    f"topic:persistent://t/n/{next(self.numbers)}", listener := Listener()
                )
                self.writers[writer.ledger_id] = broker, writer, listener
            case "write" if self.writers:
                await asyncio.gather(*(self.write(each) for each in rng.choices(list(self.writers), k=3)))
            case "flush":
                await broker.wals.flush()
            case "delete" if self.writers:
                await self.delete(rng.choice(list(self.writers)))
            case "close":
                await broker.is_closed_by_somebody()
            case "collect":
                await rng.choice(self.collectors).look()

    async def write(self, ledger_id: int) -> None:
        _, writer, listener = self.writers[ledger_id]
        last = write(writer, self.rng.randrange(1, 4))
        await listener.until(last)
        self.acknowledged[ledger_id] = max(last, self.acknowledged.get(ledger_id, -1))

    async def delete(self, ledger_id: int) -> None:
        broker, writer, _ = self.writers.pop(ledger_id)
        self.going.add(ledger_id)
        writer.abandon()
        await broker.ledgers.delete(ledger_id)
        self.deleted.add(ledger_id)

    async def look_who_is_gone(self) -> None:
        """A tombstone that waits in the metadata store is lost with it."""
        waiting: set[int] = set()
        for uuid in await own_record.all_records(self.world.lost):
            waiting.update(await tombstones.laid(self.world.lost, uuid))
        self.gone = self.deleted - waiting


async def rescued(picture: Picture) -> str:
    """What went wrong, or nothing."""
    world = World()
    world.objects.faults.objects.update(picture.objects)
    try:
        report = await world.rescue()
        half = {f"ledger {each}" for each in picture.going - picture.gone}
        if report.lost and all(why.partition(":")[0] in half for why in report.lost):
            report = await world.rescue(accept_loss=True)  # of two logs one had let go of it already
            report.lost.clear()
        if report.lost or not report.is_done:
            return f"lost: {report.lost}"
        for ledger_id in picture.gone:
            with suppress(NotFound):
                return f"deleted ledger {ledger_id} is back: {await world.ledgers.info(ledger_id)}"
        for ledger_id, last in picture.acknowledged.items():
            if ledger_id not in picture.going:
                found = await read_all(world.ledgers, ledger_id)
                if found != expected(len(found) - 1) or len(found) <= last:
                    return f"ledger {ledger_id} has {len(found)} entries, and {last} was acknowledged"
        records = await own_record.all_records(world.store)
        return "" if all(record.state is WalState.CLOSED for record in records.values()) else f"{records}"
    finally:
        await world.stop()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_picture_is_rescued(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "quire.wal.directory.RETRY_S",
        "quire.wal.collector.GRACE_S",
        "quire.wal.collector.REMOVE_AFTER_S",
    ):
        monkeypatch.setattr(name, 0.0)
    history = History(seed)
    await history.run()
    assert history.pictures, "no call was at a moment that was drawn"
    wrong = [why for picture in history.pictures if (why := await rescued(picture))]
    assert not wrong, f"seed {seed}, of {len(history.pictures)} pictures: {wrong}"
