"""Common parts of client commands: connection options, and the handling of Ctrl-C.

The first Ctrl-C ends the work in progress and lets the command finish: it waits for receipts of published messages, and
acknowledges printed messages. The second Ctrl-C ends the command at once.
"""

from __future__ import annotations

import asyncio
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
"""Seconds for which the first connection is retried, in case the broker is just starting."""

FIRST_CONTACT_STEP_S: Final = 0.2

T = TypeVar("T")
_Command = Callable[..., Any]

_OPTIONS: Final[tuple[Callable[[_Command], _Command], ...]] = (
    click.option(
        "--service-url",
        default=lambda: profile.default("QUIRE_SERVICE_URL", "service_url") or DEFAULT_URL,
        show_default=False,
        metavar="URL",
        help=f"Address of the brokers (environment: QUIRE_SERVICE_URL).  [{DEFAULT_URL}]",
    ),
    click.option(
        "--operation-timeout-ms",
        default="15s",  # longer than a broker retries before it answers with an error
        show_default=True,
        metavar="TIME",
        help="Timeout of each operation.",
    ),
)


def client_options(command: _Command) -> _Command:
    """Add `--service-url`, `--operation-timeout-ms` and the options of TLS and credentials, for `open_client`."""
    command = connection_options(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def open_client(
    service_url: str, operation_timeout_ms: str, tls: ClientTls, credentials: Credentials
) -> Client:
    """Create the client for these options. Raises `ConfigurationError`."""
    settings = load(ClientSettings, {"operation_timeout_ms": operation_timeout_ms}).values
    return Client(service_url, settings=settings, tls=tls, authentication=presenting(credentials, tls))


@asynccontextmanager
async def connected(client: Client) -> AsyncIterator[Client]:
    """Enter the client after a broker has answered, so that a wrong address is reported at once.

    If the broker fails later, each operation waits for it up to the operation timeout.
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
            raise Unavailable(
                f"no broker answers at {client.service_url}; check that one is running there"
            ) from None
        except Unavailable:
            if loop.time() + FIRST_CONTACT_STEP_S > deadline:
                raise
        await asyncio.sleep(FIRST_CONTACT_STEP_S)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work on uvloop, the event loop that servers use."""
    import uvloop

    outcome: T = uvloop.run(work)
    return outcome


@contextmanager
def until_interrupted(task: asyncio.Task[Any]) -> Iterator[None]:
    """Let the first Ctrl-C (or SIGTERM) cancel `task` instead of the whole command."""
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
