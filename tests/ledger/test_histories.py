"""Random histories: one writer, readers and any number of takeovers over bookies and metadata that misbehave.

Requests and answers travel for a random number of turns of the loop, are lost, or are applied and their answers lost;
bookies go silent and come back, and narrow ledgers are widened; the metadata store leaves outcomes open. In the end all
bookies come back, the ledger is recovered, and whatever happened:

- nothing confirmed lies beyond the end, and the end is the same for everyone;
- every entry up to the end is readable, with the bytes that were written, by every reader;
- what a reader once saw is there, and the same;
- all that is true with any Qa - 1 bookies lost for good.

A failing seed is printed by hypothesis and replays exactly.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.ledger import narrow
from quire.ledger.ledgers import Ledgers
from quire.metadata.records import LedgerState, PersistencePolicy
from quire.runtime.errors import CorruptionError, NotFound, QuireError, Unavailable
from quire.testing.cluster import Listener, MemoryCluster, expected, read_all, turns_until, write
from quire.testing.network import FaultyNetwork, RemoteBookie, RemoteStore


class History:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.write_quorum = self.rng.choice((1, 2, 3, 3, 3))
        self.ack_quorum = self.rng.randint(1, self.write_quorum)
        self.cluster = MemoryCluster(self.write_quorum + self.rng.randrange(3), seed)
        self.network = FaultyNetwork(self.rng, self.rng.choice((1, 4, 10)), self.rng.choice((0.0, 0.02, 0.1)))
        for bookie in self.cluster.bookies:
            bookie.deliver = self.network.later
            self.cluster.directory.join(bookie.record, RemoteBookie(bookie, self.network))
        self.seen: dict[int, bytes] = {}

    def process(self) -> Ledgers:
        cluster = self.cluster
        store: Any = RemoteStore(cluster.store.join(), self.network)
        quarantine_s = self.rng.choice((0, 10))  # the clock stands still: for good
        return Ledgers(
            store, cluster.directory, cluster.clock, self.rng, cluster.settings, quarantine_s=quarantine_s
        )

    async def run(self) -> None:
        listener = Listener()
        writer = await self.process().create(
            "history", listener, PersistencePolicy(write_quorum=self.write_quorum, ack_quorum=self.ack_quorum)
        )
        self.ledger_id = writer.ledger_id
        background: list[asyncio.Task[None]] = []
        takeover_at = self.rng.randrange(5, 60)
        for step in range(80):
            if writer.error is None and self.rng.random() < 0.6:
                write(writer, self.rng.randint(1, 3), self.rng.randint(1, 3))
            if self.rng.random() < 0.08:
                bookie = self.rng.choice(self.cluster.bookies)
                bookie.unreachable = not bookie.unreachable
            if step == takeover_at or (step > takeover_at and self.rng.random() < 0.05):
                background.append(asyncio.ensure_future(self.try_to_recover()))
            if self.rng.random() < 0.1:
                background.append(asyncio.ensure_future(self.look()))
            for _ in range(self.rng.randrange(6)):
                await asyncio.sleep(0)
        confirmed = listener.last
        await self.end(listener, background)
        assert listener.last >= confirmed

    async def try_to_recover(self) -> None:
        try:
            await self.process().recover(self.ledger_id)
        except Unavailable:
            pass

    async def look(self) -> None:
        """Read from somewhere in the middle, as a reader of another process."""
        try:
            reader = await self.process().open(self.ledger_id)
            entry = 0
            while blocks := await reader.read(entry, 200):
                for found in blocks:
                    for entry_bytes in self.entries(found):
                        assert self.seen.setdefault(entry, entry_bytes) == entry_bytes
                        entry += 1
        except (Unavailable, CorruptionError) as error:
            # A replica that is silent for this one, and negatives from those that lack it, look like damage only
            # when nobody was silent.
            assert isinstance(error, Unavailable), error

    def entries(self, found: Any) -> list[bytes]:
        from quire.wire import block

        return [bytes(entry) for entry in block.entries(found, block.read_header(found))]

    async def end(self, listener: Listener, background: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*background)
        self.network.loss = 0.0
        for bookie in self.cluster.bookies:
            bookie.unreachable = False
        records = await asyncio.gather(*(self.recover_in_the_end() for _ in range(2)))
        assert records[0] == records[1] and records[0].state is LedgerState.CLOSED
        end = records[0].last_entry
        await turns_until(lambda: True)
        assert listener.last <= end, "a confirmed entry lies beyond the end"
        assert not self.seen or max(self.seen) <= end, "a reader saw what is not there"
        for bookie in self.rng.sample(
            self.cluster.bookies, min(self.ack_quorum - 1, len(self.cluster.bookies))
        ):
            bookie.unreachable = True
        assert await read_all(self.process(), self.ledger_id) == expected(end)
        assert await read_all(self.process(), self.ledger_id, 1) == expected(end)
        assert all(content == b"entry %d" % entry for entry, content in self.seen.items())

    async def recover_in_the_end(self) -> Any:
        """Every ledger that recovery starts on is closed in the end, when enough bookies answer."""
        errors: list[QuireError] = []
        for _ in range(20):
            try:
                return await self.process().recover(self.ledger_id)
            except NotFound:
                raise
            except Unavailable as error:
                errors.append(error)
        raise AssertionError(errors)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_happens_what_was_confirmed_is_there(seed, monkeypatch):
    monkeypatch.setattr(narrow, "INTERVAL_S", 0)
    asyncio.run(asyncio.wait_for(History(seed).run(), 20))
