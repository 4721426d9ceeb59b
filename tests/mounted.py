"""A filesystem of its own for a test: one that is small and fills up, or takes no writes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """One in memory at `place`, which is made; `options` as mount takes them, `size=64m`. Skips who may not mount."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("a filesystem can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
