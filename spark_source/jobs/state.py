"""State of a job in a directory between two calls: JSON files, written atomically, and a lock.

    DIRECTORY/_quire/lock        locked while a job works here
    DIRECTORY/_quire/NAME.json   state of the job; written under a temporary name, synced, then renamed

The directory must be in a local or mounted file system, because of the lock and the renames.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quire.runtime.errors import CorruptionError, InUse


@contextmanager
def lock_directory(root: Path, what: str) -> Iterator[None]:
    """Create and lock a directory against other jobs. Raises `InUse`."""
    (root / "_quire").mkdir(parents=True, exist_ok=True)
    with (root / "_quire" / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"another {what} works in {root}: wait until it has ended") from None
        yield


def load(path: Path) -> dict[str, Any] | None:
    """Load a value that `store` wrote; return None if the file does not exist. Raises `CorruptionError`."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except FileNotFoundError:
        return None
    except ValueError:
        raise CorruptionError(f"{path} is damaged; begin again in an empty directory") from None


def store(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value atomically and durably."""
    partial_path = path.with_suffix(".tmp")
    with partial_path.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial_path, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
