"""A write-ahead log in a directory whose disk fills up: publishing waits, nothing is lost, and it goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.cli.running import Server, standalone
from tests.mounted import mounted

SIZE = 24
"""MiB of the file system; with what fills it up, for some 8 MiB of messages there is room."""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", f"size={SIZE}m") as place:
        yield place


def client_of(server: Server) -> pulsar.Client:
    return pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def test_a_full_disk_is_waited_for(tmp_path: Path, small: Path) -> None:
    filler = small / "filler"
    filler.write_bytes(bytes((SIZE - 8) << 20))
    heard: list[pulsar.Result] = []
    with standalone(tmp_path, "--wal", f"file://{small}/bucket") as server:
        client = client_of(server)
        producer = client.create_producer(
            "t",
            send_timeout_millis=0,
            block_if_queue_full=True,
            batching_enabled=False,
            max_pending_messages=2_000,
        )
        sent = 1_000
        for number in range(sent):  # 16 MiB
            producer.send_async(b"%d " % number + bytes(16 << 10), lambda result, _: heard.append(result))
        while "no answer from the store" not in server.log.read_text():
            assert len(heard) < sent, "all of it found room"
            time.sleep(0.1)
        assert len(heard) < sent and set(heard) <= {pulsar.Result.Ok}
        assert server.process.poll() is None
        filler.unlink()
        producer.flush()
        assert heard == [pulsar.Result.Ok] * sent
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        assert [int(reader.read_next(10_000).data().split()[0]) for _ in range(sent)] == list(range(sent))
        client.close()
    assert "No space left" in server.log.read_text() or "is full" in server.log.read_text()
