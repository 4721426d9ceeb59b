"""Runner of processes: start, print `ready` on standard output, and stop cleanly on SIGTERM or SIGINT.

A start may take long (it waits for the metadata store, or for the end of a previous session), so a signal cancels it as
well. A second signal is ignored, so that it does not interrupt the clean stop.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import NoReturn, TypeVar

import click
import uvloop

from quire.process.settings import LoadedSettings, LogSettings
from quire.runtime import log

R = TypeVar("R")


def run_process(
    settings: LoadedSettings, process: AbstractAsyncContextManager[R], until: Callable[[R], Awaitable[None]]
) -> None:
    """Configure the log, and run a process until a signal arrives or `until` returns.

    `until` is called when the process serves.
    """

    async def serve() -> None:
        async with process as running:
            await until(running)

    wanted = settings[LogSettings]
    log.configure(wanted.log_level, as_json=wanted.log_json, slow_ms=wanted.log_slow_ms)
    run_until_signal(serve())


def run_until_signal(serving: Coroutine[None, None, None]) -> None:
    """Run `serving` to its end, or cancel it at the first SIGTERM or SIGINT and let it clean up.

    SIGUSR1 writes the stacks of all threads to standard error, even if the event loop is stalled.
    """
    if sys.__stderr__ is not None:
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__)
    uvloop.run(_until_signal(serving))


async def _until_signal(serving: Coroutine[None, None, None]) -> None:
    task = asyncio.ensure_future(serving)

    def stop() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        pass


async def ready(*urls: str) -> NoReturn:
    """Print the line `ready` with the URLs, and wait to be cancelled."""
    say_ready(*urls)
    await until_cancelled()


def say_ready(*urls: str) -> None:
    """Print the line `ready` with the URLs, and notify systemd if it started this process (sd_notify)."""
    click.echo(" ".join(("ready", *filter(None, urls))))
    sys.stdout.flush()
    if address := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.sendto(b"READY=1", address.replace("@", "\0", 1) if address[0] == "@" else address)


async def until_cancelled() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the event is never set")


async def told_to_stop() -> None:
    """Wait for SIGTERM. From this call on, SIGTERM no longer cancels the process; SIGINT still does."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
