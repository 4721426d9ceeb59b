"""What fuzzing found interesting, and what is as it should be, as ordinary tests with a bound on memory."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.fuzz.targets import CORPUS, TARGETS, corpus, seeds

MEMORY_BYTES_MAX = 16 << 20
CORPUS_BYTES_MAX = 500 << 10


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_declared_errors(name: str) -> None:
    kept = {**{f"seed {n}": seed for n, seed in enumerate(seeds(name))}, **corpus(name)}
    tracemalloc.start()
    try:
        for file, data in kept.items():
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                TARGETS[name](data)
            except Exception as error:
                raise AssertionError(f"{name}: {file}: {data[:80]!r}") from error
            used = tracemalloc.get_traced_memory()[1] - before
            assert used < MEMORY_BYTES_MAX + 16 * len(data), f"{name}: {file} takes {used} bytes"
    finally:
        tracemalloc.stop()


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) <= CORPUS_BYTES_MAX
