"""What the commands share that are clients of a broker: how to reach it, and how they end.

The first Ctrl-C ends the work in hand and lets the command finish: what was published is waited for, what was printed
is acknowledged. The second ends it at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import click

from quire.cli import profile
from quire.cli.connection_options import connection_options
from quire.client import Client, ClientSettings
from quire.client.authentication import presenting
from quire.runtime.credentials import Credentials
from quire.runtime.errors import Unavailable
from quire.runtime.settings import load
from quire.runtime.tls import ClientTls

DEFAULT_URL: Final = "pulsar://127.0.0.1:6650"
INTERRUPTED: Final = 130
FIRST_CONTACT_S: Final = 2.0
"""How long the first connection is tried for: a broker that starts at the same moment is there by then."""

FIRST_CONTACT_STEP_S: Final = 0.2

T = TypeVar("T")
_Command = Callable[..., Any]

_OPTIONS: Final[tuple[Callable[[_Command], _Command], ...]] = (
    click.option(
        "--service-url",
        default=lambda: os.environ.get("QUIRE_SERVICE_URL") or profile.load().get("service_url", DEFAULT_URL),
        show_default=False,
        metavar="URL",
        help=f"Address of the brokers (environment: QUIRE_SERVICE_URL).  [{DEFAULT_URL}]",
    ),
    click.option(
        "--operation-timeout-ms",
        default="15s",  # longer than a broker tries by itself before it says why it cannot
        show_default=True,
        metavar="TIME",
        help="How long to look for the broker.",
    ),
)


def client_options(command: _Command) -> _Command:
    """`--service-url`, `--operation-timeout-ms` and those of TLS and credentials, as `open_client` takes them."""
    command = connection_options(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def open_client(
    service_url: str, operation_timeout_ms: str, tls: ClientTls, credentials: Credentials
) -> Client:
    """The client that the options describe. Raises `ConfigurationError`."""
    settings = load(ClientSettings, {"operation_timeout_ms": operation_timeout_ms}).values
    return Client(service_url, settings=settings, tls=tls, authentication=presenting(credentials, tls))


@asynccontextmanager
async def connected(client: Client) -> AsyncIterator[Client]:
    """The client, once a broker has answered it: a wrong address is told at once.

    A broker that goes away later is waited for, as long as each operation may take.
    """
    async with client:
        await _first_contact(client)
        yield client


async def _first_contact(client: Client) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + FIRST_CONTACT_S
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                await client.connect()
            return
        except TimeoutError:
            raise Unavailable(f"no broker answers at {client.service_url}") from None
        except Unavailable:
            if loop.time() + FIRST_CONTACT_STEP_S > deadline:
                raise
        await asyncio.sleep(FIRST_CONTACT_STEP_S)


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
