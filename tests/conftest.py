"""What holds for all tests.

Those with a real ZooKeeper or real processes under a deadline are tried up to three times. They hold processes to times
(a session's end, "no publish takes longer than two seconds") on whatever machine runs them, so one failure may mean
that the machine was busy; three in a row mean a mistake. Tests that look for lost messages get no second try: what is
lost once is lost.

What takes long begins first, or the run ends with one process that works and two that have nothing left to do. And
what hangs is ended: pytest-timeout watches a test no longer once it has failed, and its clean-up may hang.

Hypothesis makes the same examples in every run, so that a pull request fails only by what it changes. New examples come
from `pytest --hypothesis-profile random`.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.register_profile("random", derandomize=False)
hypothesis.settings.load_profile("repeatable")

HELD_TO_TIMES = ("tests/cluster/", "tests/zookeeper/", "tests/chaos/test_hostile_http.py")
TRIES = 3
FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM of a test ends before a second compiler and a parallel collector pay off: they cost Spark's a third more."""

for variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_LAUNCHER_OPTS", "MAVEN_OPTS"):
    os.environ.setdefault(variable, FAST_JVM)


def temporary_root(clone: Path) -> Path:
    """Return the folder for temporary folders of this clone's runs.

    A run that passes deletes its folder, and the next run of any clone takes its number. The first run then deletes
    the lock of that number when it exits, so runs that are side by side would delete each other's folders.
    """
    name = hashlib.sha256(str(clone).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"quire-tests-{name}"


if "PYTEST_DEBUG_TEMPROOT" not in os.environ:
    root = temporary_root(Path(__file__).resolve().parents[1])
    root.mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(root)

NO_SECOND_TRY = ("test_chaos.py", "test_rescue_wal.py")

LONG = (
    "tests/simulation/",
    "tests/spark_source/",
    "tests/cluster/",
    "tests/chaos/",
    "tests/model/",
    "tests/clients/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.as_posix()
        held = any(part in path for part in HELD_TO_TIMES) or "zookeeper" in getattr(item, "fixturenames", ())
        if held and not path.endswith(NO_SECOND_TRY):
            item.add_marker(pytest.mark.flaky(reruns=TRIES - 1))
    items.sort(key=begins)


def begins(item: pytest.Item) -> int:
    """Where in the order of a run."""
    path = item.path.as_posix()
    return next((place for place, part in enumerate(LONG) if part in path), len(LONG))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A time-out after its last try a test ends its process, and so the run; xdist says which test it was."""
    marked, tries = item.get_closest_marker("timeout"), TRIES if item.get_closest_marker("flaky") else 1
    timeout_s = float(marked.args[0] if marked else item.config.getini("timeout"))
    guard = threading.Timer((tries + 1) * timeout_s, os._exit, (os.EX_SOFTWARE,))
    guard.daemon = True
    guard.start()
    try:
        return (yield)
    finally:
        guard.cancel()
