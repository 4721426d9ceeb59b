"""The stock clients' programs of README.md, docs/first-hour.md and docs/client.md, unchanged, against a real server.

Nothing is downloaded here: without a toolchain, or before the client was fetched once (`go mod download`, `mvn
dependency:go-offline` in its folder), a language is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Server, standalone

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("server")) as running:
        yield running


def ran(words: list[str], directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True, timeout=280
    )


def check(done: subprocess.CompletedProcess[str], language: str) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"received Hello from {language}" in done.stdout


def test_python(server: Server) -> None:
    check(ran([sys.executable, "first.py", server.service_url], EXAMPLES / "python"), "Python")


def test_asyncio(server: Server) -> None:
    program = [sys.executable, "asyncio_client.py", server.service_url]
    check(ran(program, EXAMPLES / "python", PYTHONPATH=str(EXAMPLES.parents[1])), "asyncio")


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("go") is None, reason="there is no go")
def test_go(server: Server, tmp_path: Path) -> None:
    program = str(tmp_path / "first")
    built = ran(["go", "build", "-o", program, "."], EXAMPLES / "go", GOPROXY="off", GOFLAGS="-mod=readonly")
    if "GOPROXY=off" in built.stderr:
        pytest.skip("the Go client was not fetched yet")
    assert built.returncode == 0, built.stderr
    check(ran([program, server.service_url], tmp_path), "Go")


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("mvn") is None, reason="there is no mvn")
def test_java(server: Server, tmp_path: Path) -> None:
    project = shutil.copytree(EXAMPLES / "java", tmp_path / "java", ignore=shutil.ignore_patterns("target"))
    done = ran(
        ["mvn", "-o", "-q", "-B", "compile", "exec:java", f"-Dexec.args={server.service_url}"], project
    )
    if "offline mode" in done.stdout or "No plugin found" in done.stdout:
        pytest.skip("the Java client was not fetched yet")
    check(done, "Java")
