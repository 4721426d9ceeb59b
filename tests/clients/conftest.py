"""The programs of the stock clients are built while the tests before these run.

Fetching and compiling takes minutes on a machine that has never done it. In a run of several processes the first of
them starts the build (`programs`), so tests rarely wait for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILDING = pytest.StashKey["subprocess.Popen[bytes]"]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start it, in a session of its own, for tools have children."""
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" and any(
        HERE in item.path.parents for item in session.items
    ):
        session.config.stash[BUILDING] = subprocess.Popen(
            [sys.executable, "-m", "tests.clients.programs"],
            cwd=HERE.parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    building = config.stash.get(BUILDING, None)
    if building is not None and building.poll() is None:
        os.killpg(building.pid, signal.SIGTERM)
        building.wait(30)
