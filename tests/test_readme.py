"""What the README says can be typed as it stands: its programs are the examples' files, its commands work."""

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
README = (ROOT / "README.md").read_text()
BLOCKS = [(language, text) for language, text in re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)]
RUN_ELSEWHERE = ("quire standalone", "quire local", "quire bookies decommission", "quire doctor")
"""Processes that end only when told to, what needs a cluster, and what may rightly complain of a machine that is slow:
tests/cluster and tests/cli have them."""
PROGRAMS = ["python/first.py", "go/main.go", "java/src/main/java/First.java", "python/archive.py"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_the_file_that_the_tests_run(name: str) -> None:
    file = (ROOT / "docs" / "examples" / name).read_text()
    assert file.strip() in [text.strip() for _, text in BLOCKS]


def test_the_commands_work_as_typed(tmp_path: Path) -> None:
    """On other ports, which the environment tells, or which are put in place of the usual ones."""
    script = tmp_path / "quire"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m quire "$@"\n')
    script.chmod(0o755)
    shutil.copy(ROOT / "README.md", tmp_path)
    lines = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    typed = [
        line.replace(".venv/bin/quire", "quire") for line in lines if re.search(r"\b(quire|curl) ", line)
    ]
    typed = [line for line in typed if not line.startswith(RUN_ELSEWHERE)]
    if shutil.which("curl") is None:
        typed = [line for line in typed if not line.startswith("curl")]
    assert len(typed) >= 12
    with standalone(tmp_path) as server:
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "QUIRE_ADMIN_URL": server.http_url,
            "QUIRE_SERVICE_URL": server.service_url,
        }
        for line in typed:
            line = line.replace("http://127.0.0.1:8080", server.http_url).replace("curl ", "curl -fsS ")
            ran = subprocess.run(
                ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
