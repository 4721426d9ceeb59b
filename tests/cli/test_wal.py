"""`quire standalone --wal`: one process and a bucket."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pulsar
import pytest

from tests.cli.running import Server, quire, standalone
from tests.moto_store import moto_store


def client_of(server: Server) -> pulsar.Client:
    return pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def publish(server: Server, *numbers: int) -> None:
    client = client_of(server)
    producer = client.create_producer("t", batching_enabled=False)
    sent = [producer.send_async(b"%d" % number, lambda *_: None) for number in numbers]
    producer.flush()
    producer.send(b"%d" % (numbers[-1] + 1))
    assert len(sent) == len(numbers)
    client.close()


def read_all(server: Server) -> list[int]:
    client = client_of(server)
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(10_000).data()))
    client.close()
    return found


def acknowledge(server: Server, count: int) -> list[int]:
    """The next messages of the subscription, which has them as acknowledged when this returns."""
    client = client_of(server)
    consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
    messages = [consumer.receive(10_000) for _ in range(count)]
    consumer.acknowledge_cumulative(messages[-1])
    consumer.close()
    client.close()
    return [int(message.data()) for message in messages]


@pytest.fixture
def s3() -> Iterator[str]:
    """The URL of an empty bucket."""
    with moto_store("bucket") as endpoint:
        yield f"s3://bucket/a?endpoint={endpoint}&access_key=test&secret_key=test"


@pytest.mark.parametrize(("is_killed", "is_s3"), [(True, False), (False, False), (True, True)])
def test_what_was_acknowledged_is_there_after_a_death_and_after_a_stop(
    tmp_path: Path, is_killed: bool, is_s3: bool, s3: str
) -> None:
    wal = s3 if is_s3 else f"file://{tmp_path}/bucket"
    with standalone(tmp_path, "--wal", wal) as server:
        publish(server, *range(200))
        assert acknowledge(server, 100) == list(range(100))
        publish(server, 201)  # in the same upload as the acknowledgement, or a later one
        if is_killed:
            server.process.kill()
            server.process.wait()
    with standalone(tmp_path, "--wal", wal) as server:
        assert read_all(server) == list(range(203))
        assert acknowledge(server, 103) == list(range(100, 203))
        publish(server, 203)
        assert acknowledge(server, 2) == [203, 204]
        assert not (tmp_path / "data" / "entries").exists(), "there is no bookie"


@pytest.mark.parametrize("verb", [("show",), ("close", "--accept-loss")], ids=lambda words: words[0])
def test_a_log_is_named_before_it_is_closed(tmp_path: Path, verb: tuple[str, ...]) -> None:
    wal = f"file://{tmp_path}/bucket"
    with standalone(tmp_path, "--wal", wal):
        pass
    stores = ("--metadata", f"sqlite://{tmp_path}/data/metadata.db", "--wal", wal)
    ran = quire("wal", *verb, "", *stores)
    assert ran.code == 2 and "UUID is empty" in ran.err
    ran = quire("wal", *verb, "xyz", *stores)
    assert ran.code == 3 and "no write-ahead log begins with xyz" in ran.err


def remove_metadata(directory: Path) -> None:
    for file in (directory / "data").glob("metadata.db*"):
        file.unlink()


def test_metadata_that_is_lost_is_rebuilt_from_the_bucket_alone(tmp_path: Path) -> None:
    wal = f"file://{tmp_path}/bucket"
    with standalone(tmp_path, "--wal", wal) as server:
        publish(server, *range(199))
        assert acknowledge(server, 100) == list(range(100))
        publish(server, 200)  # in the same upload as the acknowledgement, or a later one
        server.process.kill()
        server.process.wait()
    remove_metadata(tmp_path)
    started = quire(
        *("standalone", "--data", f"{tmp_path}/data", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        *("--wal", wal),
    )
    assert started.code == 2 and "rebuild them (quire rescue metadata --wal)" in started.err, started
    words = ("rescue", "metadata", "--metadata", f"sqlite://{tmp_path}/data/metadata.db", "--wal", wal)
    ran = quire(*words, "--cluster", str(UUID(int=7)))
    assert ran.code == 2 and "belongs to cluster" in ran.err
    remove_metadata(tmp_path)
    looked = quire(*words, "--dry-run")
    assert looked.code == 0 and "dry run: nothing was written" in looked.out, looked
    assert not list((tmp_path / "data").glob("metadata.db*"))
    ran = quire(*words)
    assert ran.code == 0 and "done: start brokers" in ran.out, ran.out + ran.err
    with standalone(tmp_path, "--wal", wal) as server:
        assert read_all(server) == list(range(202))
        assert acknowledge(server, 102) == list(range(100, 202))
        publish(server, 202)
        assert acknowledge(server, 2) == [202, 203]


def test_an_older_copy_of_the_metadata_gives_no_id_twice(tmp_path: Path) -> None:
    """No bookie remembers the ledgers that were made after the copy; the bucket has the claims of their ids."""
    data, wal, copy = tmp_path / "data", f"file://{tmp_path / 'bucket'}", tmp_path / "copy"

    def ledger_of(server: Server, topic: str) -> int:
        client = client_of(server)
        ledger = client.create_producer(topic).send(b"x").ledger_id()
        client.close()
        return int(ledger)

    with standalone(tmp_path, "--wal", wal) as server:
        used = [ledger_of(server, "a")]
    copy.mkdir()
    for file in data.glob("metadata.db*"):
        shutil.copy(file, copy)
    for topic in ("b", "c"):
        with standalone(tmp_path, "--wal", wal) as server:
            used.append(ledger_of(server, topic))
    for file in data.glob("metadata.db*"):
        file.unlink()
    for file in copy.iterdir():
        shutil.copy(file, data)
    with standalone(tmp_path, "--wal", wal) as server:
        assert ledger_of(server, "d") > max(used)
    assert "were used before" in (tmp_path / "server.log").read_text()


def test_a_store_that_cannot_hold_it_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "bucket").write_text("a file, no directory")
    flags = {"data": f"{tmp_path}/data", "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    ran = subprocess.run(
        [sys.executable, "-m", "quire", "standalone", *words, "--wal", f"file://{tmp_path}/bucket"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode != 0 and ran.stdout == ""
    assert "bucket" in ran.stderr and "Traceback" not in ran.stderr


def test_a_bucket_that_is_not_there_is_told_in_a_sentence(tmp_path: Path, s3: str) -> None:
    flags = {"data": f"{tmp_path}/data", "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    ran = subprocess.run(
        [sys.executable, "-m", "quire", "standalone", *words, "--wal", s3.replace("//bucket", "//another")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2 and "NoSuchBucket" in ran.stderr and "Traceback" not in ran.stderr
    assert "test" not in ran.stderr.replace("tests", ""), "keys are told to nobody"
