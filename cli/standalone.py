"""`quire standalone`: runs broker, bookie, metadata and archive in one process until SIGTERM or SIGINT.

When ready, it prints one line for programs to standard output, which begins with `ready` and contains the addresses.
The output on standard error is for people.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from quire.cli.first_steps import EVERYWHERE, commands, console_url
from quire.cli.settings import settings_options
from quire.process import standalone
from quire.process.settings import Given, LoadedSettings, LogSettings
from quire.process.until_signal import run_process, say_ready, until_cancelled

log = logging.getLogger(__name__)


@click.command("standalone")
@settings_options(*standalone.KINDS, defaults=standalone.DEFAULTS)
def command(config: Path | None, **flags: Any) -> None:
    """Run a broker, a bookie, the metadata store and the archive in one process.

    Messages are acknowledged when they are on disk. Stop with Ctrl-C or SIGTERM; killing it loses nothing either.

    \b
    Examples:
      quire standalone
      quire standalone --data /var/lib/quire --listen 0.0.0.0:6650 --http 0.0.0.0:8080 \\
                       --advertise pulsar://this.host:6650
      quire standalone --archive 's3://bucket/prefix?endpoint=http://127.0.0.1:9000'
    """
    settings = standalone.load(Given(flags, config))
    run_process(settings, standalone.standalone(settings), partial(_serve, settings))


async def _serve(settings: LoadedSettings, running: standalone.Standalone) -> None:
    addresses = running.addresses
    say_ready(*addresses.all)
    _warn_of_unreachable(addresses.service_url or addresses.service_url_tls)
    publish, read = commands(addresses, running.process.security_file)
    if settings[LogSettings].log_json:  # standard error is a stream of JSON
        log.info("the console is at %s; publish a message: %s", console_url(addresses), publish)
    else:
        click.echo(
            f"\nPublish a first message, from another terminal:\n    {publish}\nand read it:\n    {read}\n"
            f"The console in a browser: {console_url(addresses)}\n",
            err=True,
        )
    await running.http
    await until_cancelled()


def _warn_of_unreachable(url: str) -> None:
    if urlsplit(url).hostname in EVERYWHERE:
        log.warning(
            "clients get the address %s, which other machines cannot reach: name this one with --advertise",
            url,
        )
