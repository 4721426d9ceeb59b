"""What a cluster refuses: one clear sentence each that says what to do, from the real commands."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from quire.metadata.zookeeper import ZooKeeperStore
from tests.cli.running import quire as in_this_process

from .test_bookie_process import SMALL
from .zookeeper import ZooKeeper

pytestmark = pytest.mark.timeout(90)

FREE = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
QUIRE = (sys.executable, "-m", "quire")


class Refused(NamedTuple):
    code: int
    sentence: str


def quire(*words: str, given: str = "") -> Refused:
    """A command that ends by itself: its exit code and its last line."""
    done = subprocess.run([*QUIRE, *words], input=given, capture_output=True, text=True, timeout=60)
    lines = done.stderr.splitlines()
    assert done.returncode and "Traceback" not in done.stderr, (done.stdout, done.stderr)
    return Refused(done.returncode, lines[-1].removeprefix("quire: "))


@contextmanager
def running(log: Path, kind: str, *words: str) -> Iterator[list[str]]:
    """A process of the cluster, and its addresses."""
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [*QUIRE, kind, *FREE, *words], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        assert said[:1] == ["ready"], log.read_text()
        yield said[1:]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def places(folder: Path) -> list[str]:
    return [
        *("--journal", str(folder / "journal"), "--entry-log", str(folder / "entries")),
        *(f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()),
    ]


@pytest.fixture
def metadata(zookeeper: ZooKeeper) -> str:
    return zookeeper.fresh_url("2s")


@pytest.mark.parametrize("kind", ["broker", "gateway"])
def test_a_chroot_without_a_cluster(kind: str, metadata: str) -> None:
    code, sentence = quire(kind, *FREE, "--metadata", metadata)
    assert code == 2
    assert sentence.startswith(
        f"there is no cluster at {metadata}: use the same address and chroot as the bookies"
    )


@pytest.mark.parametrize("kind", ["bookie", "broker", "gateway"])
def test_metadata_that_does_not_answer(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ZooKeeperStore.open.__func__.__kwdefaults__, "connect_timeout_s", 0.2)  # type: ignore[attr-defined]
    directories = places(tmp_path) if kind == "bookie" else []
    done = in_this_process(kind, *FREE, "--metadata", "zk://127.0.0.1:1/x", *directories)
    assert done.code == 4
    assert done.err.splitlines()[-1] == (
        "quire: no ZooKeeper answered at 127.0.0.1:1 within 0.2 s; start it or correct the metadata URL"
    )
    assert not list(tmp_path.iterdir())


def test_a_cluster_of_one_bookie_says_what_it_lacks_and_refuses_what_cannot_be(
    metadata: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        log = tmp_path / "log"
        begin = ("--metadata", metadata, "--new-cluster", "true")
        stack.enter_context(running(log, "bookie", *begin, *places(tmp_path / "bookie")))
        service, http = stack.enter_context(running(log, "broker", "--metadata", metadata))

        lack = "1 of 1 bookies accept writes, the ack quorum is 2; start more bookies or free disk space"
        tell = partial(quire, "produce", "t", "--service-url", service, given="hello\n")
        pool = stack.enter_context(ThreadPoolExecutor())
        publishing = pool.submit(tell)  # the broker tries for a while by itself
        code, sentence = quire("broker", *FREE, "--metadata", metadata, "--advertise", service)
        assert code == 2 and sentence.endswith("give each broker a different --advertise address")
        code, sentence = publishing.result()
        assert (code, lack in sentence) == (4, True), sentence
        assert quire("topics", "stats", "t", "--admin-url", http) == (4, lack)

        quorums = {"bookkeeperEnsemble": 5, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}
        status, sentence = post(f"{http}/admin/v2/namespaces/public/default/persistence", quorums)
        assert status == 400
        assert (
            "ensemble 5 and write quorum 3 must be equal" in sentence and "set both to the number" in sentence
        )


def post(url: str, body: object) -> tuple[int, str]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    return refused.value.code, json.loads(refused.value.read())["reason"]
