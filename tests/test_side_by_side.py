"""Runs of tests in two clones on one machine have temporary folders of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import temporary_root

ROOT = Path(__file__).parents[1]


def test_a_run_uses_the_folder_of_its_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    (clone / "tests").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", clone / "tests")
    shutil.copy(ROOT / "pyproject.toml", clone)
    (clone / "tests" / "test_it.py").write_text("def test_it(tmp_path):\n    print('used', tmp_path)\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "tests"]
    try:
        ran = subprocess.run(
            words, cwd=clone, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        (used,) = [line.split()[-1] for line in ran.stdout.splitlines() if "used /" in line]
        assert Path(used).is_relative_to(temporary_root(clone)), ran.stdout
    finally:
        shutil.rmtree(temporary_root(clone), ignore_errors=True)
    assert temporary_root(clone) != temporary_root(ROOT)
