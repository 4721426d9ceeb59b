"""The demo on a small part of its input: the proof with Spark, and what it says without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from quire.cli.demo import standard_library, why_no_spark
from quire.cli.output import FAILED, TRY_AGAIN
from quire.demo import clients
from quire.demo.proof import Multiset, Proof
from tests.cli.running import quire


@pytest.mark.spark
@pytest.mark.skipif(why_no_spark() != "", reason=why_no_spark() or "-")
def test_all_five_count_the_same() -> None:
    ran = quire("demo", "--lines", "5000", "--json")
    assert ran.code == 0, ran.err
    proof = ran.json
    assert proof["agrees"] and proof["backlog"] == 0
    assert proof["published"]["messages"] == 5000
    assert proof["published"] == proof["acknowledged"] == proof["consumed"]
    assert proof["published"] == proof["spark"] == proof["streamed"]
    assert "killed the server (SIGKILL)" in ran.err and "Lines per module" in ran.err
    assert "in micro-batches: 1" in ran.err and "pandas" not in ran.err


def test_without_java_it_says_so_does_the_rest_and_has_no_whole_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    ran = quire("demo", "--lines", "2000")
    assert ran.code == FAILED
    assert (
        "skipping Spark: Java 17 or newer is not installed" in ran.out
        and "the check is incomplete" in ran.err
    )
    assert "published = acknowledged = consumed\n" in ran.out


DEAD = """
from quire.cli.main import main
from quire.demo import clients, server
clients.STALLED_S = 1.0
start = server.DemoServer.start
server.DemoServer.start = lambda self: start(self) if self.service_url.endswith(":0") else 0.0
main()
"""
"""The demo with a server that stays dead after it was killed."""


def test_a_failure_is_one_sentence(tmp_path: Path) -> None:
    words = [sys.executable, "-c", DEAD, "demo", "--lines", "200000"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == TRY_AGAIN, ran
    (sentence,) = ran.stderr.splitlines()
    assert "publishing stalled: " in sentence and "within 1 s" in sentence


def test_a_deadline_counts_from_the_last_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now))
    progress = clients.Progress()
    for count in range(100):
        assert not progress.has_stalled(count)
        now += clients.STALLED_S - 1
        assert not progress.has_stalled(count)
    now += 2
    assert progress.has_stalled(99)


def test_the_input_is_every_line_with_its_file() -> None:
    texts = standard_library(None)
    lines = [line for key, line in texts if key == "this.py"]
    assert len(texts) > 200_000 and lines[0].startswith(b's = """Gur Mra')
    assert all("site-packages" not in key for key, _ in texts)


@pytest.mark.parametrize(
    "change",
    [
        {"acknowledged": Multiset(4, 7)},
        {"consumed": Multiset(5, 8)},
        {"spark": Multiset(6, 7)},
        {"streamed": Multiset(5, 6)},
        {"backlog": 1},
        {"backlog": -1},
    ],
)
def test_one_difference_spoils_the_proof(change: dict[str, object]) -> None:
    same = Multiset(5, 7)
    sound: dict[str, object] = dict.fromkeys(
        ("published", "acknowledged", "consumed", "spark", "streamed"), same
    )
    sound["backlog"] = 0
    assert Proof(**sound).agrees  # type: ignore[arg-type]
    assert not Proof(**{**sound, **change}).agrees  # type: ignore[arg-type]
