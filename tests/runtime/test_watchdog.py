"""A loop that stands is told of, from the outside; one that is only slow is measured."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from quire.runtime import watchdog as watchdog_module
from quire.runtime.watchdog import STALL_S, Watchdog

PATIENCE_S = 30.0


def stands_still_here(watchdog: Watchdog, until: threading.Event) -> None:
    """What a turn of the loop must never do. It starts the watchdog, so that no other stall can come before."""
    watchdog.start()
    assert until.wait(PATIENCE_S)


async def test_a_loop_that_stands_is_told_of_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    watchdog, was_told = Watchdog(), threading.Event()
    calls: list[str] = []
    watchdog.when_standing(lambda: 2 * STALL_S, was_told.set)
    watchdog.when_standing(lambda: STALL_S, lambda: calls.append(threading.current_thread().name))
    watchdog.when_standing(lambda: 1_000.0, lambda: calls.append("never"))
    with caplog.at_level(logging.WARNING, "quire.watchdog"):
        stands_still_here(watchdog, was_told)
        async with asyncio.timeout(PATIENCE_S):
            told = ""
            while "runs again" not in told:
                await asyncio.sleep(0.01)
                told = "".join(record.getMessage() for record in caplog.records)
    assert calls == ["quire-watchdog"], "once for the stall"
    assert any("stands_still_here" in (record.stack_info or "") for record in caplog.records)
    metrics = watchdog.metrics()
    assert metrics["quire_loop_stalls_total"] == 1
    assert watchdog.lag_s_max() >= STALL_S, "whoever asked before"
    assert watchdog.lag_s.sum >= STALL_S and sum(watchdog.lag_s.counts[-4:]) >= 1
    late = metrics["quire_loop_late_beats_total"]
    assert isinstance(late, int) and late >= 1
    watchdog.stop()


async def test_a_process_that_was_stopped_as_a_whole_does_not_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads slept together, as on a machine that was suspended."""
    watchdog, calls = Watchdog(), list[float]()
    watchdog.when_standing(lambda: 10.0, lambda: calls.append(0.0))
    slept_s = 0.0
    looked = threading.Semaphore(0)

    def monotonic() -> float:
        looked.release()
        return time.perf_counter() + slept_s

    monkeypatch.setattr(watchdog_module, "time", _Time(monotonic))
    watchdog.start()
    assert looked.acquire(timeout=PATIENCE_S)
    slept_s = 3600.0
    for _ in range(4):
        assert looked.acquire(timeout=PATIENCE_S)
    assert not calls
    watchdog.stop()


class _Time:
    def __init__(self, monotonic: object) -> None:
        self.monotonic = monotonic
        self.process_time = time.process_time
