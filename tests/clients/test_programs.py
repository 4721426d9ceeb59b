"""Programs of the stock clients are built once, whole or not at all, and a failed fetch is remembered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients import programs


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(programs, "BUILT", tmp_path / "built")
    return tmp_path / "built" / "language-0"


def shell(script: str, target: Path) -> None:
    """Build by a script that finds its folder in `$0`."""
    with programs.alone("shell"):
        programs.build(target, lambda place: ["sh", "-c", script, str(place)])


def test_of_tests_side_by_side_one_builds(target: Path, tmp_path: Path) -> None:
    script = f'echo built >> {tmp_path}/log; touch "$0/program"'
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: shell(script, target), range(3)))
    assert (target / "program").exists()
    assert (tmp_path / "log").read_text() == "built\n"


def test_half_a_program_is_not_taken_for_one(target: Path) -> None:
    half = target.with_suffix(".new")
    half.mkdir(parents=True)
    (half / "program").write_text("half")
    shell('test ! -e "$0/program" && echo whole > "$0/program"', target)
    assert (target / "program").read_text() == "whole\n"


def test_a_failed_fetch_is_not_tried_again_soon(target: Path, tmp_path: Path) -> None:
    script = f"echo tried >> {tmp_path}/log; exit 1"
    for _ in range(2):
        with pytest.raises(pytest.skip.Exception, match="could not fetch or build the client"):
            shell(script, target)
    assert (tmp_path / "log").read_text() == "tried\n"
    assert not target.exists()
