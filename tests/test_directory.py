"""A standalone's data directory as an earlier commit left it, `tests/data/directory_1.tar.xz`: this one opens it.

It is that of a process that was killed: some messages are in the entry log and the index, some in the journal alone;
the topic has two segments and remembers what its producer sent last, and a subscription has acknowledged some.
`python -m tests.test_directory FILE` makes such a file. It is never made anew under an old name: a directory that this
program can no longer open is to be refused in words.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from quire.bookie.identity import COOKIE, LAYOUT
from quire.client import EARLIEST, Client
from quire.metadata.sqlite import FORMAT_VERSION
from quire.process.settings import Given
from quire.process.standalone import Standalone, load, standalone
from quire.runtime.errors import ConfigurationError
from quire.serving.names import TopicName
from tests import golden

TOPIC, SUBSCRIPTION = "persistent://public/default/kept", "sub"
MESSAGES, SEALED, FLUSHED = 30, 10, 20
ACKED = {0, 1, 2, 3, 4, 7, 25}
SMALL = {"entry_log_bytes": "40MiB", "memtable_bytes": "16MiB", "journal_segment_bytes": "16MiB"}


def configured(directory: Path, **flags: str) -> Any:
    places = {"data": str(directory), "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
    return load(Given({**places, **flags}, None))


def payload(number: int) -> bytes:
    return b"message %d" % number


async def use(running: Standalone) -> None:
    """What the directory tells of."""
    async with (
        Client(running.service_url) as client,
        client.consumer(TOPIC, SUBSCRIPTION, type="shared", start=EARLIEST) as consumer,
        client.producer(TOPIC, name="writer") as producer,
    ):
        for number in range(MESSAGES):
            await producer.send(payload(number), key=f"k{number % 3}", properties={"n": str(number)})
            if number == SEALED - 1:
                await running.broker.registry.unload(TopicName.parse(TOPIC))
            if number == FLUSHED - 1:
                await running.storage.flush()
        for number in range(MESSAGES):
            message = await consumer.receive(30)
            if number in ACKED:
                await consumer.ack(message)
        await consumer.flush_acks()
        await asyncio.sleep(1)


async def make(file: Path) -> None:
    with TemporaryDirectory() as name:
        directory, killed = Path(name) / "data", Path(name) / "killed"
        async with standalone(configured(directory, deduplication="true", **SMALL)) as running:
            await use(running)
            shutil.copytree(directory, killed, ignore=shutil.ignore_patterns("lock"))
        with tarfile.open(file, "w:xz", preset=9) as tar:
            tar.add(
                killed, ".", filter=lambda info: info.replace(uid=0, gid=0, uname="", gname="", deep=False)
            )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tarfile.open(golden.DATA / "directory_1.tar.xz") as tar:
        tar.extractall(tmp_path / "data", filter="data")
    return tmp_path / "data"


async def test_it_is_opened_and_read(directory: Path) -> None:
    async with standalone(configured(directory, deduplication="true")) as running:
        assert running.storage.lost_at_start == ""
        async with Client(running.service_url) as client:
            async with client.producer(TOPIC, name="writer") as producer:
                assert producer.last_sequence_id == MESSAGES - 1
            async with client.reader(TOPIC, start=EARLIEST) as reader:
                found = [await anext(reader) for _ in range(MESSAGES)]
            async with client.consumer(TOPIC, SUBSCRIPTION, type="shared") as consumer:
                left = {(await consumer.receive(30)).payload for _ in range(MESSAGES - len(ACKED))}
        assert [one.payload for one in found] == [payload(number) for number in range(MESSAGES)]
        assert [(one.key, one.properties["n"]) for one in found[4:6]] == [("k1", "4"), ("k2", "5")]
        assert left == {payload(number) for number in set(range(MESSAGES)) - ACKED}


def test_a_bookies_directory_of_a_newer_version_is_refused(directory: Path) -> None:
    for part in ("journal", "entries"):
        cookie = directory / part / COOKIE
        cookie.write_text(json.dumps({**json.loads(cookie.read_text()), "layout": LAYOUT + 1}))
    assert (
        "was written by a newer Quire (layout 2, this version supports 1); start the newer version"
        in refusal(directory)
    )


def test_metadata_of_a_newer_version_are_refused(directory: Path) -> None:
    with sqlite3.connect(directory / "metadata.db") as database:
        database.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    database.close()
    assert (
        "was written by a newer Quire (format 2, this version supports 1); start the newer version"
        in refusal(directory)
    )


def refusal(directory: Path) -> str:
    async def start() -> None:
        async with standalone(configured(directory)):
            pass

    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(start())
    return str(caught.value)


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
