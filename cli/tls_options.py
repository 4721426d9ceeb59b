"""`--tls-trust-certs` and its like: what a command trusts, and shows, where it calls a broker by TLS."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import click

from quire.cli import profile
from quire.runtime.tls import ClientTls

_OPTIONS: Final = {
    "authority": ("--tls-trust-certs", "Authorities to trust, PEM; without it those of the system."),
    "certificate": ("--tls-certificate", "Certificate to show, PEM."),
    "key": ("--tls-key", "The key of --tls-certificate, PEM."),
}


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: the command gets them together as `tls`, a `ClientTls`."""

    @wraps(command)
    def run(*arguments: Any, **words: Any) -> Any:
        files = {name: words.pop(f"tls_{name}") or "" for name in _OPTIONS}
        return command(*arguments, tls=ClientTls(**files), **words)

    made: Callable[..., Any] = run
    for name, (flag, prose) in reversed(_OPTIONS.items()):
        made = _option(name, flag, prose)(made)
    return made


def _option(name: str, flag: str, prose: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    variable = f"QUIRE_{flag.removeprefix('--').replace('-', '_').upper()}"
    return click.option(
        flag,
        f"tls_{name}",
        default=lambda: os.environ.get(variable) or profile.load().get(flag[2:].replace("-", "_")),
        show_default=False,
        metavar="FILE",
        help=f"{prose} (environment: {variable})",
    )
