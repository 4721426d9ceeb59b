"""Processes of a cluster are killed and paused at random under load: nothing acknowledged is lost, nothing comes back.

Stock producers and a stock consumer live through it all behind the gateway; subscriptions that must prove something
are followed over raw connections, whose every acknowledgement is answered. In the end:

- every acknowledged message is there, in its producer's order, without a gap;
- where duplicates are dropped, each is there once;
- nothing was delivered whose acknowledgement had been answered before;
- every subscription has seen everything.

One fault at a time, of one process: SIGKILL (and a start after a while; the first bookie loses its directories, too),
or SIGSTOP (and SIGCONT after a while, shorter or longer than a session). `QUIRE_CHAOS_SECONDS` and `QUIRE_CHAOS_SEED`
make it longer, or the same again; the faults and their moments are printed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom

import pulsar
import pytest

from tests.chaos.load import Follower, Log, Published, StockFollower, StockStream
from tests.chaos.raw import Raw

from .local import POLL_S, Cluster, running

SECONDS = float(os.environ.get("QUIRE_CHAOS_SECONDS", "20"))
SEED = int(os.environ.get("QUIRE_CHAOS_SEED", SystemRandom().getrandbits(32)))

SESSION_S = 2.0
PROGRESS_S = 60.0
"""Between two faults everything must go on within this time."""

NAMESPACE = "persistent://public/default"
NUMBERED = "persistent://public/numbered/topic"
PARTITIONS = 3
VICTIMS = ("broker", "broker", "broker", "bookie", "bookie", "zookeeper", "gateway")


class Story:
    """The cluster, its load, and what is known of it."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self.cluster = cluster
        self.rng = rng  # for faults only: they are the same again from the same seed
        choices = Random(rng.random())
        self.began = time.monotonic()
        self.faults = 0
        self.wiped = ""
        """The bookie that lost its disks: one of three copies at most, so none else may."""
        self.streams = [
            StockStream(f"{NAMESPACE}/plain", lambda: None, window=8),
            StockStream(
                f"{NAMESPACE}/batched",
                lambda: None,
                window=50,
                batching_enabled=True,
                batching_max_messages=8,
                batching_max_publish_delay_ms=10,
            ),
            StockStream(NUMBERED, lambda: None, window=8, numbered=True),
            StockStream(f"{NAMESPACE}/parts", lambda: None, window=8),
        ]
        self.followers = [
            Follower(f"{NAMESPACE}/plain", "individual", choices),
            Follower(f"{NAMESPACE}/plain", "cumulative", choices, cumulative=True),
            Follower(f"{NAMESPACE}/batched", "by-index", choices, shared=True, by_index=True),
            Follower(NUMBERED, "numbered", choices, shared=True),
        ]
        self.stock = StockFollower(f"{NAMESPACE}/parts")
        self._following: list[asyncio.Task[None]] = []

    def tell(self, what: str) -> None:
        acknowledged = sum(len(stream.acknowledged) for stream in self.streams)
        print(f"{time.monotonic() - self.began:7.2f} s  {acknowledged:8} acknowledged  {what}", flush=True)

    # -- the load --------------------------------------------------------------------------------------

    async def begin(self) -> pulsar.Client:
        rest = self.cluster.rest
        await rest("PUT", "/admin/v2/namespaces/public/numbered")
        await rest("POST", "/admin/v2/namespaces/public/numbered/deduplication", True)
        await rest("PUT", "/admin/v2/persistent/public/default/parts/partitions", PARTITIONS)
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(self.cluster.log) + ".client")
        client = pulsar.Client(self.cluster.service_url, logger=logger, operation_timeout_seconds=60)
        await asyncio.to_thread(self.stock.start, client)
        for stream in self.streams:
            await asyncio.to_thread(stream.start, client)
        self._following = [asyncio.ensure_future(self._follow(one)) for one in self.followers]
        return client

    async def _follow(self, follower: Follower) -> None:
        """Consume, and come back whenever the connection is lost."""

        async def connect() -> Raw:
            return await self.cluster.connect(follower.topic)

        while True:
            await follower.run(connect)
            await asyncio.sleep(POLL_S)

    def _counts(self) -> dict[str, int]:
        """How far every stream and every subscription is."""
        counts = {stream.topic: len(stream.acknowledged) for stream in self.streams}
        return counts | {f"{one.topic} {one.name}": len(one.seen) for one in self.followers}

    async def progress(self) -> None:
        """Wait until every stream got receipts and every subscription messages. Fails when one does not."""
        before = self._counts()
        deadline = time.monotonic() + PROGRESS_S
        while stuck := [name for name, count in self._counts().items() if count < before[name] + 3]:
            if time.monotonic() > deadline:
                pytest.fail(f"{', '.join(stuck)}: nothing goes on\n{self.cluster.story()}")
            await asyncio.sleep(POLL_S)

    # -- faults ----------------------------------------------------------------------------------------

    async def one_fault(self) -> None:
        self.faults += 1
        victim = self.rng.choice(sorted(self.cluster.pids(self.rng.choice(VICTIMS))))
        if self.rng.random() < 0.6:
            self.tell(f"SIGKILL {victim}")
            self.cluster.signal(victim, signal.SIGKILL)
            if victim.startswith("bookie") and not self.wiped:
                self.wiped = victim
                self.tell(f"the directories of {victim} are gone")
                shutil.rmtree(self.cluster.data / victim)
            await asyncio.sleep(self.rng.uniform(0, 1.5 * SESSION_S))
            await self.cluster.restart_dead(victim)
            self.tell(f"{victim} is up again")
        else:
            self.tell(f"SIGSTOP {victim}")
            self.cluster.signal(victim, signal.SIGSTOP)
            await asyncio.sleep(self.rng.choice((0.3, 0.8, 1.5, 2.5)) * SESSION_S)
            self.cluster.signal(victim, signal.SIGCONT)
            self.tell(f"SIGCONT {victim}")

    # -- what must hold --------------------------------------------------------------------------------

    async def end(self, client: pulsar.Client) -> None:
        for stream in self.streams:
            await asyncio.to_thread(stream.stop)
        self.tell("published everything, reading it all")
        published = {stream.topic: check(stream, await self._read(stream)) for stream in self.streams}
        for follower in self.followers:
            follower.holds_back = False
        deadline = time.monotonic() + PROGRESS_S
        while unseen := [
            one.topic for one in (*self.followers, self.stock) if published[one.topic] - one.seen
        ]:
            assert time.monotonic() < deadline, f"{unseen}: a subscription has not seen everything"
            await asyncio.sleep(POLL_S)
        for task in self._following:
            task.cancel()
        await asyncio.wait(self._following)
        problems = [problem for follower in self.followers for problem in follower.problems]
        assert not problems, problems[:5]
        await asyncio.to_thread(self.stock.stop)
        await asyncio.to_thread(client.close)

    async def _read(self, stream: Published) -> list[list[int]]:
        """The numbers in each partition of the topic."""
        names = [stream.topic]
        if stream.topic.endswith("/parts"):
            names = [f"{stream.topic}-partition-{number}" for number in range(PARTITIONS)]
        logs = []
        for name in names:
            log = Log(name)
            await log.extend(lambda name=name: self.cluster.connect(name), 0)  # type: ignore[misc]
            logs.append(log.numbers())
        return logs


def check(stream: Published, logs: list[list[int]]) -> set[int]:
    """What must be true of a topic whose producer had a receipt for all it sent. Answers what is there."""
    assert not stream.errors, stream.errors[:3]
    counts = Counter(number for log in logs for number in log)
    lost = sorted(stream.acknowledged - counts.keys())
    assert not lost, f"{stream.topic}: {len(lost)} acknowledged messages are lost, from {lost[:5]} on"
    assert len(stream.acknowledged) == stream.sent
    if stream.never_twice:
        assert max(counts.values()) == 1, f"{stream.topic}: duplicates {counts.most_common(3)}"
    for log in logs:
        firsts = list(dict.fromkeys(log))
        assert firsts == sorted(firsts), f"{stream.topic}: out of order"
    return set(counts)


@pytest.mark.chaos
@pytest.mark.timeout(240 + 4 * SECONDS)
async def test_nothing_is_lost_when_processes_of_a_cluster_die_and_hang(tmp_path: Path) -> None:
    print(f"QUIRE_CHAOS_SEED={SEED} QUIRE_CHAOS_SECONDS={SECONDS:.0f}")
    async with running(tmp_path / "cluster", session_timeout_ms=f"{SESSION_S * 1000:.0f}ms") as cluster:
        story = Story(cluster, Random(SEED))
        client = await story.begin()
        await story.progress()
        while time.monotonic() - story.began < SECONDS:
            await story.one_fault()
            await story.progress()
        await story.end(client)
        story.tell(f"{story.faults} faults, nothing lost")
