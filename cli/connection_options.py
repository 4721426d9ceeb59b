"""Options for TLS and credentials of commands that connect to a broker: `--tls-trust-certs`, `--token-file` etc.

No option takes the token itself, because all users of the machine can see command lines; `QUIRE_TOKEN` does. An
option overrides the environment for all credentials: with `--user`, a token in the environment is ignored. `--context`
chooses a context of `quire login`, which has defaults for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

import click

from quire.cli import profile
from quire.cli.variables import refuse_unknown_variables
from quire.runtime.credentials import NOBODY, OPTIONS, Credentials, given_or_of_environment
from quire.runtime.tls import ClientTls

_Command = TypeVar("_Command", bound=Callable[..., Any])

_TLS: Final = {
    "authority": (
        "--tls-trust-certs",
        "PEM file of trusted certificate authorities; by default those of the system.",
    ),
    "certificate": ("--tls-certificate", "PEM file of the client certificate."),
    "key": ("--tls-key", "PEM file of the key of --tls-certificate."),
}

_CREDENTIALS: Final = {
    "token_file": (
        "--token-file",
        "FILE",
        "File with the token to log in with; QUIRE_TOKEN may contain the token itself",
    ),
    "user": ("--user", "NAME", "User to log in as, with --password-file"),
    "password_file": ("--password-file", "FILE", "File with the password of --user"),
}


def connection_options(command: _Command) -> Callable[..., Any]:
    """Add `--context`, and the options of `login_options`, to a command."""
    return profile.context_option(login_options(command))


def login_options(command: _Command) -> Callable[..., Any]:
    """Add options for TLS and credentials to a command, which gets `tls`, a `ClientTls`, and `credentials`."""

    @wraps(command)
    def run(*arguments: Any, **words: Any) -> Any:
        refuse_unknown_variables()
        tls, credentials = take_connection(words)
        return command(*arguments, tls=tls, credentials=credentials, **words)

    made: Callable[..., Any] = run
    for name, (flag, prose) in reversed(_TLS.items()):
        made = _tls_option(name, flag, prose)(made)
    for name, (flag, metavar, prose) in reversed(_CREDENTIALS.items()):
        made = click.option(
            flag, f"present_{name}", metavar=metavar, help=f"{prose} (environment: QUIRE_{name.upper()})."
        )(made)
    return made


def take_connection(words: dict[str, Any]) -> tuple[ClientTls, Credentials]:
    """Remove the values of the options from a command's parameters, and return what they mean."""
    files = {name: words.pop(f"tls_{name}", None) or "" for name in _TLS}
    given = {name: words.pop(f"present_{name}", None) or "" for name in _CREDENTIALS}
    return _tls(files, words), _presented(given, words)


def _tls(given: Mapping[str, str], words: Mapping[str, Any]) -> ClientTls:
    """Return the files of the options, else of the environment or the context.

    A client certificate of a context is presented only to the context's addresses. With `--context`, the one of the
    environment is not presented to them.
    """
    own, known = _is_own(words), profile.load()
    found = {}
    for name, (flag, _) in _TLS.items():
        of_context = known.get(_key(flag), "") if own or name == "authority" else ""
        of_environment = os.environ.get(_variable(flag), "")
        if profile.is_named() and own:
            other = of_context or (of_environment if name == "authority" else "")
        else:
            other = of_environment or of_context
        found[name] = given[name] or other
    return ClientTls(**found)


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _variable(flag: str) -> str:
    return f"QUIRE_{_key(flag).upper()}"


def _tls_option(name: str, flag: str, prose: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(flag, f"tls_{name}", metavar="FILE", help=f"{prose} (environment: {_variable(flag)})")


def _presented(given: Mapping[str, str], words: Mapping[str, Any]) -> Credentials:
    """Return the credentials of the options, else of the environment, else of a context for these brokers.

    A context that `--context` names comes before the environment.
    """
    mine = _of_context(words)
    if profile.is_named() and _is_own(words) and not any(given.values()):
        return mine
    found = given_or_of_environment(given)
    return mine if found == NOBODY else found


def _is_own(words: Mapping[str, Any]) -> bool:
    """Return whether the command's addresses are those of the context."""
    known = profile.load()
    asked = {words[name] for name in profile.URLS if words.get(name)}
    return asked <= {known.get(name) for name in profile.URLS}


def _of_context(words: Mapping[str, Any]) -> Credentials:
    """Return the credentials of the context, if the command's addresses are its own."""
    if not _is_own(words):
        return NOBODY
    known = profile.load()
    return Credentials(**{name: known[name] for name in OPTIONS if name in known})
