"""Commands and programs of the pages for newcomers: each program equals its file, each command succeeds as printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.running import standalone

ROOT = Path(__file__).parents[1]
QUIRE = f'#!/bin/sh\nexec "{sys.executable}" -m quire "$@"\n'
RUN_ELSEWHERE = ("quire standalone", "quire local", "quire bookies decommission", "quire doctor")
"""Processes without an end, commands that need a cluster, and one that may rightly complain of a slow machine:
tests/cluster and tests/cli run them."""
COMMANDS = {"README.md": 2, "docs/first-hour.md": 9, "docs/commands.md": 24}
"""Least number of commands that run on each page: a page that loses its commands fails."""
PROGRAMS = {
    "python/first.py": "README.md",
    "python/archive.py": "README.md",
    "python/asyncio_client.py": "docs/client.md",
    "go/main.go": "docs/first-hour.md",
    "java/src/main/java/First.java": "docs/first-hour.md",
}


def blocks(page: str) -> list[tuple[str, str]]:
    """Return language and text of each code block of a page."""
    return re.findall(r"```(\w*)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_the_file_that_the_tests_run(name: str) -> None:
    file = (ROOT / "docs" / "examples" / name).read_text()
    assert file.strip() in [text.strip() for _, text in blocks(PROGRAMS[name])]


def path_with_quire(folder: Path) -> str:
    """Make the command `quire` in `folder`, and return a search path with it."""
    script = folder / "quire"
    script.write_text(QUIRE)
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def without_spark(folder: Path) -> Path:
    """Return a folder of modules that fail like those of an extra that newcomers have not installed."""
    made = folder / "absent"
    made.mkdir()
    for module in ("pyspark", "pyarrow", "pandas", "numpy"):
        (made / f"{module}.py").write_text(f"raise ModuleNotFoundError('no {module}', name='{module}')\n")
    return made


@pytest.mark.parametrize("page", COMMANDS)
def test_the_commands_work_as_printed(page: str, tmp_path: Path) -> None:
    """Run a page's commands in order on a new server, whose ports replace the usual ones."""
    path = path_with_quire(tmp_path)
    shutil.copy(ROOT / "README.md", tmp_path)
    lines = [line for language, text in blocks(page) if language == "sh" for line in text.splitlines()]
    printed = [
        line.replace(".venv/bin/quire", "quire") for line in lines if re.search(r"\b(quire|curl) ", line)
    ]
    printed = [line for line in printed if not line.startswith(RUN_ELSEWHERE)]
    assert len(printed) >= COMMANDS[page]
    if shutil.which("curl") is None:
        printed = [line for line in printed if not line.startswith("curl")]
    with standalone(tmp_path) as server:
        environment = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(without_spark(tmp_path)),
            "QUIRE_ADMIN_URL": server.http_url,
            "QUIRE_SERVICE_URL": server.service_url,
        }
        for line in printed:
            line = line.replace("http://127.0.0.1:8080", server.http_url).replace("curl ", "curl -fsS ")
            ran = subprocess.run(
                ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"


CHAPTERS = (
    "docs/security.md#Tokens, from an empty directory",
    "docs/security.md#Mutual TLS",
    "docs/tls.md#A first try",
)
"""Chapters with two blocks: the first one starts a server by its last line, the second one is for another terminal."""
PORTS = '[tls]\nlisten = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n'
USUAL = {"pulsar+ssl": "pulsar+ssl://localhost:6651", "https": "https://localhost:8443"}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_with_two_terminals_works_as_printed(chapter: str, tmp_path: Path) -> None:
    """Run it from an empty directory, on free ports."""
    page, _, heading = chapter.partition("#")
    text = (ROOT / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    first, second = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    (tmp_path / "bin").mkdir()
    environment = {**os.environ, "PATH": path_with_quire(tmp_path / "bin"), "XDG_CONFIG_HOME": str(tmp_path)}
    directory = tmp_path / "empty"
    directory.mkdir()
    *preparation, start = first.strip().splitlines()
    assert start.startswith("quire standalone --security ")
    succeed("\n".join(preparation), directory, environment)
    security = directory / start.split()[-1]
    security.write_text(security.read_text().replace("[tls]\n", PORTS))
    with served(start, directory, environment) as urls:
        plain = {"QUIRE_ADMIN_URL": urls.get("http", ""), "QUIRE_SERVICE_URL": urls.get("pulsar", "")}
        for scheme, usual in USUAL.items():
            second = second.replace(usual, urls.get(scheme, usual))
        succeed(second, directory, environment | plain)


def succeed(script: str, directory: Path, environment: dict[str, str]) -> None:
    ran = subprocess.run(
        ["sh", "-ec", script], cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, f"{script}\n{ran.stdout}{ran.stderr}"


@contextmanager
def served(start: str, directory: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Run a server by a page's command on free ports; yield its URLs by scheme."""
    command = f"exec {start} --listen 127.0.0.1:0 --http 127.0.0.1:0"
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            ["sh", "-c", command],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        ready, *urls = process.stdout.readline().split() or [""]
        assert ready == "ready", (directory / "log").read_text()
        yield {url.partition("://")[0]: url for url in urls}
    finally:
        process.terminate()
        process.communicate(timeout=30)
