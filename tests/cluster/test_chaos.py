"""A cluster under load suffers everything a cluster can: nothing acknowledged is lost, nothing comes back, all mends.

Processes that die and hang, networks that are cut (both ways, one way, refusing), clocks that jump, disks that are
full, lost or missing, operators who mistype, unmount and delete: `faults` has them all, who suffers them, and why no
two come together that may cost an acknowledged message. Stock producers and a stock consumer live through it, behind
the gateway and without it; subscriptions that must prove something are followed over raw connections, whose every
acknowledgement is answered. In the end:

- every acknowledged message is there, in its producer's order, without a gap;
- where duplicates are dropped, each is there once;
- nothing was delivered whose acknowledgement had been answered before;
- every subscription has seen everything;
- the history of all that clients saw has no anomaly (`tests.history`);
- every ledger has its copies again, each read from each of its bookies.

Every round has one fault or two together, then everything must go on. `QUIRE_CHAOS_SECONDS` and `QUIRE_CHAOS_SEED` make
it longer, or the same again; a run is never shorter than one fault of each kind. The timeline is printed.

The same of a cluster without bookies, whose store hangs, is slow, refuses, is killed or cut off: in the end each log is
read, all topics are deleted, and a while later nothing lies in the bucket that nobody needs (`bucket`).
"""

from __future__ import annotations

import asyncio
import os
import time
import urllib.error
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from random import Random, SystemRandom

import pulsar
import pytest

from quire.runtime.errors import QuireError
from tests.chaos.load import Follower, Published, StockFollower, StockStream
from tests.chaos.raw import Raw
from tests.history import checker as history
from tests.history.operations import F, Outcome, Recorder
from tests.machine_speed import times_slower

from .bucket import archived, damage, looking_into, scrubbed, unneeded
from .copies import lacking, missing_blocks
from .faults import Fault, Faults
from .local import POLL_S
from .verdict import check, read
from .wired import Wired, wired

SECONDS = float(os.environ.get("QUIRE_CHAOS_SECONDS", "30"))
SEED = int(os.environ.get("QUIRE_CHAOS_SEED", SystemRandom().getrandbits(32)))

SESSION_S = 2.0
PROGRESS_S = 60.0 * times_slower()
"""Between two faults everything must go on within this time. Where sessions were lost, a log of hundreds of objects is
closed and read in it, by way of an S3 server in Python."""

EMPTY_S = 150.0
"""A log whose broker is gone is closed after a minute; then its sets go, which is looked at every quarter of one."""

LOOK_S = 5.0
"""Between two looks at the whole bucket: what brokers say to ZooKeeper goes through this process, too."""

IS_LONG = SECONDS > 45

QUICK = (
    "broker paused",
    "broker-store cut",
    "store hangs",
    "store slow",
    "store refuses",
    "store denies",
    "no bucket",
)
"""Two of these, a kill and one of `MISTAKES` are what a cluster without bookies suffers when time is short."""

MISTAKES = ("mistyped broker", "logs scrubbed", "log closed")
MISTAKES_WITH_BOOKIES = (
    "mistyped broker",
    "mistyped bookie",
    "mistyped gateway",
    "missing mount",
    "orphans deleted",
    "drain taken back",
    "drain without zookeeper",
)
"""One of them comes when time is short."""

NAMESPACE = "persistent://public/default"
NUMBERED = "persistent://public/numbered/topic"
PARTITIONS = 3


class Story:
    """The cluster, its load, and what is known of it."""

    session_s = SESSION_S

    def __init__(
        self, cluster: Wired, rng: Random, is_wanted: Callable[[str], bool] = lambda _: True
    ) -> None:
        self.cluster = cluster
        self.is_wanted = is_wanted  # a kind of fault, by its name
        self.rng = rng  # for faults only: they are the same again from the same seed
        choices = Random(rng.random())
        self.began = time.monotonic()
        self.faults = 0
        self.record = record = Recorder(cluster.data / "history.jsonl")
        self.streams = [
            StockStream(f"{NAMESPACE}/plain", lambda: None, window=8, record=record),
            StockStream(
                f"{NAMESPACE}/batched",
                lambda: None,
                window=50,
                record=record,
                batching_enabled=True,
                batching_max_messages=8,
                batching_max_publish_delay_ms=10,
            ),
            StockStream(NUMBERED, lambda: None, window=8, numbered=True, record=record),
            StockStream(f"{NAMESPACE}/parts", lambda: None, window=8),
        ]
        self.direct = StockStream(f"{NAMESPACE}/direct", lambda: None, window=8, record=record)
        """Its client knows the brokers, not the gateway."""
        self.streams.append(self.direct)
        self.followers = [
            Follower(f"{NAMESPACE}/plain", "individual", choices, record=record),
            Follower(f"{NAMESPACE}/plain", "cumulative", choices, cumulative=True, record=record),
            Follower(f"{NAMESPACE}/batched", "by-index", choices, shared=True, by_index=True, record=record),
            Follower(NUMBERED, "numbered", choices, shared=True, record=record),
            Follower(f"{NAMESPACE}/direct", "direct", choices, record=record),
        ]
        self.stock = StockFollower(f"{NAMESPACE}/parts")
        self._following: list[asyncio.Task[None]] = []
        self._clients: list[pulsar.Client] = []

    def tell(self, what: str) -> None:
        acknowledged = sum(len(stream.acknowledged) for stream in self.streams)
        print(f"{time.monotonic() - self.began:7.2f} s  {acknowledged:8} acknowledged  {what}", flush=True)

    # -- the load --------------------------------------------------------------------------------------

    async def begin(self) -> None:
        rest = self.cluster.rest
        await rest("PUT", "/admin/v2/namespaces/public/numbered")
        await rest("POST", "/admin/v2/namespaces/public/numbered/deduplication", True)
        await rest("PUT", "/admin/v2/persistent/public/default/parts/partitions", PARTITIONS)
        through, direct = self._client(self.cluster.service_url), self._client(self.cluster.direct_url)
        await asyncio.to_thread(self.stock.start, through)
        for stream in self.streams:
            await asyncio.to_thread(stream.start, direct if stream is self.direct else through)
        self._following = [asyncio.ensure_future(self._follow(one)) for one in self.followers]

    def _client(self, url: str) -> pulsar.Client:
        log = self.cluster.data / "logs" / f"client-{len(self._clients) + 1}.log"
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(log))
        self._clients.append(pulsar.Client(url, logger=logger, operation_timeout_seconds=60))
        return self._clients[-1]

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

    async def rounds(self, seconds: float) -> None:
        """Faults, alone and in pairs, until the time is over and each kind has been there."""
        faults = Faults(self.cluster, self.session_s, self.tell, self.whole, self.is_wanted)
        upcoming = _rounds(faults, self.rng)
        while time.monotonic() - self.began < seconds or self.faults < faults.count:
            now = next(upcoming)
            self.faults += len(now)
            async with asyncio.TaskGroup() as together:
                for fault in now:
                    together.create_task(fault.act())
            await self.progress()

    async def whole(self) -> None:
        """Wait until every ledger has all its copies."""
        began = time.monotonic()
        lacks: list[str] = ["nobody has looked"]
        while lacks:
            assert time.monotonic() < began + PROGRESS_S, f"not repaired: {lacks}\n{self.cluster.story()}"
            await asyncio.sleep(POLL_S)
            try:
                lacks = await lacking(self.cluster.store)
            except QuireError:
                pass  # the metadata store is away
        self.tell(f"all ledgers have all their copies, after {time.monotonic() - began:.1f} s")

    # -- what must hold --------------------------------------------------------------------------------

    async def end(self) -> None:
        for stream in self.streams:
            await asyncio.to_thread(stream.stop)
        self.tell("published everything, reading it all")
        published = {stream.topic: await self._verdict(stream) for stream in self.streams}
        for follower in self.followers:
            follower.holds_back = False
        readers = (*self.followers, self.stock)
        left, deadline = -1, 0.0
        while unseen := sum(len(published[one.topic] - one.seen) for one in readers):
            if unseen != left:
                left, deadline = unseen, time.monotonic() + PROGRESS_S
            assert time.monotonic() < deadline, f"subscriptions do not see the last {unseen} messages"
            await asyncio.sleep(POLL_S)
        for task in self._following:
            task.cancel()
        await asyncio.wait(self._following)
        problems = [problem for follower in self.followers for problem in follower.problems]
        assert not problems, problems[:5]
        await asyncio.to_thread(self._judge_history)
        await asyncio.to_thread(self.stock.stop)
        for client in self._clients:
            await asyncio.to_thread(client.close)
        await self.judge_storage()

    async def _verdict(self, stream: Published) -> set[int]:
        if stream.topic.endswith("/parts"):  # a producer does not know the partition of what has no receipt
            return check(stream, await read(self.cluster, stream.topic, PARTITIONS))
        return check(stream, await read(self.cluster, stream.topic, record=self.record))

    def _judge_history(self) -> None:
        """What everybody saw, all of it together, by the rules of `tests.history`."""
        self.record.close()
        record = self.record
        for f in (F.SEND, F.POLL, F.ACK):
            assert record.kinds[f, Outcome.OK], f"no {f} in the history"
        anomalies = history.check_file(
            record.file, record.topics, history.Promises(without_duplicates=(NUMBERED,))
        )
        told = "\n".join(map(str, anomalies[:5]))
        assert not anomalies, f"{len(anomalies)} anomalies in {record.file}:\n{told}"
        self.tell(f"{record.topics.total()} operations of clients, no anomaly")

    async def judge_storage(self) -> None:
        """Every copy of every ledger is there."""
        await self.whole()
        await self.cluster.rest("POST", "/quire/v1/repair/run")
        deadline = time.monotonic() + PROGRESS_S
        while missing := await missing_blocks(self.cluster.store):
            assert time.monotonic() < deadline, f"copies are missing: {missing[:5]}"
            await asyncio.sleep(POLL_S)
        self.tell("read every copy of every closed ledger: all are whole")


class DisklessStory(Story):
    session_s = 4.0  # what a broker does in a session is more there, on a machine with little to spare

    async def judge_storage(self) -> None:
        """All that is kept is whole, and what was kept of topics goes with them."""
        async with looking_into(self.cluster.bucket_url, self.cluster.store) as bucket:
            assert not (found := await damage(bucket)), found[:5]
            self.tell("read every log: all is whole")
            segments = await archived(bucket)
            for stream in self.streams:
                path = stream.topic.replace("://", "/")
                parts = "/partitions" if path.endswith("/parts") else ""
                await self._delete(f"/admin/v2/{path}{parts}?force=true")
            self.tell("deleted all topics")
            left: list[str] = []
            deadline = 0.0
            while found := await unneeded(bucket, segments):
                if found != left:
                    left, deadline = found, time.monotonic() + EMPTY_S
                assert time.monotonic() < deadline, (
                    f"{len(found)} objects stay: {found[:5]}\n{self.cluster.story()}"
                )
                await asyncio.sleep(LOOK_S)
            found = await scrubbed(bucket)
            assert not found, found[:5]
            assert not (damaged := await damage(bucket)), damaged[:5]
            self.tell("nothing is left that nobody needs")

    async def _delete(self, path: str) -> None:
        """Until it is done: a look at the whole bucket takes this machine so long that brokers lose their sessions."""
        async with asyncio.timeout(PROGRESS_S):
            while True:
                try:
                    return await self.cluster.rest("DELETE", path)
                except urllib.error.HTTPError as error:
                    if error.code == HTTPStatus.NOT_FOUND:
                        return None
                    raise
                except TimeoutError as error:
                    self.tell(f"{path}: {error}")


def _rounds(faults: Faults, rng: Random) -> Iterator[list[Fault]]:
    """The faults of each round, for ever: two together where that may be, two times in three."""
    deck: list[Fault] = []
    while True:
        deck = deck or faults.deck(rng)
        first = deck.pop()
        others = [fault for fault in deck if fault.may_come_with(first)] if rng.random() < 0.67 else []
        if others:
            deck.remove(others[-1])
        yield [first, *others[-1:]]


@pytest.mark.chaos
@pytest.mark.timeout(300 + 4 * SECONDS)
async def test_nothing_is_lost_whatever_happens_to_the_processes_of_a_cluster(tmp_path: Path) -> None:
    rng = Random(SEED)
    bookies = rng.choice((3, 4))
    print(f"QUIRE_CHAOS_SEED={SEED} QUIRE_CHAOS_SECONDS={SECONDS:.0f}: {bookies} bookies", flush=True)
    async with wired(tmp_path / "cluster", bookies=bookies, session_s=SESSION_S) as cluster:
        mistake = rng.choice(MISTAKES_WITH_BOOKIES)
        left_out = set() if IS_LONG else {*MISTAKES_WITH_BOOKIES} - {mistake}
        story = Story(cluster, rng, lambda name: name not in left_out)
        await _live(story, SECONDS)


@pytest.mark.chaos
@pytest.mark.timeout(300 + 4 * SECONDS)
async def test_nothing_is_lost_whatever_happens_to_brokers_and_their_bucket(tmp_path: Path) -> None:
    rng = Random(SEED)
    print(f"QUIRE_CHAOS_SEED={SEED} QUIRE_CHAOS_SECONDS={SECONDS:.0f}: no bookies", flush=True)
    async with wired(tmp_path / "cluster", bookies=0, session_s=DisklessStory.session_s) as cluster:
        few = {"broker killed", *rng.sample(QUICK, 2), rng.choice(MISTAKES)}
        story = DisklessStory(cluster, rng, lambda name: IS_LONG or name in few)
        await _live(story, SECONDS if IS_LONG else 0)


@pytest.mark.skipif(not IS_LONG, reason="the short form has a bucket")
@pytest.mark.chaos
@pytest.mark.timeout(300 + 4 * SECONDS)
async def test_nothing_is_lost_whatever_happens_to_brokers_and_their_directory(tmp_path: Path) -> None:
    print(f"QUIRE_CHAOS_SEED={SEED} QUIRE_CHAOS_SECONDS={SECONDS:.0f}: a directory", flush=True)
    session_s = DisklessStory.session_s
    async with wired(tmp_path / "cluster", bookies=0, session_s=session_s, is_directory=True) as cluster:
        await _live(DisklessStory(cluster, Random(SEED)), SECONDS)


async def _live(story: Story, seconds: float) -> None:
    await story.begin()
    await story.progress()
    await story.rounds(seconds)
    await story.end()
    story.tell(f"{story.faults} faults, nothing lost")
