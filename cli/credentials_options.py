"""`--token-file` and its like: what a command presents to be let in.

No flag takes a token itself: command lines are seen by everybody on the machine. The environment does, `QUIRE_TOKEN`. A
flag beats the environment, whole: who gives a user does not mean the token of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

import click

from quire.cli import profile
from quire.runtime.credentials import NOBODY, OPTIONS, Credentials, given_or_of_environment

_OPTIONS: Final = {
    "token_file": (
        "--token-file",
        "FILE",
        "File with the token to present; or QUIRE_TOKEN has the token itself",
    ),
    "user": ("--user", "NAME", "User to log in as, with --password-file"),
    "password_file": ("--password-file", "FILE", "File with the password of --user"),
}


def credentials_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: the command gets them together as `credentials`."""

    @wraps(command)
    def run(*arguments: Any, **words: Any) -> Any:
        given = {name: words.pop(f"present_{name}") or "" for name in _OPTIONS}
        return command(*arguments, credentials=_presented(given, words), **words)

    made: Callable[..., Any] = run
    for name, (flag, metavar, prose) in reversed(_OPTIONS.items()):
        made = click.option(
            flag, f"present_{name}", metavar=metavar, help=f"{prose} (environment: QUIRE_{name.upper()})."
        )(made)
    return made


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
