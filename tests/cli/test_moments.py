"""Moments as users write them."""

from __future__ import annotations

import time

import pytest

from quire.cli.moments import time_ms


@pytest.mark.parametrize("text", ["1969-01-01", "0001-01-01T00:00:00", "30000d"])
def test_a_moment_before_1970_is_the_beginning(text: str) -> None:
    assert time_ms(text) == 0


@pytest.mark.parametrize("text", ["-5s", "-1", "-2h", "now", "1e400s", "nan", "100000000d"])
def test_what_is_not_a_moment_is_refused(text: str) -> None:
    assert time_ms(text) is None


def test_a_duration_is_so_long_ago() -> None:
    found = time_ms("15m")
    assert found is not None
    assert abs(time.time() * 1000 - 900_000 - found) < 60_000
