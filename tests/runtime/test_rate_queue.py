"""Rates with a waiting queue: when callers wait, in which order they are resumed, and the rate of a connection."""

from __future__ import annotations

import asyncio

from quire.runtime.clock import ManualClock
from quire.runtime.rate_queue import RateQueue, RequestRate
from quire.runtime.token_bucket import TokenBucket


async def test_all_buckets_must_admit_a_caller() -> None:
    clock = ManualClock()
    fast, slow = TokenBucket(100, clock.monotonic()), TokenBucket(1, clock.monotonic())
    queue = RateQueue(clock.monotonic, fast, slow)
    assert queue.is_open()
    slow.take(2)
    resumed: list[str] = []
    queue.wait(lambda: resumed.append("a"))
    fast.take(500)
    clock.advance_ms(2_000)
    queue.release()
    assert not resumed and queue.has_waiters, "the slow one admits it, the fast one does not yet"
    clock.advance_ms(2_100)
    queue.release()
    assert resumed == ["a"] and queue.is_open()
    queue.close()


async def test_a_caller_that_takes_what_there_is_makes_the_next_one_wait_on() -> None:
    clock = ManualClock()
    bucket = TokenBucket(1, clock.monotonic())
    queue = RateQueue(clock.monotonic, bucket)
    bucket.take(1)
    resumed: list[str] = []

    def take(name: str) -> None:
        assert queue.is_open(), "it has its turn, though others wait"
        bucket.take(1)
        resumed.append(name)
        if len(resumed) == 1:
            queue.wait(lambda: take(f"{name} again"))

    for name in "ab":
        queue.wait(lambda name=name: take(name))  # type: ignore[misc]
    for expected in (["a"], ["a", "b"], ["a", "b", "a again"]):
        assert not queue.is_open()
        clock.advance_ms(1_010)
        queue.release()
        assert resumed == expected
    queue.close()


async def test_the_timer_resumes_a_caller() -> None:
    bucket = TokenBucket(1_000, 0.0, burst=1)
    loop = asyncio.get_running_loop()
    queue = RateQueue(loop.time, bucket)
    queue.wait_s()
    bucket.take(5)
    resumed = loop.create_future()
    queue.wait(lambda: resumed.set_result(None))
    await asyncio.wait_for(resumed, 30)
    assert not queue.has_waiters


async def test_a_connection_beyond_its_rate_is_stopped_once_and_goes_on() -> None:
    resumed, calls = asyncio.Event(), list[str]()

    def go_on() -> None:
        calls.append("go on")
        resumed.set()

    rate = RequestRate(1_000, lambda: calls.append("stop"), go_on)
    for _ in range(1_100):
        rate.count()
    assert calls == ["stop"], "requests that were read before the stop count, too"
    await asyncio.wait_for(resumed.wait(), 30)
    assert calls == ["stop", "go on"]
    for _ in range(200):
        rate.count()
    assert calls == ["stop", "go on", "stop"]
    rate.close()
