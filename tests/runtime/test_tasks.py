"""Background tasks: held, told of, and ended with their owner."""

from __future__ import annotations

import asyncio

import pytest

from quire.runtime.tasks import Tasks


async def test_a_failure_is_logged_with_what_was_done(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("no luck")

    tasks = Tasks("owner")
    await asyncio.wait([tasks.start(fail(), "try something")])
    await asyncio.sleep(0)
    assert "try something failed: no luck" in caplog.text
    assert len(tasks) == 0


async def test_stop_cancels_and_waits() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    tasks = Tasks("owner")
    for _ in range(3):
        tasks.start(work(), "wait")
    await asyncio.sleep(0)
    await tasks.stop()
    assert ended == [True] * 3
    assert len(tasks) == 0


async def test_a_task_may_stop_its_own_group() -> None:
    tasks = Tasks("owner")
    await asyncio.wait_for(tasks.start(tasks.stop(), "stop"), 5)
