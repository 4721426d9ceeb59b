"""`quire doctor` of a server on a laptop: silent when all is well, and not fooled when it is not."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from quire.cli.output import TRY_AGAIN
from tests.cli.running import Ran, Server, quire, standalone

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server with its archive."""
    directory = tmp_path_factory.mktemp("doctor")
    with standalone(directory, "--archive", f"file://{directory}/archive") as server:
        yield server, directory / "archive"


def found(ran: Ran) -> list[dict[str, Any]]:
    """The findings of a run with --json."""
    return list(json.loads(ran.out)["findings"])


def test_a_server_that_is_well(own: tuple[Server, Path]) -> None:
    server, _ = own
    deadline = monotonic() + PATIENCE_S
    while (ran := quire("doctor", "--admin-url", server.http_url, "--json")).code != 0:
        assert monotonic() < deadline, (
            ran.out
        )  # a machine that does much else has findings of its own for a while
        sleep(1.0)
    assert found(ran) == []
    at = ran.json["lookedAt"]
    assert at == ["this machine", f"standalone {server.service_url.partition('://')[2]}", "the cluster"]
    assert ran.json["notLookedAt"] == []
    said = quire("doctor", "--admin-url", server.http_url)
    assert said.code or said.out.startswith("no problems found: this machine, standalone")


def test_an_archive_that_refuses(own: tuple[Server, Path]) -> None:
    server, archive = own
    shutil.rmtree(archive, ignore_errors=True)
    archive.write_text("a file where a directory was")
    ran = quire("doctor", "--admin-url", server.http_url, "--json")
    archive.unlink()
    assert ran.code == TRY_AGAIN and "found" in ran.err
    (one,) = [each for each in found(ran) if "the archive" in each["what"]]
    assert one["level"] == "error" and one["where"].startswith("standalone") and one["todo"]


def test_an_archive_is_tried_from_here(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    ran = quire("doctor", "--machine", "--archive", f"file://{tmp_path}/a", "--json")
    assert f"file://{tmp_path}/a" in json.loads(ran.out)["lookedAt"] and not list((tmp_path / "a").iterdir())
    (tmp_path / "b").touch()
    ran = quire("doctor", "--machine", "--archive", f"file://{tmp_path}/b", "--json")
    assert ran.code == TRY_AGAIN and f"{tmp_path}/b is not a directory" in ran.out


def test_a_server_without_bookies(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    with standalone(tmp_path, "--wal", f"file://{wal}") as server:
        deadline = monotonic() + PATIENCE_S
        while (ran := quire("doctor", "--admin-url", server.http_url)).code != 0:
            assert monotonic() < deadline, ran.out
            sleep(1.0)
        shutil.rmtree(wal)
        wal.touch()
        ran = quire("doctor", "--admin-url", server.http_url)
        wal.unlink()
    assert ran.code == TRY_AGAIN and "the store of the write-ahead log," in ran.out


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ran = quire("doctor", "--admin-url", f"http://127.0.0.1:{port}")
    assert ran.code == TRY_AGAIN
    assert "error    the cluster: no broker answers at" in ran.out


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = quire("doctor", "--machine", "--json", "--listen", address, "--listen", "127.0.0.1:0")
    (one,) = [each for each in found(said) if "listen" in each["what"]]
    assert one["level"] == "error" and f"cannot listen on {address}" in one["what"]


def test_a_port_of_somebody_else() -> None:
    """What answers there is no broker, and is not taken for one."""
    words = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as other:
        assert other.stdout is not None
        port = other.stdout.readline().split(" port ")[1].split()[0]
        ran = quire("doctor", "--admin-url", f"http://127.0.0.1:{port}", "--json")
        other.terminate()
    assert ran.code == TRY_AGAIN
    assert any(each["where"] == "the cluster" and each["level"] == "error" for each in found(ran)), ran.out
