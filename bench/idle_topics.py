"""Benchmark of idle topics: their memory while they are loaded, and after they were unloaded.

    python -m bench.idle_topics [topics]

A new standalone server runs several rounds. In each round, a producer connects once to each of many new topics, and
the server unloads them all when they have been idle. A process keeps the pages that it once used. So the memory of
unloaded topics shows only in the next round, as the growth from one round's peak to the next one's.
"""

from __future__ import annotations

import asyncio
import sys
import urllib.request

import uvloop

from bench import server
from bench.many_topics import use
from bench.report import machine, show, usage
from quire.client import Client

TOPICS = 20_000
ROUNDS = 3
AT_ONCE = 100
IDLE = "10s"
PATIENCE_S = 600.0


def loaded(running: server.Server) -> int:
    """Return the number of topics that are loaded now."""
    with urllib.request.urlopen(f"{running.http_url}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("quire_serving_topics_loaded "):
                return int(float(line.split()[1]))
    raise SystemExit("the server does not tell how many topics are loaded")


async def use_all(url: str, numbers: range) -> None:
    turns = asyncio.Semaphore(AT_ONCE)
    async with Client(url) as client:

        async def one(number: int) -> None:
            async with turns:
                await use(client, number)

        await asyncio.gather(*map(one, numbers))


async def all_rest(running: server.Server) -> float:
    """Wait until no topic is loaded, and return the seconds that this took."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while await asyncio.to_thread(loaded, running):
        if loop.time() > begin + PATIENCE_S:
            raise SystemExit("the topics do not come to rest")
        await asyncio.sleep(1)
    return loop.time() - begin


async def measure(running: server.Server, count: int) -> None:
    url = f"pulsar://127.0.0.1:{running.port}"
    await use_all(url, range(100))
    empty = before = usage(running.pid).resident_bytes
    for number in range(ROUNDS):
        first = 100 + number * count
        await use_all(url, range(first, first + count))
        full, here = usage(running.pid).resident_bytes, await asyncio.to_thread(loaded, running)
        rested_s = await all_rest(running)
        show(
            f"round {number + 1} of {count} topics",
            loaded=here,
            server_mb=full / 1e6,
            kib_per_loaded_topic=(full - empty) / count / 1024,
            kib_more_than_the_round_before_per_topic=(full - before) / count / 1024 if number else None,
            all_rest_after_s=rested_s,
            asked="at most 2 KiB for an idle topic",
        )
        before = full


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else TOPICS
    show("machine", **machine())
    with server.fresh("--topic-idle-ms-max", IDLE) as running:
        uvloop.run(measure(running, count))


if __name__ == "__main__":
    main()
