"""Helper threads: as many as are needed, results and errors as they are, and no end that hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from quire.runtime.threads import Breather, DaemonThreads

PATIENCE_S = 60.0


def test_results_and_errors_come_back() -> None:
    threads = DaemonThreads(2, "test")
    assert threads.submit(divmod, 7, 2).result(PATIENCE_S) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(PATIENCE_S)
    assert threads.close(PATIENCE_S)
    with pytest.raises(RuntimeError):
        threads.submit(divmod, 7, 2)


async def test_a_loop_waits_for_what_a_thread_does() -> None:
    threads = DaemonThreads(1, "test")
    assert await threads.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert threads.close(PATIENCE_S)


def test_threads_are_used_again_and_never_more_than_allowed() -> None:
    threads = DaemonThreads(2, "test")
    names = {threads.submit(threading.get_ident).result(PATIENCE_S) for _ in range(20)}
    assert len(names) <= 2
    both = threading.Barrier(3)
    waiting = [threads.submit(both.wait, PATIENCE_S) for _ in range(2)]
    queued = threads.submit(threading.get_ident)
    assert not queued.done()
    both.wait(PATIENCE_S)
    assert queued.result(PATIENCE_S) and all(one.result(PATIENCE_S) is not None for one in waiting)
    assert len(threads._threads) == 2
    assert threads.close(PATIENCE_S)


def test_what_waits_can_be_cancelled() -> None:
    threads = DaemonThreads(1, "test")
    gate = threading.Event()
    first, second = threads.submit(gate.wait, PATIENCE_S), threads.submit(gate.wait, PATIENCE_S)
    assert second.cancel()
    gate.set()
    assert first.result(PATIENCE_S) and threads.close(PATIENCE_S)


def test_a_call_that_hangs_is_not_waited_for_by_close_or_by_the_interpreter() -> None:
    program = (
        "import threading\n"
        "from quire.runtime.threads import Breather, DaemonThreads\n"
        "threads, begun = DaemonThreads(1, 'test'), threading.Event()\n"
        "threads.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "begun.wait()\n"
        "print(threads.close(0.01))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_who_computes_for_long_rests_most_of_the_time() -> None:
    breathe = Breather()
    began_s, computed_s = time.monotonic(), time.thread_time()
    while time.thread_time() < computed_s + 0.05:
        breathe()
    assert time.monotonic() - began_s > 2 * 0.05
