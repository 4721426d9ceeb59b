"""The same program on each way to run Spark: Spark Connect, and a standalone cluster of a master and two workers, which
have `quire`, or are sent it as an archive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pulsar
import pytest

from quire.testing.zookeeper_server import free_port
from tests.conftest import FAST_JVM
from tests.spark_source.conftest import Server

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
TROUBLED = Path(__file__).with_name("troubled_tasks.py")
BIN = Path(sys.executable).parent
MESSAGES = 2_000
START_S = 60.0
"""How long a master may take to know both workers."""


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    python = {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**os.environ, **python, "SPARK_LOCAL_IP": "127.0.0.1", **more}


@pytest.fixture
def topic(server: Server, client: pulsar.Client, request: pytest.FixtureRequest) -> tuple[str, int]:
    """An archived half and an open half; the topic's name, and the checksum of its messages."""
    name = str(request.node.name)
    producer = client.create_producer(name, block_if_queue_full=True)
    checksum = 0
    for number in range(MESSAGES):
        if number == MESSAGES // 2:
            producer.flush()
            server.archive()
        key, value = f"k{number % 7}", b"message %d" % number
        checksum += crc32(key.encode() + b"\0" + value)
        producer.send_async(value, lambda *_: None, partition_key=key)
    producer.flush()
    producer.close()
    return name, checksum


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and two workers of one core each, that know each other; the master's URL."""
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        port, page = stack.enter_context(master(directory))
        url = f"spark://127.0.0.1:{port}"
        for number in range(2):
            host = f"127.0.0.{number + 1}"  # a task runs a second time on another host only
            options = ["--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            work = ["--work-dir", str(directory / f"work-{number}")]
            stack.enter_context(
                daemon("worker.Worker", [*options, *work, url], directory / f"worker-{number}")
            )
        wait_for_workers(page, 2)
        yield url


def run(
    command: list[str], server: Server, topic: str, env: dict[str, str], cwd: Path = ROOT
) -> dict[str, Any]:
    return last_line([*command, str(PROGRAM), server.http_url, topic, f"{topic}-copy"], env, cwd)


def last_line(command: list[str], env: dict[str, str], cwd: Path = ROOT) -> dict[str, Any]:
    ran = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


def test_spark_connect(server: Server, topic: tuple[str, int]) -> None:
    pytest.importorskip("grpc_status", reason="Spark Connect's client needs grpcio-status")
    name, checksum = topic
    found = run([sys.executable], server, name, environment(SPARK_REMOTE="local[2]"))
    assert found["kind"] == "pyspark.sql.connect.session"
    assert found["read"] == found["written"] == {"rows": MESSAGES, "checksum": checksum}


def test_a_standalone_cluster_of_a_master_and_two_workers(
    cluster: str, server: Server, topic: tuple[str, int]
) -> None:
    name, checksum = topic
    found = run(submit(cluster), server, name, environment())
    assert found["kind"] == "pyspark.sql.session"
    assert found["read"] == found["written"] == {"rows": MESSAGES, "checksum": checksum}


def test_workers_are_sent_an_environment(
    cluster: str, server: Server, topic: tuple[str, int], tmp_path: Path
) -> None:
    """As `docs/spark.md` says: the driver has its own under the name that the archive has on the executors."""
    name, checksum = topic
    virtual = tmp_path / "virtual"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(virtual)], check=True)
    packages = next(virtual.glob("lib/python*/site-packages"))
    (packages / "more.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(virtual, ".")
    (tmp_path / "environment").symlink_to(virtual)
    env = environment(PYSPARK_PYTHON="./environment/bin/python")
    del env["PYSPARK_DRIVER_PYTHON"], env["PYTHONPATH"]
    command = [*submit(cluster), "--archives", "packed.tar.gz#environment"]
    found = run(command, server, name, env, cwd=tmp_path)
    assert found["read"] == found["written"] == {"rows": MESSAGES, "checksum": checksum}


def test_an_executor_is_killed_and_a_task_that_halts_runs_twice(
    cluster: str, server: Server, tmp_path: Path
) -> None:
    command = [*submit(cluster), str(TROUBLED), server.http_url, "killed", "halted", str(tmp_path)]
    found = last_line(command, environment())
    assert (tmp_path / "killed").exists() and (tmp_path / "speculated").exists()
    everything = {"rows": 4000, "distinct": 4000, "first": 0, "last": 3999}
    assert found == {"killed": everything, "slow": everything}


def submit(master: str) -> list[str]:
    return [
        str(BIN / "spark-submit"), "--master", master, "--executor-memory", "512m",
        "--conf", f"spark.executor.extraJavaOptions={FAST_JVM}", "--conf", "spark.ui.enabled=false",
    ]  # fmt: skip


@contextmanager
def master(directory: Path) -> Iterator[tuple[int, str]]:
    """Its port, and its page as JSON."""
    port, web = free_port(), free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)]
    with daemon("master.Master", options, directory / "master"):
        yield port, f"http://127.0.0.1:{web}/json/"


@contextmanager
def daemon(name: str, options: list[str], log: Path) -> Iterator[None]:
    with log.open("w") as file:
        command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{name}", *options]
        process = subprocess.Popen(command, env=environment(), stdout=file, stderr=file)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def wait_for_workers(page: str, count: int) -> None:
    until = time.monotonic() + START_S
    alive = -1
    while alive < count:
        assert time.monotonic() < until, f"the master knows {alive} of {count} workers after {START_S:.0f} s"
        time.sleep(0.3)
        try:
            with urllib.request.urlopen(page, timeout=5) as answer:
                alive = json.load(answer)["aliveworkers"]
        except OSError:
            continue  # it does not listen yet
