"""`make run` with a Python that is too old: one sentence, before anything is created or downloaded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
echo "$*" >> {log}
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && touch "$3/bin/quire" && cp "$0" "$3/bin/pip" ;;
  "-c "*) echo "{version}" ;;
esac
"""
"""Python that reports a version, and only pretends to create environments and to install."""


def make_run(folder: Path, version: str, *words: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run `make run` with a `python3` that reports `version`; return the result and the calls of that Python."""
    log = folder / "calls"
    log.touch()
    python = folder / "python3"
    python.write_text(PYTHON.format(log=log, version=version))
    python.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "MAKEFLAGS": ""}
    command = ["make", "--no-print-directory", "run", f"VENV={folder / 'venv'}", *words]
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return ran, log.read_text().splitlines()


def test_an_old_python_is_refused_before_anything_is_downloaded(tmp_path: Path) -> None:
    ran, calls = make_run(tmp_path, "3.10 False")
    sentence, of_make = ran.stderr.strip().splitlines()
    assert ran.returncode != 0 and ran.stdout == ""
    assert sentence == (
        "Quire needs Python 3.11 or newer, and python3 is Python 3.10: name a newer one (make run PYTHON=python3.12)"
    )
    assert of_make.startswith("make: ***")
    assert len(calls) == 1 and calls[0].startswith("-c ") and not (tmp_path / "venv").exists()


def test_an_environment_of_an_old_python_is_refused_and_named(tmp_path: Path) -> None:
    make_run(tmp_path, "3.12 True")
    (tmp_path / "venv" / ".run").unlink()
    script = (tmp_path / "venv" / "bin" / "python").read_text()
    (tmp_path / "venv" / "bin" / "python").write_text(script.replace("3.12 True", "3.10 False"))
    ran, _ = make_run(tmp_path, "3.12 True")
    assert ran.returncode != 0 and f"rm -r {tmp_path / 'venv'}" in ran.stderr


def test_a_python_that_does_not_exist_is_refused_too(tmp_path: Path) -> None:
    ran, calls = make_run(tmp_path, "3.12 True", "PYTHON=python3.999")
    assert ran.returncode != 0 and "name one that is installed" in ran.stderr
    assert not calls and not (tmp_path / "venv").exists()


@pytest.mark.parametrize("version", ["3.11 True", "3.14 True"])
def test_a_newer_python_installs(tmp_path: Path, version: str) -> None:
    ran, calls = make_run(tmp_path, version)
    assert f"-m venv {tmp_path / 'venv'}" in calls, ran.stderr
    assert any(call.startswith("-m pip install -e .") for call in calls)
