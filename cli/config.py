"""`quire config`: the effective settings of a process with their sources, and a sample file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from quire.cli.noun import json_option
from quire.cli.output import Answer, Table
from quire.cli.settings import settings_options
from quire.process import bookie, broker, gateway, standalone
from quire.process.settings import Given
from quire.runtime import settings

PROCESSES: Final[Mapping[str, tuple[tuple[type, ...], Mapping[str, Any]]]] = {
    "standalone": (standalone.KINDS, standalone.DEFAULTS),
    "broker": (broker.KINDS, broker.DEFAULTS),
    "bookie": (bookie.KINDS, {}),
    "gateway": (gateway.KINDS, {}),
}
"""Settings classes of each process, and the defaults that the process overrides."""


@click.group("config")
def command() -> None:
    """Show the effective settings and the source of each.

    A flag overrides the environment (QUIRE_NAME), which overrides the file of --config, which overrides the default.

    \b
    Examples:
      quire config show --config quire.toml
      quire config sample > quire.toml
    """


@command.command("show")
@settings_options(*standalone.KINDS, defaults=standalone.DEFAULTS)
@json_option
def show(config: Path | None, as_json: bool, **flags: Any) -> None:
    """Print the settings that `quire standalone` would start with here, and the source of each.

    The source is a flag, the environment, the file of --config or the default. A running server may have been started
    with other settings: `quire brokers config list --runtime` asks a broker for them.

    \b
    Examples:
      quire config show
      quire config show --config quire.toml
    """
    rows = [row for loaded in standalone.load(Given(flags, config)) for row in settings.shown(loaded)]
    values = {name: {"value": value, "source": source} for name, value, source in rows}
    notes = [
        "these are the settings that `quire standalone` would start with here, not those of a running server: "
        "`quire brokers config list --runtime` asks a broker for its settings"
    ]
    Answer(values, Table(("setting", "value", "from"), rows), notes=notes).say(as_json)


@command.command("sample")
@click.argument("process", type=click.Choice(list(PROCESSES)), default="standalone")
def sample(process: str) -> None:
    """Print a configuration file with all settings of `quire PROCESS`, commented out, with their defaults.

    \b
    Examples:
      quire config sample > quire.toml
      quire standalone --config quire.toml
      quire config sample bookie > /etc/quire/bookie.toml
    """
    click.echo(settings.sample_toml(*PROCESSES[process]))
