"""What holds for all tests: those with a real ZooKeeper or real processes under a deadline are tried up to three times.

They hold processes to times (a session's end, "no publish takes longer than two seconds") on whatever machine runs
them, so one failure may mean that the machine was busy; three in a row mean a mistake. Tests that look for lost
messages get no second try: what is lost once is lost.
"""

from __future__ import annotations

import pytest

HELD_TO_TIMES = ("tests/cluster/", "tests/zookeeper/")
NO_SECOND_TRY = ("test_chaos.py", "test_rescue_wal.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.as_posix()
        held = any(part in path for part in HELD_TO_TIMES) or "zookeeper" in getattr(item, "fixturenames", ())
        if held and not path.endswith(NO_SECOND_TRY):
            item.add_marker(pytest.mark.flaky(reruns=2))
