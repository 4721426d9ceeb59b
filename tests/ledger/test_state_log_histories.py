"""Random histories of a state log: owners come and go, two at once, over a bad network, while it rolls all the time.

Each owner counts; whatever an owner was told is durable is there for every later one, in the order of its deltas, and
exactly once unless its owner was told that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.ledger.ledgers import Ledgers
from quire.ledger.state_log import StateLog, StateLogOwner
from quire.runtime.errors import Fenced, OutcomeUnknown, QuireError, Unavailable
from quire.testing.cluster import MemoryCluster
from quire.testing.network import FaultyNetwork, RemoteBookie, RemoteStore

PATH = "/quire/state/t/n/b"


class Owner:
    """Keeps the list of all records it knows; its snapshot is that list."""

    def __init__(self, history: History, name: int) -> None:
        self._history = history
        self._name = name
        self.records: list[bytes] = []
        self.is_dead = False

    async def run(self) -> None:
        history = self._history
        ledgers = history.process()
        durable_before = set(history.durable)
        try:
            log = await StateLog.open(
                ledgers,
                PATH,
                StateLogOwner(self.records.append, lambda: list(self.records), on_failed=self._failed),
                roll_bytes=history.rng.choice((500, 100_000)),
            )
        except (Fenced, Unavailable, OutcomeUnknown):
            return
        assert durable_before <= set(self.records), "what was durable is gone"
        for number in range(history.rng.randrange(40)):
            if not self.is_dead:
                self._count(log, b"%d-%d" % (self._name, number))
            for _ in range(history.rng.randrange(8)):
                await asyncio.sleep(0)
        if history.rng.random() < 0.3 and not self.is_dead:
            try:
                await log.close()
            except (Fenced, OutcomeUnknown):
                pass

    def _failed(self, error: QuireError) -> None:
        assert isinstance(error, Fenced | OutcomeUnknown), error
        self.is_dead = True

    def _count(self, log: StateLog, record: bytes) -> None:
        self.records.append(record)

        def done(error: QuireError | None) -> None:
            if error is None:
                self._history.durable.append(record)

        log.append(record, done)


class History:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.cluster = MemoryCluster(4, seed)
        self.network = FaultyNetwork(self.rng, self.rng.choice((1, 4, 8)), self.rng.choice((0.0, 0.01, 0.04)))
        self.durable: list[bytes] = []
        for bookie in self.cluster.bookies:
            bookie.deliver = self.network.later
            self.cluster.directory.join(bookie.record, RemoteBookie(bookie, self.network))

    def process(self) -> Ledgers:
        store: Any = RemoteStore(self.cluster.store.join(), self.network)
        return Ledgers(store, self.cluster.directory, self.cluster.clock, self.rng, self.cluster.settings)

    async def run(self) -> None:
        running: list[asyncio.Task[None]] = []
        for name in range(self.rng.randint(2, 5)):
            running.append(asyncio.ensure_future(Owner(self, name).run()))
            for _ in range(self.rng.randrange(300)):
                await asyncio.sleep(0)
        await asyncio.gather(*running)
        self.network.loss = 0.0
        await self.check()

    async def last_owner(self) -> list[bytes]:
        """What an owner finds; former ones may still be rolling, so it may take several attempts."""
        for _ in range(10):
            ledgers = self.process()
            records: list[bytes] = []
            try:
                await StateLog.open(ledgers, PATH, StateLogOwner(records.append, lambda: list(records)))  # noqa: B023
                return records
            except Fenced:
                continue
        raise AssertionError("nobody can open the log")

    async def check(self) -> None:
        records = await self.last_owner()
        assert len(records) == len(set(records)), "a record is there twice"
        assert set(self.durable) <= set(records), "what was durable is gone"
        durable = set(self.durable)
        assert [record for record in records if record in durable] == self.durable, "out of order"


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_was_durable_is_there_for_every_later_owner(seed):
    asyncio.run(asyncio.wait_for(History(seed).run(), 30))
