"""Flips bits in an index's file and starts on what comes out: `python -m tests.bookie.flipped_bits INDEX SEED SECONDS`.

Prints what came of each as JSON: how many said so, answered rightly, or wrongly, and where the wrong ones were
flipped. LMDB ends the process over some damage by an assertion, which is loud enough, so each has a process of its own;
this one has no threads, of which a fork could find a lock held for ever.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic

from quire.bookie.index import IndexRow
from quire.bookie.index_lmdb import LmdbIndex
from quire.runtime.errors import CorruptionError, DiskError

PAGE = 4096
HEADER = 64
"""Where a flipped bit does most: a page's header, and where its values lie."""

ROWS = [
    IndexRow(ledger, n * 10, n * 10 + 9, 1, 4096 * n, 100, 1, 1, -1)
    for ledger in range(30)
    for n in range(30)
]
COMMITS = {b"mark 1": ROWS[:300], b"mark 2": ROWS}

SAID_SO, ANSWERS_RIGHT, ANSWERS_WRONG = 10, 11, 12


def make(directory: Path) -> None:
    """An index with `ROWS`, by two commits."""
    index = LmdbIndex(directory)
    index.commit(ROWS[:300], dict.fromkeys(range(30), b"record"), b"mark 1")
    index.commit(ROWS[300:], {}, b"mark 2")
    index.close()


def outcome(directory: str) -> int:
    """What a node that starts on this index sees. An older commit is right: it says by its mark that it is one."""
    try:
        index = LmdbIndex(directory)
        index.verify()
        if not (mark := index.mark()):
            return SAID_SO  # as the storage takes it
        rows = COMMITS[mark]
        right = [index.find(row.ledger_id, row.first_entry + 3) for row in rows] == rows
        return ANSWERS_RIGHT if right and len(list(index.ledgers())) == 30 else ANSWERS_WRONG
    except (CorruptionError, DiskError):
        return SAID_SO


def outcome_in_a_process_of_its_own(directory: str) -> int:
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        os.close(2)
        code = ANSWERS_WRONG
        try:
            code = outcome(directory)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return SAID_SO if code < 0 else code


def search(content: bytes, rng: Random, seconds: float) -> dict[str, object]:
    """One bit of each page's header and one of the page, in random order, while there is time."""
    counts, wrong = {SAID_SO: 0, ANSWERS_RIGHT: 0, ANSWERS_WRONG: 0}, []
    places = list(product(range(0, len(content), PAGE), (HEADER, PAGE)))
    rng.shuffle(places)
    until = monotonic() + seconds
    with TemporaryDirectory() as directory:
        for page, size in places:
            if monotonic() > until:
                break
            at, bit = page + rng.randrange(size), rng.randrange(8)
            image = bytearray(content)
            image[at] ^= 1 << bit
            Path(directory, "data.mdb").write_bytes(image)
            found = outcome_in_a_process_of_its_own(directory)
            counts[found] += 1
            if found == ANSWERS_WRONG:
                wrong.append((at, bit))
    return {
        "said so": counts[SAID_SO],
        "right": counts[ANSWERS_RIGHT],
        "wrong": counts[ANSWERS_WRONG],
        "at": wrong,
    }


if __name__ == "__main__":
    index, seed, seconds = sys.argv[1:]
    content = Path(index, "data.mdb").read_bytes()
    print(json.dumps(search(content, Random(int(seed)), float(seconds))))
