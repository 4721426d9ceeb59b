"""ZooKeeper hangs and then is gone, for longer than a session: what its users see, minute by minute made short.

    it answers      all
    in doubt        publishing and consuming go on; lookups and changes are refused: "try again"
    session over    nothing is served; whoever asks hears "try again"
    it is back      all, without anybody's help; nothing acknowledged is lost, nothing is there twice where
                    that was promised

A session is six seconds here, for a doubt of two; the moments are those at which the broker itself says that it
is in doubt and that it is over.
"""

from __future__ import annotations

import asyncio
import signal
import urllib.error
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.chaos.load import StockFollower, StockStream
from tests.chaos.raw import Refused

from .local import POLL_S, START_S, ClusterRaw
from .verdict import check, read
from .wired import Wired, wired

SESSION_S = 6.0
NAMESPACE = "persistent://public/default"
NUMBERED = "persistent://public/numbered/topic"


class Load:
    """A stream where duplicates are allowed and one where they are not, each with a consumer."""

    def __init__(self, cluster: Wired) -> None:
        self._cluster = cluster
        self.streams = [
            StockStream(f"{NAMESPACE}/topic", lambda: None, window=8),
            StockStream(NUMBERED, lambda: None, window=8, numbered=True),
        ]
        self.followers = [StockFollower(stream.topic) for stream in self.streams]

    async def begin(self) -> None:
        rest = self._cluster.rest
        await rest("PUT", "/admin/v2/namespaces/public/numbered")
        await rest("POST", "/admin/v2/namespaces/public/numbered/deduplication", True)
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(self._cluster.service_url, logger=quiet, operation_timeout_seconds=60)
        for one in (*self.followers, *self.streams):
            await asyncio.to_thread(one.start, self._client)

    def counts(self) -> list[int]:
        published = [len(stream.acknowledged) for stream in self.streams]
        return published + [len(follower.seen) for follower in self.followers]

    async def goes_on(self, seconds: float = START_S) -> None:
        """Every producer gets receipts and every consumer messages."""
        before = self.counts()
        await until(lambda: all(now > then for now, then in zip(self.counts(), before, strict=True)), seconds)

    async def end(self) -> None:
        for stream, follower in zip(self.streams, self.followers, strict=True):
            await asyncio.to_thread(stream.stop)
            published = check(stream, await read(self._cluster, stream.topic))
            await until(lambda follower=follower, published=published: published == follower.seen)  # type: ignore[misc]
            await asyncio.to_thread(follower.stop)
        await asyncio.to_thread(self._client.close)


async def until(condition: Callable[[], bool], seconds: float = START_S) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  threads and processes make no event here
            await asyncio.sleep(POLL_S)


async def until_told(cluster: Wired, metric: str) -> None:
    """Until the broker says so."""
    async with asyncio.timeout(START_S):
        while not (await cluster.metrics("broker-1"))[metric]:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


@pytest.mark.chaos
async def test_what_happens_while_zookeeper_is_away(tmp_path: Path) -> None:
    async with wired(tmp_path / "cluster", bookies=3, brokers=1, session_s=SESSION_S) as cluster:
        load = Load(cluster)
        await load.begin()
        await load.goes_on()
        raw = await ClusterRaw.reach(cluster.address_of("broker-1"))

        cluster.signal("zookeeper", signal.SIGSTOP)
        await load.goes_on()
        await until_told(cluster, "quire_serving_session_in_doubt")
        await load.goes_on(SESSION_S)
        assert await refusal_of_a_lookup(raw) == pb.ServiceNotReady
        assert await status_of_a_change(cluster) == 503
        lost = (await cluster.metrics("broker-1"))["quire_serving_sessions_lost_total"]
        assert not lost, "the doubt was over before it was looked into: this machine does much else"

        await until_told(cluster, "quire_serving_sessions_lost_total")
        silent = load.counts()[: len(load.streams)]
        assert await refusal_of_a_lookup(raw) == pb.ServiceNotReady
        with pytest.raises(Refused) as refused:
            await raw.producer(f"{NAMESPACE}/topic")
        assert refused.value.error == pb.ServiceNotReady
        await cluster.kill("zookeeper")
        assert load.counts()[: len(load.streams)] == silent, "nobody may publish when nobody owns"

        await cluster.up("zookeeper")
        await load.goes_on()
        await load.end()
        await raw.close()


async def refusal_of_a_lookup(raw: ClusterRaw) -> int:
    """The `ServerError` with which a broker answers it."""
    async with asyncio.timeout(START_S):
        found = await raw.ask(commands.ask_lookup, f"{NAMESPACE}/topic")
    assert found.response == pb.CommandLookupTopicResponse.Failed, found
    return int(found.error)


async def status_of_a_change(cluster: Wired) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        await asyncio.to_thread(cluster._rest, "PUT", "/admin/v2/namespaces/public/another", None)
    return refused.value.code
