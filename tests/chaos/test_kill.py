"""SIGKILL at random moments under load: nothing that was acknowledged is lost, and nothing acknowledged comes back.

One data directory lives through all kills. Four stock producers and one stock consumer keep their connections as
an application would; the subscriptions that must prove something are consumed over raw connections. After every
start, before the subscriptions go on:

- every acknowledged message is there, in its producer's order, without a gap;
- a message is there twice only if a kill met it without a receipt, and never where duplicates are dropped;
- what was once read is there still, the same bytes at the same place;
- the backlog of every subscription is what its acknowledgements say;

and while they go on, nothing is delivered whose acknowledgement was answered. Lives alternate at random between
the default settings and ones so small that segments roll and are archived, memtables flush and journals are
recycled all the time. `QUIRE_CHAOS_KILLS` makes it longer, and
`QUIRE_CHAOS_SEED` draws the same again; the short form also ends after `SHORT_S`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pulsar
import pytest

from quire.testing.zookeeper_server import free_port

from .load import Follower, Log, StockFollower, StockStream
from .raw import Raw
from .server import SMALL, Server

SHORT_S = 60.0
KILLS = int(os.environ.get("QUIRE_CHAOS_KILLS", "50"))
KILLS_S = float("inf") if "QUIRE_CHAOS_KILLS" in os.environ else SHORT_S
SEED = int(os.environ.get("QUIRE_CHAOS_SEED", SystemRandom().getrandbits(32)))
RECEIPTS_MAX = 600
"""A life ends after a random number of receipts up to this."""

NAMESPACE = "persistent://public/default"
NUMBERED = "persistent://public/numbered/topic"
PARTITIONS = 3


class History:
    """The whole test: the server, its load, and what is known of it."""

    def __init__(self, directory: Path, rng: Random) -> None:
        self.rng = rng
        self.server = Server(directory)
        self._loop = asyncio.get_running_loop()
        self._receipts = 0
        self._target = 0
        self._reached = asyncio.Event()
        self.streams = [
            StockStream(f"{NAMESPACE}/plain", self._progress, window=4),
            StockStream(
                f"{NAMESPACE}/batched",
                self._progress,
                window=20,
                batching_enabled=True,
                batching_max_messages=8,
                batching_max_publish_delay_ms=10,
            ),
            StockStream(NUMBERED, self._progress, window=4, numbered=True),
            StockStream(f"{NAMESPACE}/parts", self._progress, window=4),
        ]
        self.logs = {stream.topic: [Log(stream.topic)] for stream in self.streams[:3]}
        parts = self.streams[3].topic
        self.logs[parts] = [Log(f"{parts}-partition-{number}") for number in range(PARTITIONS)]
        self.followers = [
            Follower(f"{NAMESPACE}/plain", "individual", rng),
            Follower(f"{NAMESPACE}/plain", "cumulative", rng, cumulative=True),
            Follower(f"{NAMESPACE}/batched", "shared", rng, shared=True),
            Follower(f"{NAMESPACE}/batched", "by-index", rng, shared=True, by_index=True),
            Follower(NUMBERED, "numbered", rng),
        ]
        self.stock = StockFollower(parts)

    def _progress(self) -> None:
        """Called by the client's thread for every receipt."""
        self._receipts += 1
        if self._receipts == self._target:
            self._loop.call_soon_threadsafe(self._reached.set)

    async def receipts(self, count: int) -> None:
        """Wait for so many more receipts."""
        self._reached.clear()
        self._target = self._receipts + count
        try:
            async with asyncio.timeout(60):
                await self._reached.wait()
        except TimeoutError:
            pytest.fail(f"nothing is acknowledged any more\n{self.server.tail()}")

    async def connect(self) -> Raw:
        return await Raw.open(self.server.address)

    # -- the story ---------------------------------------------------------------------------------------

    async def run(self, kills: int, seconds: float) -> int:
        """The kills there were: so many, or those of so many seconds."""
        until = self._loop.time() + seconds
        self.server.listen, self.server.http_url = (
            f"127.0.0.1:{free_port()}",
            f"http://127.0.0.1:{free_port()}",
        )
        await self.server.start()
        client = await self._begin()
        done = 0
        while done < kills and self._loop.time() < until:
            await self._one_life(whole=done % 10 == 9)
            done += 1
        await self._end(client)
        return done

    async def _begin(self) -> pulsar.Client:
        rest = self.server.rest
        await rest("PUT", "/admin/v2/namespaces/public/numbered")
        await rest("POST", "/admin/v2/namespaces/public/numbered/deduplication", True)
        await rest("PUT", "/admin/v2/persistent/public/default/parts/partitions", PARTITIONS)
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(self.server.log) + ".client")
        client = pulsar.Client(self.server.service_url, logger=logger)
        await asyncio.to_thread(self.stock.start, client)
        for stream in self.streams:
            await asyncio.to_thread(stream.start, client)
        for follower in self.followers:
            path = f"/admin/v2/persistent/{follower.topic.removeprefix('persistent://')}"
            await rest("PUT", f"{path}/subscription/{follower.name}", {"ledgerId": -1, "entryId": -1})
        return client

    async def _one_life(self, *, whole: bool) -> None:
        """Load, a kill, perhaps another one during the start, and a look at everything."""
        following = [asyncio.ensure_future(follower.run(self.connect)) for follower in self.followers]
        await self.receipts(self.rng.randrange(1, RECEIPTS_MAX))
        await self._kill()
        await asyncio.gather(*following)
        settings = self.rng.choice((SMALL, SMALL, {}))
        if self.rng.random() < 0.1:
            await self.server.spawn(**settings)
            await asyncio.sleep(self.rng.uniform(0, 0.8))
            await self._kill()
        await self.server.start(**settings)
        await self.check(whole=whole)

    async def _kill(self) -> None:
        await self.server.kill()
        for stream in self.streams:
            stream.note_kill()

    async def _end(self, client: pulsar.Client) -> None:
        """Acknowledge what was held back: every subscription has seen everything, and its backlog is 0."""
        for stream in self.streams:
            await asyncio.to_thread(stream.stop)
        await self.check(whole=True)
        for follower in self.followers:
            follower.holds_back = False
        following = [asyncio.ensure_future(follower.run(self.connect)) for follower in self.followers]
        async with asyncio.timeout(60):
            while not await self._is_drained():
                pass
        await asyncio.to_thread(self.stock.stop)
        await asyncio.to_thread(client.close)
        assert await self.server.stop() == 0
        await asyncio.gather(*following)

    async def _is_drained(self) -> bool:
        for follower in self.followers:
            if (await self._stats(follower.topic))["subscriptions"][follower.name]["msgBacklog"]:
                return False
            published = {number for log in self.logs[follower.topic] for number in log.numbers()}
            assert published <= follower.seen, f"{follower.topic} {follower.name} has not seen everything"
        published = {number for log in self.logs[self.stock.topic] for number in log.numbers()}
        return published <= self.stock.seen

    # -- what must hold ----------------------------------------------------------------------------------

    async def check(self, *, whole: bool) -> None:
        """`whole`: all topics are read from their first message on, not from a random place."""
        try:
            await self._check_topics(whole=whole)
        except ConnectionError as error:
            pytest.fail(f"{error}\n{self.server.tail()}")
        for follower in self.followers:
            assert not follower.problems, follower.problems[:3]
            await self._check_backlog(follower)

    async def _check_topics(self, *, whole: bool) -> None:
        for stream in self.streams:
            acknowledged = set(stream.acknowledged)
            logs = self.logs[stream.topic]
            for log in logs:
                known = len(log.positions)
                since = 0 if whole or not known else self.rng.randrange(max(0, known - 500), known)
                await log.extend(self.connect, since)
            stream.check(acknowledged, [log.numbers() for log in logs])

    async def _check_backlog(self, follower: Follower) -> None:
        least = await self._messages(follower.topic)
        backlog = (await self._stats(follower.topic))["subscriptions"][follower.name]["msgBacklog"]
        follower.check_backlog(
            self.logs[follower.topic][0], backlog, least, await self._messages(follower.topic)
        )

    async def _stats(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.server.rest(
            "GET", f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats"
        )
        return found

    async def _messages(self, topic: str) -> int:
        path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/internalStats"
        return int((await self.server.rest("GET", path))["numberOfMessages"])


@pytest.fixture
async def history(tmp_path: Path) -> AsyncIterator[History]:
    made = History(tmp_path, Random(SEED))
    yield made
    await made.server.kill()


@pytest.mark.chaos
@pytest.mark.timeout(600 + 15 * KILLS)
async def test_nothing_is_lost_to_sigkill(history: History) -> None:
    print(f"QUIRE_CHAOS_SEED={SEED} QUIRE_CHAOS_KILLS={KILLS}")
    kills = await history.run(KILLS, KILLS_S)
    total = sum(len(stream.acknowledged) for stream in history.streams)
    doubled = sum(len(stream.in_doubt) for stream in history.streams)
    print(f"{kills} kills, {total} messages acknowledged, {doubled} in doubt at a kill")
