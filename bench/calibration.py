"""Calibration: the machine's current speed, so that results of different days and machines can be compared.

    python -m bench.calibration

It measures four fixed pieces of work of the interpreter, the memory and the disk, in a third of a second. Each figure
is the best of several tries, except the disk's, which is the median in `tempfile`'s directory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Final

from crc32c import crc32c

TRIES: Final = 5
TURNS: Final = 300_000
BYTES: Final = 16 << 20
SYNCS: Final = 25
PAGE: Final = bytes(4096)


def calibration() -> dict[str, float]:
    """Measure an empty loop's iteration (ns), a checksum and a copy (GB/s), and an fdatasync (µs)."""
    buffer = bytearray(os.urandom(1 << 20) * (BYTES >> 20))
    return {
        "loop_ns": _best(_loop) / TURNS * 1e9,
        "checksum_gb_s": BYTES / _best(lambda: crc32c(buffer)) / 1e9,
        "copy_gb_s": BYTES / _best(lambda: bytes(buffer)) / 1e9,
        "fdatasync_us": _sync() * 1e6,
    }


def _loop() -> None:
    for _ in range(TURNS):
        pass


def _best(work: Callable[[], object]) -> float:
    return min(_seconds(work) for _ in range(TRIES))


def _seconds(work: Callable[[], object]) -> float:
    begin = perf_counter()
    work()
    return perf_counter() - begin


def _sync() -> float:
    """Return the seconds that it takes to overwrite a page durably, as a journal does."""
    with tempfile.NamedTemporaryFile() as file:
        descriptor = file.fileno()
        os.write(descriptor, PAGE * SYNCS)
        os.fdatasync(descriptor)

        def write() -> None:
            os.pwrite(descriptor, PAGE, 0)
            os.fdatasync(descriptor)

        return median(_seconds(write) for _ in range(SYNCS))


if __name__ == "__main__":
    print(calibration())
