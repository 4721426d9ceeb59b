"""A standalone process whose metadata.db is lost goes on as a cluster of one bookie and one broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest

from tests.cli.running import quire, standalone
from tests.cluster.zookeeper import own_zookeeper


@contextmanager
def process(*words: str) -> Iterator[list[str]]:
    """Run a process of the cluster; yield the words of its line that begins with `ready`."""
    started = subprocess.Popen([sys.executable, "-m", "quire", *words], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    try:
        yield started.stdout.readline().split()
    finally:
        started.terminate()
        started.communicate(timeout=30)


def client_of(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


@pytest.mark.chaos
def test_a_standalone_without_its_metadata_goes_on_as_a_cluster(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        client = client_of(server.service_url)
        audit = client.subscribe("orders", "audit")
        producer = client.create_producer("orders")
        for number in range(20):
            producer.send(b"%d" % number)
        for _ in range(5):
            audit.acknowledge(audit.receive(10_000))
        client.close()
        quire("archive", "run", "--seal", "--admin-url", server.http_url)
    for file in (tmp_path / "data").glob("metadata.db*"):
        file.unlink()
    archive = ("--archive", f"file://{tmp_path}/data/archive")
    into_a_file = quire("rescue", "metadata", "--metadata", f"sqlite://{tmp_path}/data/metadata.db", *archive)
    assert into_a_file.code == 2 and "pass a new ZooKeeper chroot" in into_a_file.err

    with own_zookeeper(tmp_path) as server_of_metadata:
        metadata = ("--metadata", f"{server_of_metadata.url}/rebuilt")
        begun = quire("rescue", "metadata", *metadata, *archive)
        assert begun.code == 4 and "no bookie is up" in begun.err
        data = ("--journal", f"{tmp_path}/data/journal", "--entry-log", f"{tmp_path}/data/entries")
        ports = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
        with process("bookie", *metadata, *data, "--listen", "127.0.0.1:0"):
            done = quire("rescue", "metadata", *metadata, *archive)
            assert done.code == 0 and "done: start brokers" in done.out, done
            quorum = ("--write-quorum", "1", "--ack-quorum", "1")
            with process("broker", *metadata, *archive, *quorum, *ports) as ready:
                client = client_of(ready[1])
                audit = client.subscribe("orders", "audit")
                assert [int(audit.receive(10_000).data()) for _ in range(15)] == list(range(5, 20))
                client.create_producer("orders").send(b"20")
                assert audit.receive(10_000).data() == b"20"
                client.close()
