"""Child process of a benchmark: it does one `Job`, and reports each quarter of a second.

    parent ─▶ stdin   job · begin TIME · (end of input: stop)
    stdout ─▶ parent  {"ready": true} · {"tallies": …, "cpu_s": …, "wall_s": …}, … · (end)
                      {"error": …, "kind": …} if it failed

The end of the input stops the process also if the parent was killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import repeat
from typing import Any, Final, TypeVar

import msgspec

from quire.client import EARLIEST, LATEST, Client, Consumer, Producer
from quire.client.authentication import presenting
from quire.perf.consuming import CONSUME, consume
from quire.perf.job import KINDS, LINE_BYTES_MAX, Job, decode
from quire.perf.pacer import Pacer, Window, window
from quire.perf.publishing import PUBLISH, Publisher
from quire.perf.round_trips import AT_ONCE, OPEN, Opening, RoundTrips
from quire.perf.tally import Tally, taken
from quire.runtime.errors import QuireError

REPORT_S: Final = 0.25
SETTLE_S: Final = 5.0
"""Seconds for which an interrupted producer waits for receipts."""

T = TypeVar("T")


class Worker:
    """One job, with its client and its tallies."""

    def __init__(self, job: Job) -> None:
        connect = job.connect
        self.job = job
        self.tallies = {PUBLISH: Tally(), CONSUME: Tally(), OPEN: Tally()}
        self.client = Client(
            connect.service_url,
            settings=connect.settings,
            tls=connect.tls,
            authentication=presenting(connect.credentials, connect.tls),
        )
        self.pacer = Pacer()
        self.publishers: list[Publisher] = []
        self._cpu_s = self._wall_s = 0.0

    async def run(self, commands: asyncio.StreamReader) -> None:
        """Prepare, wait for the begin, and work until the job is done or the input ends."""
        prepare, work = ROLES[self.job.role]
        async with self.client:
            ends = await prepare(self)
            _say({"ready": True})
            line = await commands.readline()
            if not line:
                return
            of = window(int(line), self.job.warm_up_s, self.job.duration_s)
            working = asyncio.create_task(work(self, ends, of))
            stopping = asyncio.create_task(_cancel_at_end(commands, working))
            reporting = asyncio.create_task(self._report(of))
            try:
                await asyncio.wait([working])
                if working.cancelled():
                    await self._settle()
                else:
                    working.result()
            finally:
                self.pacer.close()
                for task in (stopping, reporting):
                    task.cancel()
                self._say_tallies()

    async def _settle(self) -> None:
        with suppress(TimeoutError, QuireError):
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*(one.settle() for one in self.publishers))
        for one in self.publishers:
            one.give_up()

    async def _report(self, of: Window) -> None:
        await self.pacer.until(of.measured)
        self._cpu_s, self._wall_s = time.process_time(), time.monotonic()
        while True:
            await asyncio.sleep(REPORT_S)
            self._say_tallies()

    def _say_tallies(self) -> None:
        """Report what happened since the last report, and the CPU time since the warm-up."""
        used = {"cpu_s": time.process_time() - self._cpu_s, "wall_s": time.monotonic() - self._wall_s}
        _say({"tallies": taken(self.tallies), **(used if self._wall_s else {"cpu_s": 0.0, "wall_s": 0.0})})

    # -- Roles --

    async def producers(self) -> list[Producer[bytes]]:
        """Open the producers of the job."""
        settings = self.job.publishing.settings
        made = [self.client.producer(topic, settings=settings) for topic in self.job.topics]
        await _all(one.start() for one in made)
        return made

    async def publish(self, producers: list[Producer[bytes]], of: Window) -> None:
        """Publish by all producers."""
        job = self.job
        shares: Iterable[int | None] = job.shares or repeat(None)
        self.publishers = [
            Publisher(producer, self.tallies, self.pacer, of, job.publishing, share)
            for producer, share in zip(producers, shares, strict=False)
        ]
        await _all(one.run(phase) for one, phase in zip(self.publishers, job.phases, strict=True))

    async def consumers(self) -> list[Consumer[bytes]]:
        """Create the consumers of the job, and subscribe if that is not measured."""
        how = self.job.subscribing
        made = [
            self.client.consumer(
                topic,
                subscription,
                type=how.type,
                start=EARLIEST if how.from_earliest else LATEST,
                durable=how.durable,
                create=how.create,
            )
            for topic, subscription in zip(self.job.topics, self.job.subscriptions, strict=True)
        ]
        if how.before_begin:
            await _all(one.start() for one in made)
        return made

    async def consume(self, consumers: list[Consumer[bytes]], of: Window) -> None:
        """Consume by all consumers until the parent stops this process."""
        await self.pacer.until(of.begin)
        if not self.job.subscribing.before_begin:
            await _all(one.start() for one in consumers)
        await _all(consume(one, self.tallies, of) for one in consumers)

    async def pair(self) -> tuple[Producer[bytes], Consumer[bytes]]:
        """Open a consumer and a producer of the same topic."""
        [consumer] = await self.consumers()
        [producer] = await self.producers()
        return producer, consumer

    async def ping(self, ends: tuple[Producer[bytes], Consumer[bytes]], of: Window) -> None:
        """Publish and receive one message at a time."""
        await self.pacer.until(of.begin)
        share = self.job.shares[0] if self.job.shares else None
        await RoundTrips(*ends, self.tallies, of, self.job.publishing, share).run()

    async def nothing(self) -> None:
        """Prepare nothing."""

    async def open(self, _: None, of: Window) -> None:
        """Open all topics."""
        await self.pacer.until(of.begin)
        opening = Opening(self.client, self.tallies, self.job.publishing)
        topics = iter(self.job.topics)
        await _all(opening.each(topics) for _ in range(AT_ONCE))


ROLES: Final[
    Mapping[str, tuple[Callable[[Worker], Awaitable[Any]], Callable[[Worker, Any, Window], Any]]]
] = {
    "produce": (Worker.producers, Worker.publish),
    "consume": (Worker.consumers, Worker.consume),
    "ping": (Worker.pair, Worker.ping),
    "open": (Worker.nothing, Worker.open),
}
"""Preparation and work of each role."""


async def _all(works: Iterable[Awaitable[T]]) -> None:
    """Do all of it at the same time; the first error cancels the others and is raised by itself, not as a group."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _cancel_at_end(commands: asyncio.StreamReader, working: asyncio.Task[None]) -> None:
    await commands.read()
    working.cancel()


def _say(report: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


async def work() -> None:
    """Do the job on standard input, and report an error on standard output."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), os.fdopen(os.dup(0), "rb"))
    try:
        await Worker(decode(await commands.readline())).run(commands)
    except QuireError as error:
        kind = next((name for name, kind in KINDS.items() if isinstance(error, kind)), "")
        _say({"error": str(error), "kind": kind})
