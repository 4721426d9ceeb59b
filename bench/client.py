"""Benchmark of the asyncio client in one process: messages per second for batched publishing and consuming.

    python -m bench.client --url pulsar://127.0.0.1:6650

The broker runs in another process. Messages have 100 B, and are batched by the default settings. Publishing waits for
all receipts; consuming acknowledges every message.
"""

from __future__ import annotations

import argparse
import time

import uvloop

from bench.report import machine, show
from quire.client import EARLIEST, Client


async def measure(url: str, count: int, size: int) -> None:
    payload = bytes(size)
    topic = f"bench-client-{time.time_ns()}"
    async with Client(url) as client:
        begin, cpu = time.perf_counter(), time.process_time()
        async with client.producer(topic) as producer:
            for _ in range(count):
                await producer.enqueue(payload)
            await producer.flush()
        _show("publish", count, size, begin, cpu)
        begin, cpu = time.perf_counter(), time.process_time()
        async with client.consumer(topic, "bench", start=EARLIEST) as consumer:
            for _ in range(count):
                await consumer.ack(await consumer.receive())
            await consumer.flush_acks()
        _show("consume and acknowledge", count, size, begin, cpu)


def _show(what: str, count: int, size: int, begin: float, cpu: float) -> None:
    seconds = time.perf_counter() - begin
    cpu_us = (time.process_time() - cpu) / count * 1e6
    show(f"client: {what} {size} B", per_s=count / seconds, client_cpu_us=cpu_us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="pulsar://127.0.0.1:6650")
    parser.add_argument("--count", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100)
    arguments = parser.parse_args()
    show("machine", **machine())
    uvloop.run(measure(arguments.url, arguments.count, arguments.size))


if __name__ == "__main__":
    main()
