"""How the processes of a cluster run: started, `ready` on standard output, stopped cleanly by SIGTERM or SIGINT.

A start may wait for long (for the metadata store, for a former session to end), so the signal ends it, too: by
cancelling it. Whoever asks twice is not faster: a second signal must not cut the clean stop short.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import NoReturn

import click
import uvloop


def run_until_signal(serving: Coroutine[None, None, None]) -> None:
    """Run `serving` to its end, or cancel it at the first SIGTERM or SIGINT and let it clean up.

    SIGUSR1 writes the stacks of all threads to standard error, also of a process whose loop stands.
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
    """Print the line that programs wait for, and wait to be cancelled."""
    say_ready(*urls)
    await until_cancelled()


def say_ready(*urls: str) -> None:
    """Print the line that programs wait for, and tell systemd, where it has started us and waits for that."""
    click.echo(" ".join(("ready", *filter(None, urls))))
    sys.stdout.flush()
    if address := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.sendto(b"READY=1", address.replace("@", "\0", 1) if address[0] == "@" else address)


async def until_cancelled() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody sets it")


async def told_to_stop() -> None:
    """Wait for SIGTERM, which from here on asks and does not cancel any more. SIGINT still does."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
