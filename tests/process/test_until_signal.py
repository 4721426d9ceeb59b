"""A process ends cleanly at the first signal, whether it was ready or still starting; a second one changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from quire.process.until_signal import ready, run_until_signal, say_ready


def tell(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


async def stop_cleanly(steps: list[str]) -> None:
    """A stop that meets another signal and goes on once the loop has handled that."""
    handled = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handled.set)
    tell(signal.SIGINT)
    tell(signal.SIGUSR1)
    await handled.wait()
    await asyncio.sleep(0)
    steps.append("stopped")


def test_ready_is_one_line_and_the_second_signal_does_not_cut_the_stop_short(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps: list[str] = []

    async def serving() -> None:
        try:
            tell(signal.SIGTERM)
            await ready("pulsar://a:1", "")
        finally:
            await stop_cleanly(steps)

    run_until_signal(serving())
    assert capsys.readouterr().out == "ready pulsar://a:1\n"
    assert steps == ["stopped"]


@pytest.mark.parametrize("name", ["{folder}/notify", "@quire-test-{pid}"])
def test_systemd_is_told_when_it_waits_for_that(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = name.format(folder=tmp_path, pid=os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address.replace("@", "\0"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        say_ready("pulsar://a:1")
        assert systemd.recv(100) == b"READY=1"


def test_a_start_that_waits_ends_with_the_signal() -> None:
    steps: list[str] = []

    async def serving() -> None:
        try:
            tell(signal.SIGINT)
            await asyncio.Event().wait()
            steps.append("started")
        finally:
            await stop_cleanly(steps)

    run_until_signal(serving())
    assert steps == ["stopped"]


def test_what_fails_is_told() -> None:
    async def serving() -> None:
        raise ValueError("no such place")

    with pytest.raises(ValueError, match="no such place"):
        run_until_signal(serving())
