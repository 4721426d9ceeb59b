"""The units start what the command line takes, and systemd understands every line of them."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli.config import PROCESSES

FOLDER = Path(__file__).parents[1] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))


def test_there_is_a_unit_for_each_process() -> None:
    assert {unit.stem.removeprefix("quire-") for unit in UNITS} == set(PROCESSES)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_its_process_with_its_file_and_waits_until_it_is_ready(unit: Path) -> None:
    kind = unit.stem.removeprefix("quire-")
    service = read(unit)["Service"]
    assert service["ExecStart"].split() == [
        "/opt/quire/bin/quire",
        kind,
        "--config",
        f"/etc/quire/{kind}.toml",
    ]
    assert service["Type"] == "notify" and int(service["LimitNOFILE"]) >= 65536
    keeps = kind in ("bookie", "standalone")
    assert (service.get("ReadWritePaths") == "/var/lib/quire") == keeps and service[
        "ProtectSystem"
    ] == "strict"


def test_the_users_and_directories_of_the_units_are_made() -> None:
    users, directories = (FOLDER / f"quire.{what}.conf" for what in ("sysusers", "tmpfiles"))
    assert {read(unit)["Service"]["User"] for unit in UNITS} == {users.read_text().splitlines()[1].split()[1]}
    made = {line.split()[1] for line in directories.read_text().splitlines() if not line.startswith("#")}
    mounts = {path for unit in UNITS for path in read(unit)["Unit"].get("RequiresMountsFor", "").split()}
    assert mounts <= made and "/etc/quire" in made


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_verifies_it(unit: Path, tmp_path: Path) -> None:
    """With a program that is there in place of /opt/quire/bin/quire; a warning is a failure here."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/quire/bin/quire", sys.executable))
    words = [analyze, "verify", "--man=no", "--generators=no", str(copy)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and unit.name not in done.stderr, done.stderr


def read(unit: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(comment_prefixes="#", strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    return parser
