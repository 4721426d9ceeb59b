"""`quire standalone`: everything in one process, until SIGTERM or SIGINT.

The one line on standard output that programs may rely on begins with `ready` and names the addresses; what follows
is for people.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from quire.cli.assemble import (
    STANDALONE_DEFAULTS,
    STANDALONE_KINDS,
    Standalone,
    StandaloneConfiguration,
    load_standalone,
    standalone,
)
from quire.cli.settings import Given, settings_options, start_log
from quire.cli.until_signal import run_until_signal, say_ready, until_cancelled

log = logging.getLogger(__name__)


@click.command("standalone")
@settings_options(*STANDALONE_KINDS, defaults=STANDALONE_DEFAULTS)
def command(config: Path | None, **flags: Any) -> None:
    """Run everything in one process: broker, bookie, metadata, archive.

    Messages are acknowledged when they are on disk. Stop with Ctrl-C or SIGTERM; killing it loses nothing either.

    \b
    Examples:
      quire standalone
      quire standalone --data /var/lib/quire --listen 0.0.0.0:6650 --http 0.0.0.0:8080 \\
                       --advertise pulsar://this.host:6650
      quire standalone --archive 's3://bucket/prefix?endpoint=http://127.0.0.1:9000'
    """
    configuration = load_standalone(Given(flags, config))
    start_log(configuration.process.values)
    run_until_signal(_serve(configuration))


async def _serve(configuration: StandaloneConfiguration) -> None:
    async with standalone(configuration) as running:
        _announce(running)
        await running.http
        await until_cancelled()


def _announce(running: Standalone) -> None:
    """Say on standard output that it is ready and where, and on standard error what to do first."""
    say_ready(*running.addresses.all)
    url = running.service_url or running.addresses.service_url_tls
    host = urlsplit(url).hostname
    if host in ("0.0.0.0", "::"):
        log.warning(
            "clients are told %s, which leads nowhere from other machines: name this one with --advertise",
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
