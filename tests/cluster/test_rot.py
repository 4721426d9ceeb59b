"""Bits turn in the entry logs of all three bookies, in other blocks each: readers get everything, and it is mended."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from quire.metadata.open import open_store
from quire.metadata.underreplicated import damage_reports
from quire.wire.block import BlockError, read_header

from .copies import missing_blocks
from .local import POLL_S, running
from .test_local import Producer, client_of, read_all
from .zookeeper import ZooKeeper

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

MESSAGES = 60
BOOKIES = 3
MENDED_S = 60.0


async def test_what_rots_on_every_bookie_is_mended_without_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zookeeper: ZooKeeper
) -> None:
    monkeypatch.setenv("QUIRE_FLUSH_INTERVAL_MS", "500ms")
    monkeypatch.setenv("QUIRE_REPAIR_LOOK_MS", "500ms")
    url = zookeeper.fresh_url()
    async with running(tmp_path / "cluster", brokers="1", bookies=str(BOOKIES), zookeeper=url) as cluster:
        client = client_of(cluster)
        producer = await asyncio.to_thread(Producer, client)
        await asyncio.to_thread(producer.publish, MESSAGES)
        await cluster.rest("PUT", "/admin/v2/persistent/public/default/t/unload")
        for number in range(BOOKIES):
            await rot(cluster.data / f"bookie-{number + 1}" / "entries" / "logs", number)
        assert await asyncio.to_thread(read_all, client) == list(range(MESSAGES))
        await asyncio.to_thread(client.close)
        store = await open_store(url)
        deadline = time.monotonic() + MENDED_S
        while left := await missing_blocks(store) + list(await damage_reports(store)):
            assert time.monotonic() < deadline, left
            await asyncio.sleep(POLL_S)
        await store.close()
        mended = [cluster.data.joinpath("logs", f"bookie-{n + 1}.log").read_text() for n in range(BOOKIES)]
        assert all("restored entry" in log for log in mended), cluster.story()


async def rot(logs: Path, first: int) -> None:
    """Turn a bit in every third block of the bookie's one entry log, from the `first` on, once all are flushed."""
    log, places = logs / "00000001.log", list[int]()
    while len(places) < MESSAGES:
        await asyncio.sleep(POLL_S)
        places = blocks(log.read_bytes()) if log.exists() else []
    fd = os.open(log, os.O_RDWR)
    try:
        for place in places[first::BOOKIES]:
            (byte,) = os.pread(fd, 1, place)
            os.pwrite(fd, bytes([byte ^ 1]), place)
        os.fsync(fd)
    finally:
        os.close(fd)


def blocks(log: bytes) -> list[int]:
    """Where the entries of each block begin."""
    found, at = [], log.find(b"QBLK")
    while at >= 0:
        try:
            header = read_header(log, at)
        except BlockError:
            at = log.find(b"QBLK", at + 1)
            continue
        found.append(at + header.entries_offset)
        at = log.find(b"QBLK", at + header.length)
    return found
