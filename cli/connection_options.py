"""`--tls-trust-certs`, `--token-file` and their like: how a command is secured where it calls a broker.

No flag takes a token itself: command lines are seen by everybody on the machine. The environment does, `QUIRE_TOKEN`. A
flag beats the environment; of what is presented whole: who gives a user does not mean the token of the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

import click

from quire.cli import profile
from quire.runtime.credentials import NOBODY, OPTIONS, Credentials, given_or_of_environment
from quire.runtime.tls import ClientTls

_Command = TypeVar("_Command", bound=Callable[..., Any])

_TLS: Final = {
    "authority": ("--tls-trust-certs", "Authorities to trust, PEM; without it those of the system."),
    "certificate": ("--tls-certificate", "Certificate to show, PEM."),
    "key": ("--tls-key", "The key of --tls-certificate, PEM."),
}

_CREDENTIALS: Final = {
    "token_file": (
        "--token-file",
        "FILE",
        "File with the token to present; or QUIRE_TOKEN has the token itself",
    ),
    "user": ("--user", "NAME", "User to log in as, with --password-file"),
    "password_file": ("--password-file", "FILE", "File with the password of --user"),
}


def connection_options(command: _Command) -> Callable[..., Any]:
    """A decorator: the command gets them as `tls`, a `ClientTls`, and `credentials`."""

    @wraps(command)
    def run(*arguments: Any, **words: Any) -> Any:
        files = {name: words.pop(f"tls_{name}") or "" for name in _TLS}
        given = {name: words.pop(f"present_{name}") or "" for name in _CREDENTIALS}
        presented = _presented(given, words)
        return command(*arguments, tls=ClientTls(**files), credentials=presented, **words)

    made: Callable[..., Any] = run
    for name, (flag, prose) in reversed(_TLS.items()):
        made = _tls_option(name, flag, prose)(made)
    for name, (flag, metavar, prose) in reversed(_CREDENTIALS.items()):
        made = click.option(
            flag, f"present_{name}", metavar=metavar, help=f"{prose} (environment: QUIRE_{name.upper()})."
        )(made)
    return made


def _tls_option(name: str, flag: str, prose: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    variable = f"QUIRE_{flag.removeprefix('--').replace('-', '_').upper()}"
    return click.option(
        flag,
        f"tls_{name}",
        default=lambda: os.environ.get(variable) or profile.load().get(flag[2:].replace("-", "_")),
        show_default=False,
        metavar="FILE",
        help=f"{prose} (environment: {variable})",
    )


def _presented(given: Mapping[str, str], words: Mapping[str, Any]) -> Credentials:
    """Those that are given, else of the environment, else of the profile, if that is of the same brokers."""
    found = given_or_of_environment(given)
    if found != NOBODY:
        return found
    known = profile.load()
    asked = {words[name] for name in profile.URLS if words.get(name)}
    if not asked <= {known.get(name) for name in profile.URLS}:
        return NOBODY
    return Credentials(**{name: known[name] for name in OPTIONS if name in known})
