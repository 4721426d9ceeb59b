"""Wrong use of the commands that make a cluster: one sentence, exit code 2, nothing made."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quire.process.child import Child
from quire.runtime.disk import RealDisk
from quire.runtime.errors import Unavailable


def quire(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire", *words], cwd=cwd, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gateway",), "metadata must name"),
        (("gateway", "--metadata", "http://x"), "not a metadata URL"),
        (("gateway", "--metadata", "zk://x", "--listen", "nowhere"), "is not an address"),
        (
            ("broker", "--metadata", "zk://x", "--ack-quorum", "3", "--write-quorum", "2"),
            "ack_quorum 3 must be between",
        ),
        (("bookie", "--metadata", "zk://x", "--drain-on-stop-ms", "-1"), "drain_on_stop_ms not negative"),
        (("local", "--bookies", "0"), "at least 1"),
        (("local", "--zookeeper", "127.0.0.1:2181"), "not a zk:// URL"),
        (("local", "--data", ""), "must be the path of a directory"),
        (("zookeeper", "--listen", "127.0.0.1:0"), "must have a fixed port"),
    ],
)
def test_wrong_use_is_one_sentence(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = quire(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_second_cluster_on_a_directory_touches_nothing(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    data.mkdir()
    (data / "processes.json").write_text("of the first")
    first = RealDisk(data)
    first.lock()
    try:
        done = quire(
            "local", "--data", str(data), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", cwd=tmp_path
        )
    finally:
        first.close()
    assert done.returncode == 2 and "in use by another process" in done.stderr, done.stderr
    assert sorted(file.name for file in data.iterdir()) == ["lock", "processes.json"]


def test_an_address_that_is_taken_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = quire("local", "--data", "cluster", "--listen", address, cwd=tmp_path)
    assert done.returncode == 2 and f"cannot listen on {address}" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def child(tmp_path: Path, program: str) -> Child:
    return Child("it", "test", [sys.executable, "-c", program], tmp_path / "it.log")


READY = "import signal, time; print('ready a://b', flush=True); "


async def test_a_child_is_ready_when_it_says_so_and_ends_when_told(tmp_path: Path) -> None:
    one = child(tmp_path, READY + "time.sleep(60)")
    await one.start()
    assert one.urls == ["a://b"] and one.is_running
    await one.stop()
    assert not one.is_running


async def test_a_child_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    one = child(tmp_path, "import sys; sys.exit('no disk')")
    with pytest.raises(Unavailable, match="it did not start: no disk"):
        await one.start()


async def test_a_child_that_does_not_heed_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.process.child.STOP_S", 0.1)
    one = child(
        tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + "time.sleep(60)"
    )
    await one.start()
    await one.stop()
    assert await one.wait() == -9


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    parent = """
import asyncio, os, sys
from pathlib import Path
from quire.process.child import Child
async def main():
    one = Child("it", "test", [sys.executable, "-c", sys.argv[1]], Path("it.log"))
    await one.start()
    print(one.pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", parent, READY + "time.sleep(60)"], cwd=tmp_path, capture_output=True, text=True
    )
    pid = json.loads(done.stdout)
    for _ in range(1000):
        status = Path(f"/proc/{pid}/stat")
        try:
            if status.read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        subprocess.run(["true"], check=True)
    pytest.fail("the child lives on without its parent")
