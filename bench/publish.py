"""Benchmark of publishing on a standalone server's event loop: CPU in µs per entry, from read buffer to receipts.

    python -m bench.publish [QUESTION …]

The server runs in this process, with its journal on a real disk. Bytes are passed directly to a connection, and its
output is discarded. The figures are the CPU time of the event loop's thread alone, without sockets, clients and other
threads. So they repeat within some percent even if other processes load the machine.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any, Final

import numpy as np
import uvloop

from bench.load import NAMESPACE, SEQUENCE_FIRST, Round, entry_of
from bench.report import ask, show
from quire.process.settings import Given
from quire.process.standalone import load, standalone
from quire.serving.broker import Broker
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer

ENTRIES: Final = 300_000
"""Approximate number of entries for each question."""


class Sink(asyncio.Transport):
    """Transport that signals that it was written to, and discards the bytes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.was_written = asyncio.Event()

    def write(self, data: Buffer) -> None:
        self.was_written.set()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.was_written.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    abort = close


class Client:
    """Connection with a producer for each of `topics` topics, which publishes rounds of frames."""

    def __init__(self, broker: Broker, topics: int, frames: int, size: int, batch: int) -> None:
        self._transport = Sink()
        self._connection = broker.sessions.accept()
        self._connection.connection_made(self._transport)
        self._topics = topics
        producers = list(range(topics)) if topics > 1 else [0] * frames
        self._round = Round(producers, entry_of(size, batch, 7), batch)
        self._step = np.arange(frames) if topics == 1 else np.zeros(topics, np.int64)
        self._sequence = SEQUENCE_FIRST
        self.count = self._round.count

    async def begin(self, prefix: str) -> None:
        await self._ask(commands.connect("quire-bench"))
        for producer in range(self._topics):
            body = pb.CommandProducer(
                topic=f"{NAMESPACE}/{prefix}-{producer}", producer_id=producer, request_id=producer
            )
            await self._ask(commands.producer(body))

    async def _ask(self, frame: bytes) -> None:
        self._transport.was_written.clear()
        self._give(memoryview(frame))
        await self._transport.was_written.wait()

    def _give(self, data: memoryview) -> None:
        while data:
            room = self._connection.get_buffer(-1)
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            self._connection.buffer_updated(taken)
            data = data[taken:]

    async def publish(self) -> float:
        """Publish one round, and return this thread's CPU seconds, receipts included."""
        frames = self._round.bytes_at(self._sequence + self._step)
        self._sequence += self.count if self._topics == 1 else 1
        budget, was_written = self._connection.context.budget, self._transport.was_written
        begin = thread_time()
        self._give(frames)
        while budget.held_bytes:
            was_written.clear()
            await was_written.wait()
        return thread_time() - begin


@asynccontextmanager
async def _broker() -> Any:
    data = Path(tempfile.mkdtemp(prefix="quire-bench-"))
    flags = {"data": str(data), "listen": "127.0.0.1:0", "http": "127.0.0.1:0", "archive_lag_ms": 3_600_000}
    try:
        async with standalone(load(Given(flags, None))) as running:
            yield running.broker
    finally:
        shutil.rmtree(data, ignore_errors=True)


async def _measure(label: str, topics: int, frames: int, size: int, batch: int) -> None:
    async with _broker() as broker:
        client = Client(broker, topics, frames, size, batch)
        await client.begin("bench")
        rounds = max(200, min(2000, ENTRIES // client.count))
        took = [await client.publish() / client.count * 1e6 for _ in range(rounds)]
        show(label, best_us=min(took), median_us=median(took), entries_a_round=client.count)


def _question(label: str, topics: int, frames: int, size: int = 1024, batch: int = 1) -> Callable[[], None]:
    return lambda: uvloop.run(_measure(label, topics, frames, size, batch))


QUESTIONS: Final = {
    "1000-topics": _question("1,000 topics, 1 KiB, an entry for each", 1000, 0),
    "1000-topics-batched": _question("1,000 topics, batches of two of 512 B", 1000, 0, 512, 2),
    "1KiB": _question("one topic, 1 KiB, 256 entries", 1, 256),
    "100B": _question("one topic, 100 B, 256 entries", 1, 256, 100),
    "batched": _question("one topic, batches of 120 of 1 KiB, 8 entries", 1, 8, 1024, 120),
    "group-of-one": _question("one topic, 1 KiB, one entry", 1, 1),
    "group-of-ten": _question("one topic, 1 KiB, ten entries", 1, 10),
}

if __name__ == "__main__":
    ask(QUESTIONS)
