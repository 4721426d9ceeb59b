"""Options of a server command: a flag for each setting, and `--config` for a file; see `quire.runtime.settings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from quire.cli.variables import refuse_unknown_variables, register
from quire.runtime import settings


def settings_options(
    *kinds: type, defaults: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `--config` and a flag for each setting of `kinds` to a click command.

    The command gets their values as keyword arguments; a flag that was not given is None. `defaults` are defaults of
    the process, which `--help` shows instead of the defaults of `kinds`. Before the command runs, unknown variables
    `QUIRE_…` are refused.
    """
    register(kinds)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(*arguments: Any, **words: Any) -> Any:
            refuse_unknown_variables(kinds)
            return function(*arguments, **words)

        made: Callable[..., Any] = command
        for kind in reversed(kinds):
            for spec in reversed(fields(kind)):
                shown = settings.show(spec, (defaults or {}).get(spec.name, spec.default))
                option = click.option(
                    f"--{spec.name.replace('_', '-')}",
                    spec.name,
                    default=None,
                    metavar=_metavar(spec.default, spec.metadata.get("unit", "")),
                    help=f"{spec.metadata['prose']} [{shown}]" if shown else spec.metadata["prose"],
                )
                made = option(made)
        config = click.option(
            "--config", type=click.Path(path_type=Path, dir_okay=False), help="Configuration file in TOML."
        )
        return config(made)

    return decorate


def _metavar(default: Any, unit: str) -> str:
    if unit:
        return "SIZE" if unit == settings.BYTES else "TIME"
    if isinstance(default, bool):
        return "true|false"
    return "NUMBER" if isinstance(default, int) else "TEXT"
