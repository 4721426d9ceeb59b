"""`quire config`: the effective settings of a process and where each came from, and a sample file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from quire.cli import bookie, broker, gateway
from quire.cli.assemble import STANDALONE_DEFAULTS, STANDALONE_KINDS, load_standalone
from quire.cli.noun import json_option
from quire.cli.output import Answer, Table
from quire.cli.settings import Given, settings_options
from quire.runtime import settings

PROCESSES: Final[Mapping[str, tuple[tuple[type, ...], Mapping[str, Any]]]] = {
    "standalone": (STANDALONE_KINDS, STANDALONE_DEFAULTS),
    "broker": (broker.KINDS, broker.CLUSTER_DEFAULTS),
    "bookie": (bookie.KINDS, {}),
    "gateway": (gateway.KINDS, {}),
}
"""The settings of each, and where its defaults are its own."""


@click.group("config")
def command() -> None:
    """Show the effective settings and where each came from.

    A flag beats the environment (QUIRE_NAME), which beats the file of --config, which beats the default.

    \b
    Examples:
      quire config show --config quire.toml
      quire config sample > quire.toml
    """


@command.command("show")
@settings_options(*STANDALONE_KINDS, defaults=STANDALONE_DEFAULTS)
@json_option
def show(config: Path | None, as_json: bool, **flags: Any) -> None:
    """Print every setting of `quire standalone`, its value, and whether a flag, the environment or a file set it."""
    rows = [row for loaded in load_standalone(Given(flags, config)).all for row in settings.shown(loaded)]
    values = {name: {"value": value, "source": source} for name, value, source in rows}
    Answer(values, Table(("setting", "value", "from"), rows)).say(as_json)


@command.command("sample")
@click.argument("process", type=click.Choice(list(PROCESSES)), default="standalone")
def sample(process: str) -> None:
    """Print a configuration file with every setting of `quire PROCESS` at its default, commented out.

    \b
    Examples:
      quire config sample > quire.toml
      quire standalone --config quire.toml
      quire config sample bookie > /etc/quire/bookie.toml
    """
    click.echo(settings.sample_toml(*PROCESSES[process]))
