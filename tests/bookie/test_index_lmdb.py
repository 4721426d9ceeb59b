"""The index that lasts, when its file is damaged: it says so, and never answers wrongly as if nothing were."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quire.bookie.index_lmdb import LmdbIndex
from quire.runtime.errors import CorruptionError, DiskError

from .flipped_bits import ROWS, make

SEEDS = 10
SEARCH_S = 4.0
"""For each seed: a slow machine flips fewer bits."""


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    make(tmp_path / "whole")
    return (tmp_path / "whole" / "data.mdb").read_bytes()


def damaged(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "damaged"
    path.mkdir(exist_ok=True)
    (path / "data.mdb").write_bytes(content)
    return path


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_flipped_bit_makes_a_verified_index_answer_wrongly(tmp_path: Path, seed: int) -> None:
    make(tmp_path)
    command = [sys.executable, "-m", "tests.bookie.flipped_bits", str(tmp_path), str(seed), str(SEARCH_S)]
    outcomes = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    assert not outcomes["wrong"], outcomes
    assert outcomes["said so"], "the search should hit what is in use"


@pytest.mark.parametrize("name", [b"rows", b"ledgers", b"logs", b"meta"])
def test_a_tree_that_the_file_does_not_name_any_more_is_lost_and_not_empty(
    tmp_path: Path, content: bytes, name: bytes
) -> None:
    """The names of the trees are keys like any other, without a checksum."""
    renamed = name[:-1] + bytes([name[-1] ^ 1])
    assert content.count(name) >= 1
    with pytest.raises((CorruptionError, DiskError)):
        LmdbIndex(damaged(tmp_path, content.replace(name, renamed)))


def test_a_file_cut_short_is_refused(tmp_path: Path, content: bytes) -> None:
    path = damaged(tmp_path, content[: len(content) // 8192 * 4096])
    with pytest.raises(CorruptionError, match="truncated") as error:
        LmdbIndex(path)
    assert error.value.file == str(path / "data.mdb")


def test_a_file_that_is_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="damaged"):
        LmdbIndex(damaged(tmp_path, bytes(65536 * 2)[:-1] + b"x"))


def test_the_map_grows_under_readers(tmp_path: Path) -> None:
    index = LmdbIndex(tmp_path, map_bytes=1 << 16)
    for n in range(20):
        index.commit([row._replace(ledger_id=row.ledger_id + 30 * n) for row in ROWS], {}, b"%d" % n)
        assert index.find(0, 5) == ROWS[0]
    assert index.usage() == {1: 20 * 100 * len(ROWS)}
    index.verify()
    index.close()
