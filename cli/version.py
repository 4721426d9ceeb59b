"""`quire version`: the version of this command."""

from __future__ import annotations

import platform

import click

from quire import __version__
from quire.cli.noun import json_option
from quire.cli.output import Answer


@click.command("version")
@json_option
def command(as_json: bool) -> None:
    """Print the version of this command, and that of Python. `quire brokers list` shows the brokers' versions.

    \b
    Example:
      quire version
    """
    python = platform.python_version()
    values = {"version": __version__, "python": python}
    Answer(values, f"quire {__version__} (Python {python})").say(as_json)
