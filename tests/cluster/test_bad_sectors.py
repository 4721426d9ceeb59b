"""Sectors of all three bookies cannot be read any more, in other blocks each, and one in a journal: nothing is lost."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pulsar
import pytest

from quire.metadata.underreplicated import damage_reports

from .copies import missing_blocks
from .local import POLL_S
from .test_local import TOPIC, client_of, read_all
from .test_rot import blocks
from .wired import Wired, wired

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

MESSAGES = 60
PADDING = b" " * 9_000
"""So that each message's block has a page to itself."""
MENDED_S = 60.0


async def test_bad_sectors_cost_no_message_and_are_mended_in_place(tmp_path: Path) -> None:
    async with wired(tmp_path / "cluster", bookies=3, brokers=1) as cluster:
        client = client_of(cluster)  # type: ignore[arg-type]
        await asyncio.to_thread(publish, client)
        await cluster.rest("PUT", f"/admin/v2/{TOPIC.replace('://', '/')}/unload")
        for first, name in enumerate(cluster.bookies):
            await spoil_logs(cluster, name, first)
        assert await asyncio.to_thread(read_all, client) == list(range(MESSAGES))
        await until_mended(cluster)
        logs = {name: log_of(cluster, name) for name in cluster.bookies}
        assert all("restored entry" in log for log in logs.values()), cluster.story()

        name = cluster.bookies[0]
        spoil_journal(cluster, name)
        await cluster.kill(name)
        await cluster.up(name)
        assert "journal damage: segment-000001" in log_of(cluster, name), cluster.story()
        await until_mended(cluster)
        assert await asyncio.to_thread(read_all, client) == list(range(MESSAGES))
        await asyncio.to_thread(client.close)


def publish(client: pulsar.Client) -> None:
    """One block a message: each waits for its receipt."""
    producer = client.create_producer(TOPIC, send_timeout_millis=0)
    for number in range(MESSAGES):
        producer.send(b"%d" % number + PADDING)


async def spoil_logs(cluster: Wired, name: str, first: int) -> None:
    """A page in every ninth block of the bookie, from the `first` on, once all are flushed."""
    log, places = cluster.data / name / "entries" / "logs" / "00000001.log", list[int]()
    while len(places) < MESSAGES:
        await asyncio.sleep(POLL_S)
        places = blocks(log.read_bytes()) if log.exists() else []
    for place in places[first::9]:
        cluster.controls[name].spoil(log, place + len(PADDING) // 2)


def spoil_journal(cluster: Wired, name: str) -> None:
    """The header of each segment: nobody knows what is in it."""
    for segment in (cluster.data / name / "journal").glob("segment-*"):
        cluster.controls[name].spoil(segment, 0)


async def until_mended(cluster: Wired) -> None:
    deadline = time.monotonic() + MENDED_S
    while left := await missing_blocks(cluster.store) + list(await damage_reports(cluster.store)):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(POLL_S)


def log_of(cluster: Wired, name: str) -> str:
    return re.sub(r"\s+", " ", (cluster.data / "logs" / f"{name}.log").read_text())
