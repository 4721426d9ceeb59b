"""The tour of docs/spark.md is run as it stands, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_source.conftest import Server

TIMEOUT_S = 800
"""Timeout of the whole tour, which took 170 s on a machine with much other work."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(TIMEOUT_S + 60)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "-- end of a block --"


def test_it_prints_what_the_page_says(server: Server, tmp_path: Path) -> None:
    programs: list[str] = []
    promised: dict[int, str] = {}
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            programs.append(text)
        else:
            promised[len(programs) - 1] = text
    assert len(promised) == 4
    here = {"http://localhost:8080": server.http_url}
    program = tmp_path / "tour.py"
    program.write_text("".join(f"{replaced(text, here)}\nprint({MARK!r})\n" for text in programs))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "pandas" not in ran.stderr, "a warning"
    printed = ran.stdout.split(f"{MARK}\n")
    for number, text in promised.items():
        assert printed[number].strip() == text.strip()


def replaced(text: str, by: dict[str, str]) -> str:
    for old, new in by.items():
        text = text.replace(old, new)
    return text
