"""Commands and programs of the pages for newcomers: each program equals its file, each command succeeds as printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import standalone

ROOT = Path(__file__).parents[1]
RUN_ELSEWHERE = ("quire standalone", "quire local", "quire bookies decommission", "quire doctor")
"""Processes without an end, commands that need a cluster, and one that may rightly complain of a slow machine:
tests/cluster and tests/cli run them."""
COMMANDS = {"README.md": 2, "docs/first-hour.md": 9, "docs/commands.md": 24}
"""Least number of commands that run on each page: a page that loses its commands fails."""
PROGRAMS = {
    "python/first.py": "README.md",
    "python/archive.py": "README.md",
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


@pytest.mark.parametrize("page", COMMANDS)
def test_the_commands_work_as_printed(page: str, tmp_path: Path) -> None:
    """Run a page's commands in order on a new server, whose ports replace the usual ones."""
    script = tmp_path / "quire"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m quire "$@"\n')
    script.chmod(0o755)
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
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "QUIRE_ADMIN_URL": server.http_url,
            "QUIRE_SERVICE_URL": server.service_url,
        }
        for line in printed:
            line = line.replace("http://127.0.0.1:8080", server.http_url).replace("curl ", "curl -fsS ")
            ran = subprocess.run(
                ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
