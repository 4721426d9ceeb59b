"""The stock clients, and ours, in every mode they know: one program each, `scenarios.py` says what it must observe.

A program plays all its scenarios in one process against one `quire standalone` and prints what it saw; each scenario
is a test of its own here. `kill` plays against a cluster of two brokers, one of which dies by SIGKILL while the
programs of all languages publish and consume. Built programs are kept under a hash of their sources (`programs`).
A language is skipped, and says why, where its toolchain or its client cannot be had.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Server, standalone
from tests.clients import programs
from tests.clients.scenarios import EXPECTED, KILL, played
from tests.cluster.local import Cluster, running

PLAY_S = 150
KILLED_SESSION = "3s"
LANGUAGES: dict[str, Callable[[], list[str]]] = {
    "quire": programs.quire,
    "python": programs.python,
    "go": programs.go,
    "java": programs.java,
    "node": programs.node,
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an RSA key pair."""
    folder = tmp_path_factory.mktemp("keys")
    programs.write_keys(folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture(scope="module")
def observed(server: Server, keys: Path) -> Callable[[str], dict[str, dict[str, Any]]]:
    """What the program of a language saw, by scenario."""

    @cache
    def play(language: str) -> dict[str, dict[str, Any]]:
        command = [*LANGUAGES[language](), server.service_url, server.http_url, str(keys), *played(language)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PLAY_S)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return {line["scenario"]: line for line in lines}

    return play


@pytest.mark.parametrize(
    ("language", "scenario"), [(language, name) for language in LANGUAGES for name in played(language)]
)
def test_scenario(observed: Callable[[str], dict[str, dict[str, Any]]], language: str, scenario: str) -> None:
    seen = observed(language)[scenario]
    assert seen.get("facts") == EXPECTED[scenario], seen


def available() -> dict[str, list[str]]:
    """The commands of the languages that this machine has."""
    found = {}
    for language, command in LANGUAGES.items():
        try:
            found[language] = command()
        except pytest.skip.Exception:
            continue
    return found


@pytest.mark.chaos
async def test_a_broker_is_killed_under_all_clients(tmp_path: Path, keys: Path) -> None:
    commands = await asyncio.to_thread(available)
    async with running(tmp_path / "cluster", session_timeout_ms=KILLED_SESSION) as cluster:
        playing = {
            language: await start([*command, cluster.service_url, cluster.http_url, str(keys), "kill"])
            for language, command in commands.items()
        }
        try:
            seen = await survive(cluster, playing)
        finally:
            for process in playing.values():
                if process.returncode is None:
                    process.kill()
        assert seen == {language: {"scenario": "kill", "facts": KILL} for language in commands}, (
            cluster.story()
        )


async def survive(cluster: Cluster, playing: dict[str, asyncio.subprocess.Process]) -> dict[str, Any]:
    """Kills a broker when every program publishes; what they saw in the end."""
    async with asyncio.timeout(PLAY_S):
        for language, process in playing.items():
            assert await next_line(process) == {"event": "running"}, language
        cluster.signal(next(iter(cluster.pids("broker"))), signal.SIGKILL)
        for process in playing.values():
            assert process.stdin is not None
            process.stdin.write(b"killed\n")
        return {language: await next_line(process) for language, process in playing.items()}


async def start(command: list[str]) -> asyncio.subprocess.Process:
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=nowhere)


async def next_line(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if line.startswith(b"{"):
            return json.loads(line)
    raise AssertionError("the program ended before it said what it saw")
