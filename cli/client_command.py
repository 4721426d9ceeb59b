"""What the commands share that are clients of a broker: how to reach it, and how they end.

The first Ctrl-C ends the work in hand and lets the command finish: what was published is waited for, what was printed
is acknowledged. The second ends it at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from quire.client import Client, ClientSettings
from quire.client import token as token_authentication
from quire.runtime.settings import load

DEFAULT_URL: Final = "pulsar://127.0.0.1:6650"
INTERRUPTED: Final = 130

T = TypeVar("T")
_Command = Callable[..., Any]

_OPTIONS: Final[tuple[Callable[[_Command], _Command], ...]] = (
    click.option(
        "--service-url",
        default=lambda: os.environ.get("QUIRE_SERVICE_URL", DEFAULT_URL),
        show_default=False,
        metavar="URL",
        help=f"Address of the brokers (environment: QUIRE_SERVICE_URL).  [{DEFAULT_URL}]",
    ),
    click.option("--token", envvar="QUIRE_TOKEN", help="JSON web token (environment: QUIRE_TOKEN)."),
    click.option(
        "--operation-timeout-ms",
        default="15s",  # longer than a broker tries by itself before it says why it cannot
        show_default=True,
        metavar="TIME",
        help="How long to look for the broker.",
    ),
)


def client_options(command: _Command) -> _Command:
    """`--service-url`, `--token` and `--operation-timeout-ms`, as `open_client` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def open_client(service_url: str, token: str | None, operation_timeout_ms: str) -> Client:
    """The client that the options describe. Raises `ConfigurationError`."""
    settings = load(ClientSettings, {"operation_timeout_ms": operation_timeout_ms}).values
    authentication = token_authentication(token) if token else None
    return Client(service_url, authentication=authentication, settings=settings)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work on the event loop of production."""
    import uvloop

    outcome: T = uvloop.run(work)
    return outcome


@contextmanager
def until_interrupted(task: asyncio.Task[Any]) -> Iterator[None]:
    """Within, the first Ctrl-C (or SIGTERM) cancels `task` instead of the whole command."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
