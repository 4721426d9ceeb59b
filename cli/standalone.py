"""`quire standalone`: runs broker, bookie, metadata and archive in one process until SIGTERM or SIGINT.

When ready, it prints one line for programs to standard output, which begins with `ready` and contains the addresses.
The output on standard error is for people.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from quire.cli.settings import settings_options
from quire.process import standalone
from quire.process.settings import Given
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
    run_process(settings, standalone.standalone(settings), _serve)


async def _serve(running: standalone.Standalone) -> None:
    _announce(running)
    await running.http
    await until_cancelled()


def _announce(running: standalone.Standalone) -> None:
    """Print the ready line with the addresses on standard output, and the first steps on standard error."""
    say_ready(*running.addresses.all)
    url = running.service_url or running.addresses.service_url_tls
    host = urlsplit(url).hostname
    if host in ("0.0.0.0", "::"):
        log.warning(
            "clients get the address %s, which other machines cannot reach: name this one with --advertise",
            url,
        )
    quire = sys.argv[0] if "/" in sys.argv[0] else "quire"
    where = "" if running.service_url.endswith(":6650") else f" --service-url {url}"
    click.echo(
        "\nPublish a first message, from another terminal:\n"
        f"    echo 'Hello, Quire' | {quire} produce hello{where}\n"
        "and read it:\n"
        f"    {quire} consume hello --subscription first --from earliest --count 1{where}\n",
        err=True,
    )
