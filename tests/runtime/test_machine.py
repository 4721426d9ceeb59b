"""A machine is looked at as it is: each finding has its real cause here, where a test can have it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.runtime import machine as machine_module
from quire.runtime.findings import ERROR, WARNING, Finding
from quire.runtime.limits import GIB, MIB
from quire.runtime.machine import Machine, Place, file_system
from tests.mounted import mounted


def only(findings: list[Finding], words: str, level: str) -> Finding:
    """The one finding that has these words."""
    (found,) = [one for one in findings if words in one.what]
    assert found.level == level and found.todo, found
    return found


@pytest.fixture
def nearly_full(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 64 MiB, of which 4 are free."""
    with mounted(tmp_path / "small", "size=64m") as place:
        (place / "of-others").write_bytes(bytes(60 * MIB))
        yield place


def test_a_disk_that_is_nearly_full(nearly_full: Path) -> None:
    found = Machine([Place("journal", str(nearly_full))]).findings()
    assert "4 of 64 MiB free" in only(found, "MiB free", WARNING).what
    found = Machine([Place("entry log", str(nearly_full / "not" / "yet"), needs_bytes=8 * MIB)]).findings()
    only(found, "below 8 MiB, new data are rejected", ERROR)
    only(found, "is in memory (tmpfs)", WARNING)
    assert file_system(nearly_full) == "tmpfs"
    (nearly_full / "of-others").unlink()
    assert not [one for one in Machine([Place("journal", str(nearly_full))]).findings() if "free" in one.what]


def test_a_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = Machine([Place("journal", str(tmp_path / "file" / "journal"), is_synced=True)]).findings()
    only(found, "cannot be written", ERROR)


def test_a_disk_that_syncs_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow for the process that asks, which is what it is to a journal."""
    place = Place("journal", str(tmp_path), is_synced=True)
    monkeypatch.setattr(machine_module, "SYNCS", 3)
    monkeypatch.setattr(machine_module, "SYNC_S_MAX", 0.2)
    assert not [one for one in Machine([place]).findings() if "sync" in one.what]
    slow = os.fdatasync

    def fdatasync(fd: int) -> None:
        time.sleep(0.21)
        slow(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    only(Machine([place]).findings(), "a sync in journal", WARNING)
    assert list(tmp_path.iterdir()) == [], "the trial left nothing"


ASK = """
import json, resource, sys
which, value = getattr(resource, sys.argv[1]), int(sys.argv[2])
resource.setrlimit(which, (value, value))
from quire.runtime.machine import Machine
print(json.dumps([one.to_json() for one in Machine(is_bookie=True).findings()]))
"""


@pytest.mark.parametrize(
    ("limit", "value", "words", "level"),
    [
        ("RLIMIT_NOFILE", 1_024, "may open only 1024 files", WARNING),
        ("RLIMIT_FSIZE", 100 * MIB, "limited to 100 MiB, but an entry log", ERROR),
        ("RLIMIT_AS", 8 * GIB, "of this process is 8192 MiB", ERROR),
    ],
)
def test_a_limit_of_the_process(limit: str, value: int, words: str, level: str) -> None:
    ran = subprocess.run([sys.executable, "-c", ASK, limit, str(value)], capture_output=True, check=True)
    only([Finding(**one) for one in json.loads(ran.stdout)], words, level)


RUN_OUT = """
import json, os, resource, sys
from quire.runtime.machine import Machine
used = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(json.dumps([one.to_json() for one in Machine().findings()]))
"""


@pytest.mark.parametrize("left", [0, 1])
def test_files_that_run_out(left: int) -> None:
    """In a process of its own: threads of others open files here, too. Without one left, nobody can count them."""
    ran = subprocess.run([sys.executable, "-c", RUN_OUT, str(left)], capture_output=True, check=True)
    only([Finding(**one) for one in json.loads(ran.stdout)], "that this process may open are open", ERROR)


WELL = {
    "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
    "proc/sys/net/core/somaxconn": "4096\n",
    "proc/sys/fs/file-nr": "1000\t0\t100000\n",
    "sys/fs/cgroup/memory.max": "max\n",
}


@pytest.mark.parametrize(
    ("file", "says", "words"),
    [
        (
            "proc/meminfo",
            "MemTotal: 16000000 kB\nMemAvailable: 90000 kB\n",
            "87 of 15625 MiB of memory are available",
        ),
        ("proc/meminfo", "MemTotal: 400000 kB\nMemAvailable: 300000 kB\n", "the memory is 390 MiB"),
        (
            "proc/meminfo",
            WELL["proc/meminfo"].replace("SwapTotal: 0", "SwapTotal: 9000000"),
            "8789 MiB are swapped out",
        ),
        ("sys/fs/cgroup/memory.max", str(512 * MIB), "the memory is 512 MiB"),
        ("proc/sys/net/core/somaxconn", "128\n", "is limited to 128 connections"),
        ("proc/sys/fs/file-nr", "95000\t0\t100000\n", "95000 of 100000 files"),
    ],
)
def test_what_the_kernel_says(file: str, says: str, words: str, tmp_path: Path) -> None:
    for name, text in WELL.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert Machine(root=tmp_path).findings() == []
    (tmp_path / file).write_text(says)
    (found,) = Machine(root=tmp_path).findings()
    assert words in found.what and found.todo
