"""`quire gateway`: runs a proxy with one public address for a cluster's brokers until SIGTERM or SIGINT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quire.cli.settings import settings_options
from quire.process import gateway
from quire.process.settings import Given
from quire.process.until_signal import ready, run_process


@click.command("gateway")
@settings_options(*gateway.KINDS)
def command(config: Path | None, **flags: Any) -> None:
    """Run a proxy for clients that cannot reach brokers by name.

    It uses Pulsar's proxy protocol, so stock clients need only its URL, and forwards requests of the REST
    interface. It is stateless: run any number of gateways.

    \b
    Example:
      quire gateway --metadata zk://zookeeper:2181/quire --listen 0.0.0.0:6650 --http 0.0.0.0:8080
    """
    settings = Given(flags, config).load_all(gateway.KINDS)
    run_process(settings, gateway.gateway(settings), lambda urls: ready(*urls))
