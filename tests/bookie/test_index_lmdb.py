"""The index that lasts, when its file is damaged: it says so, and never answers wrongly as if nothing were."""

import faulthandler
import os
from pathlib import Path
from random import Random

import pytest

from quire.bookie.index import IndexRow
from quire.bookie.index_lmdb import LmdbIndex
from quire.runtime.errors import CorruptionError, DiskError

ROWS = [
    IndexRow(ledger, n * 10, n * 10 + 9, 1, 4096 * n, 100, 1, 1, -1)
    for ledger in range(30)
    for n in range(30)
]


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """The file of an index with `ROWS`, made by two commits."""
    index = LmdbIndex(tmp_path / "whole")
    index.commit(ROWS[:300], dict.fromkeys(range(30), b"record"), b"mark 1")
    index.commit(ROWS[300:], {}, b"mark 2")
    index.close()
    return (tmp_path / "whole" / "data.mdb").read_bytes()


def damaged(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "damaged"
    path.mkdir(exist_ok=True)
    (path / "data.mdb").write_bytes(content)
    return path


SAID_SO, ANSWERS_RIGHT, ANSWERS_WRONG = 10, 11, 12


def outcome(path: Path) -> int:
    """What a node that starts on this index sees."""
    try:
        index = LmdbIndex(path)
        index.verify()
        right = [index.find(row.ledger_id, row.first_entry + 3) for row in ROWS] == ROWS
        right = right and len(list(index.ledgers())) == 30 and index.mark() in (b"mark 1", b"mark 2")
        return ANSWERS_RIGHT if right else ANSWERS_WRONG
    except (CorruptionError, DiskError):
        return SAID_SO


def outcome_in_a_process_of_its_own(path: Path) -> int:
    """LMDB ends the process over some damage by an assertion; that is loud enough, but not for pytest."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        os.close(2)
        code = ANSWERS_WRONG
        try:
            code = outcome(path)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return SAID_SO if code < 0 else code


def test_no_flipped_bit_makes_a_verified_index_answer_wrongly(tmp_path: Path, content: bytes) -> None:
    rng = Random(7)
    outcomes = []
    for page in range(0, len(content), 4096):
        for within in (rng.randrange(64), rng.randrange(4096)):
            image = bytearray(content)
            image[page + within] ^= 1 << rng.randrange(8)
            outcomes.append(outcome_in_a_process_of_its_own(damaged(tmp_path, bytes(image))))
    assert set(outcomes) == {SAID_SO, ANSWERS_RIGHT}
    assert outcomes.count(SAID_SO) > 10, "the test should hit what is in use"


def test_a_file_cut_short_is_refused(tmp_path: Path, content: bytes) -> None:
    path = damaged(tmp_path, content[: len(content) // 8192 * 4096])
    with pytest.raises(CorruptionError, match="cut short") as error:
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
