"""What a job keeps in a directory between two calls: JSON files that are whole or not there, and a lock.

    DIRECTORY/_quire/lock        held while a job works here
    DIRECTORY/_quire/NAME.json   what the job knows: written under another name, synced, renamed

The directory is local or a mounted one: the lock and the renames need a file system.
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
def alone(root: Path, what: str) -> Iterator[None]:
    """While no other job works in the directory, which is made. Raises `InUse`."""
    (root / "_quire").mkdir(parents=True, exist_ok=True)
    with (root / "_quire" / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"another {what} works in {root}: wait until it has ended") from None
        yield


def load(path: Path) -> dict[str, Any] | None:
    """What `store` has written; None: nothing."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except FileNotFoundError:
        return None
    except ValueError:
        raise CorruptionError(f"{path} is damaged; begin anew in an empty directory") from None


def store(path: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all, and durable when it returns."""
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
