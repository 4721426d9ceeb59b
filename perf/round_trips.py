"""One message at a time, and the opening of topics: closed loops, which measure a server without other load.

Such a loop waits for the server, so it must not be used for the latencies of a loaded server, which need a schedule
(`pacer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from quire.client import Client, Consumer, Producer
from quire.perf.consuming import arrived
from quire.perf.job import Publishing
from quire.perf.pacer import Window, now_ns
from quire.perf.payload import body, stamp
from quire.perf.publishing import PUBLISH
from quire.perf.tally import Tally
from quire.runtime.errors import Unavailable

OPEN: Final = "open"

ARRIVAL_S: Final = 30.0
"""Seconds after which a message that has not arrived ends the run."""

AT_ONCE: Final = 20
"""Number of tasks of a process that open topics."""


class RoundTrips:
    """Producer and consumer of one topic. The next message waits for the receipt and the arrival of the last one."""

    def __init__(
        self,
        producer: Producer[bytes],
        consumer: Consumer[bytes],
        tallies: dict[str, Tally],
        window: Window,
        how: Publishing,
        share: int | None,
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._tallies = tallies
        self._window = window
        self._size = how.size
        self._body = body(how.payload, how.size, seed=7)
        self._left = share

    async def run(self) -> None:
        """Publish and receive. Raises `PublishFailed`, `PublishUnknown` or `Unavailable`."""
        while (due := now_ns()) < self._window.end and self._left != 0:
            await asyncio.gather(self._receipt(due), self._arrival())
            if self._left is not None and due >= self._window.measured:
                self._left -= 1

    async def _receipt(self, due: int) -> None:
        await self._producer.send(stamp(due) + self._body)
        now = now_ns()
        if due >= self._window.measured:
            self._tallies[PUBLISH].count(self._size, now, now - due)

    async def _arrival(self) -> None:
        try:
            message = await self._consumer.receive(ARRIVAL_S)
        except TimeoutError:
            raise Unavailable(f"a message did not arrive within {ARRIVAL_S:.0f} s") from None
        arrived(message, self._tallies, self._window)
        await self._consumer.ack(message)


class Opening:
    """Opening of new topics: the time until each has a producer, and the time of its first message."""

    def __init__(self, client: Client, tallies: dict[str, Tally], how: Publishing) -> None:
        self._client = client
        self._tallies = tallies
        self._how = how
        self._body = body(how.payload, how.size, seed=7)

    async def each(self, topics: Iterator[str]) -> None:
        """Open one topic after the other; they stay open until the client is closed."""
        for topic in topics:
            began = now_ns()
            producer = self._client.producer(topic, settings=self._how.settings)
            await producer.start()
            opened = now_ns()
            self._count(OPEN, 0, began, opened)
            await producer.send(self._body)
            self._count(PUBLISH, self._how.size, opened, now_ns())

    def _count(self, name: str, size: int, began: int, now: int) -> None:
        self._tallies[name].count(size, now, now - began)
