"""Real processes on a small real filesystem that fills up, and on a cluster of which one disk is full.

What a user sees: `quire produce` says so at once, all else goes on, and room is service again.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.settings import BookieSettings
from quire.client import EARLIEST, Client, NotStorable
from quire.runtime.limits import MIB
from tests.cli.running import Ran, Server, quire, standalone
from tests.machine_speed import times_slower
from tests.mounted import mounted

from .wired import wired

pytestmark = pytest.mark.timeout(300)
AT_ONCE_S = 10.0 * times_slower()
"""Far less than the time-outs of a client, on a machine that does much else."""

SIZE = 256
FITTED = BookieSettings().fitted(SIZE * MIB, SIZE * MIB)
"""Sizes of a bookie's files on a disk of 256 MiB."""
NOT_SHORT = 2 * (FITTED.disk_reserve_bytes + FITTED.memtable_bytes)
"""Bytes that a bookie keeps free while it has logs to free (`bookie.room`); it keeps other files for reuse, and a slow
disk needs more of them: the journal's segments for both memtables, the one that is written, and a spare."""
FREED_S = FITTED.flush_interval_ms / 1000 + 30 * times_slower()
"""A checkpoint frees the last logs of deleted ledgers, at the latest by its interval, and the others' copies follow."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 256 MiB."""
    with mounted(tmp_path / "small", f"size={SIZE}m") as place:
        yield place


def free_bytes(place: Path) -> int:
    return shutil.disk_usage(place).free


class User:
    """Somebody with a shell."""

    def __init__(self, server: Server) -> None:
        self._service = ("--service-url", server.service_url)
        self._admin = ("--admin-url", server.http_url)

    def produce(self, topic: str, file: Path, *more: str) -> Ran:
        return quire("produce", topic, str(file), *self._service, *more)

    def consume(self, topic: str, subscription: str) -> list[str]:
        """All that it has not acknowledged, from the earliest message on."""
        words = ["consume", topic, "--subscription", subscription, "--from", "earliest", "--no-follow"]
        command = [sys.executable, "-m", "quire", *words, *self._service]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    def ask(self, *words: str) -> Any:
        return quire(*words, *self._admin, "--json").json

    def do(self, *words: str) -> None:
        ran = quire(*words, *self._admin)
        assert ran.code == 0, ran.err

    def bookie(self) -> dict[str, Any]:
        (row,) = self.ask("bookies", "list")
        return dict(row)

    def until_writable(self, topic: str, file: Path) -> None:
        deadline = time.monotonic() + 30
        while (ran := self.produce(topic, file)).code:
            assert "is full" in ran.err and time.monotonic() < deadline, ran.err
            time.sleep(0.2)


def lines(file: Path, count: int, size: int = 100) -> Path:
    with file.open("w") as out:
        for number in range(count):
            out.write(f"{number:08d}".ljust(size, "x") + "\n")
    return file


def test_a_standalone_on_a_small_disk_that_fills_up(small: Path, tmp_path: Path) -> None:
    few, many = lines(tmp_path / "few", 20), lines(tmp_path / "many", 36_000, 6_000)
    with standalone(small, "--archive-delay-ms", "1h") as server:
        user = User(server)
        for topic in ("one", "two", "three"):
            assert user.produce(topic, few).code == 0
        assert len(user.consume("one", "s")) == 20
        begin = time.monotonic()
        full = user.produce("big", many)
        assert full.code and time.monotonic() - begin < 3 * AT_ONCE_S
        why = f"the disk of {small}/data/entries is full and accepts no new messages; delete topics or free some space"
        assert why in full.err and "Traceback" not in full.err
        for topic in ("one", "new"):
            begin = time.monotonic()
            refused = user.produce(topic, few)
            assert refused.code and why in refused.err and time.monotonic() - begin < AT_ONCE_S
        reserve = FITTED.disk_reserve_bytes
        assert free_bytes(small) > reserve // 4, "the node is full, and not exhausted"
        assert (user.bookie()["state"], user.bookie()["note"]) == ("read-only", why)

        # Reading, acknowledging, subscribing go on.
        stored = user.consume("big", "s")
        assert len(stored) > 10_000 and stored == many.read_text().splitlines()[: len(stored)]
        told = re.search(r"([\d,]+) of [\d,]+ messages were acknowledged", full.err)
        assert told and 10_000 < int(told[1].replace(",", "")) <= len(stored), full.err
        assert user.consume("big", "s") == []
        assert len(user.consume("two", "s")) == 20
        assert user.produce("two", few).code

    with standalone(small, "--archive-delay-ms", "1h") as server:  # after a restart, too
        user = User(server)
        assert user.consume("big", "s") == user.consume("two", "s") == []
        assert len(user.consume("three", "s")) == len(user.consume("one", "other")) == 20
        assert why in user.produce("one", few).err
        user.do("topics", "delete", "two")
        assert "two" not in str(user.ask("topics", "list"))
        user.do("topics", "delete", "big", "--force")
        user.until_writable("one", few)
        assert len(user.consume("one", "s")) == 20
        assert user.bookie()["note"] == ""
        deadline = time.monotonic() + FREED_S
        while free_bytes(small) < NOT_SHORT:  # one spare file after the other
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert user.produce("big", few).code == 0 and len(user.consume("big", "s")) == 20


async def test_one_full_bookie_of_three_is_left_and_comes_back(tmp_path: Path) -> None:
    much = {"padding": "x" * 100_000}
    async with wired(tmp_path / "cluster", bookies=3) as cluster, Client(cluster.service_url) as client:
        async with client.producer("t") as producer:
            await producer.send(b"0")
            cluster.controls["bookie-1"].set_disk_full(True)
            await cluster.until_bookie("bookie-1", lambda record: "is full" in record.read_only_why)
            for number in range(1, 50):
                await asyncio.wait_for(producer.send(b"%d" % number, properties=much), AT_ONCE_S)
        async with client.producer("new") as producer:
            await asyncio.wait_for(producer.send(b"x"), AT_ONCE_S)
        for name in ("bookie-2", "bookie-3"):
            cluster.controls[name].set_disk_full(True)
        for name in ("bookie-2", "bookie-3"):
            await cluster.until_bookie(name, lambda record: record.read_only)
        with pytest.raises(NotStorable, match="is full"):
            await asyncio.wait_for(client.producer("t").start(), AT_ONCE_S)
        for name in cluster.bookies:
            cluster.controls[name].set_disk_full(False)
        for name in cluster.bookies:
            await cluster.until_bookie(name, lambda record: not record.read_only)
        async with client.producer("t") as producer:
            await producer.send(b"50")
        async with client.consumer("t", "s", start=EARLIEST) as consumer:
            assert [int((await consumer.receive()).payload) for _ in range(51)] == list(range(51))
