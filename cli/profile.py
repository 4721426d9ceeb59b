"""Contexts of `quire login`: each has the brokers' addresses, and the files with credentials; none contains a secret.

    ~/.config/quire/profile.toml (or in XDG_CONFIG_HOME)

    admin_url = "http://127.0.0.1:8080"     # the context `default`; older versions had no other
    current = "prod"                        # the context of commands that name none; without it, `default`

    [contexts."prod"]
    admin_url = "https://quire.example:8443"

`--context` names a context, else QUIRE_CONTEXT, else `current`. A flag overrides a context that `--context` names,
which overrides the environment, which overrides any other context. A context's credentials are sent only to its own
addresses, not to another broker that a user names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import click

from quire.runtime.errors import ConfigurationError, NotFound

URLS: Final = ("admin_url", "service_url")
FILES: Final = ("token_file", "password_file", "tls_trust_certs", "tls_certificate", "tls_key")
NAMES: Final = (*URLS, "user", *FILES)

DEFAULT: Final = "default"
VARIABLE: Final = "QUIRE_CONTEXT"
_NAMED: Final = "quire.context"
"""Key of the name that `--context` gave, in the click context's `meta`."""

_MAY_BE_NEW: Final = "quire.context.may_be_new"
_VALID: Final = re.compile(r"\w[\w.-]*", re.ASCII)


@dataclass
class Contexts:
    """The content of the file: settings by context, and the current context's name."""

    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    current: str = DEFAULT


def place() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "quire" / "profile.toml"


# -- the chosen context --------------------------------------------------------------------------------------


def complete(context: click.Context, _: click.Parameter, begin: str) -> list[str]:
    """Complete names of contexts for the shell."""
    try:
        return sorted(name for name in read().settings if name.startswith(begin))
    except ConfigurationError:
        return []


def _choose(context: click.Context, _: click.Parameter, name: str | None) -> None:
    if name:
        context.meta[_NAMED] = name


def _choose_maybe_new(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    context.meta[_MAY_BE_NEW] = True
    _choose(context, parameter, name)


context_option = click.option(
    "--context",
    "of_context",
    metavar="NAME",
    is_eager=True,  # the defaults of other options are the context's
    expose_value=False,
    callback=_choose,
    shell_complete=complete,
    help=f"Context of `quire login` to use (environment: {VARIABLE}).",
)
new_context_option = click.option(
    "--context",
    "of_context",
    metavar="NAME",
    is_eager=True,
    expose_value=False,
    callback=_choose_maybe_new,
    shell_complete=complete,
    help=f"Name to store the addresses under (environment: {VARIABLE}); by default {DEFAULT}.",
)


def _meta() -> Mapping[str, Any]:
    context = click.get_current_context(silent=True)
    return context.meta if context is not None else {}


def is_named() -> bool:
    """Return whether `--context` was given, which then overrides the environment."""
    return _NAMED in _meta()


def chosen() -> str:
    """Return the name of the context of this command. Raises `ConfigurationError` if the file is malformed.

    A login without a name is for the context `default`, whichever is current, so that it overwrites no other.
    """
    named = _meta().get(_NAMED) or os.environ.get(VARIABLE)
    return named or (DEFAULT if _MAY_BE_NEW in _meta() else read().current)


def load() -> Mapping[str, str]:
    """Return the settings of this command's context; the context `default` is empty before a login.

    Raises `ConfigurationError` if the context does not exist, unless this command may create it, and if the file is
    malformed.
    """
    name, known = chosen(), read().settings
    if name not in known and name != DEFAULT and _MAY_BE_NEW not in _meta():
        raise ConfigurationError(no_context(name, known))
    return known.get(name, {})


def default(variable: str, name: str) -> str | None:
    """Return the value of an option that was not given, from the environment variable or the context."""
    found, of_environment = load().get(name), os.environ.get(variable)
    return found or of_environment if is_named() else of_environment or found


def no_context(name: str, known: Mapping[str, object]) -> str:
    """Return the error text for a context that does not exist, with the nearest name."""
    close = get_close_matches(name, [*known, DEFAULT], n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`quire contexts list` prints their names"
    return f"there is no context {name!r}: {hint}"


# -- the file ------------------------------------------------------------------------------------------------


def read() -> Contexts:
    """Read the file; there are no contexts before a login. Raises `ConfigurationError` if it is malformed."""
    file = place()
    try:
        text = file.read_text()
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, error) from None
    import tomllib  # its patterns take time to compile, and most users have no profile

    try:
        found: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(file, error) from None
    current, others = found.pop("current", DEFAULT), found.pop("contexts", {})
    every = {DEFAULT: found, **others} if isinstance(others, dict) else {DEFAULT: None}
    if not isinstance(current, str) or not all(map(_are_settings, every.values())):
        raise ConfigurationError(
            f"{file} is not a profile of this version; delete it and run `quire login` again"
        )
    return Contexts({name: one for name, one in every.items() if one}, current)


def _unreadable(file: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"cannot read {file}; delete it and run `quire login` again: {error}")


def _are_settings(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() <= set(NAMES)
        and all(isinstance(one, str) for one in value.values())
    )


def save(settings: Mapping[str, str]) -> None:
    """Store the settings as this command's context. Raises `ConfigurationError`."""
    contexts, name = read(), chosen()
    if not _VALID.fullmatch(name):
        raise ConfigurationError(f"{name!r} is not a name of a context: use letters, digits, . - and _")
    contexts.settings[name] = {key: value for key, value in settings.items() if value}
    _write(contexts)


def use(name: str) -> None:
    """Make a context the current one. Raises `ConfigurationError` if it does not exist."""
    contexts = read()
    if name not in contexts.settings and name != DEFAULT:
        raise ConfigurationError(no_context(name, contexts.settings))
    contexts.current = name
    _write(contexts)


def remove(name: str) -> bool:
    """Delete a context, and return whether it was the current one. Raises `NotFound`."""
    contexts = read()
    if contexts.settings.pop(name, None) is None:
        raise NotFound(no_context(name, contexts.settings))
    was_current = contexts.current == name
    if was_current:
        contexts.current = DEFAULT
    _write(contexts)
    return was_current


def forget() -> bool:
    """Delete this command's context; return whether it existed.

    Raises `ConfigurationError` if a context other than `default` does not exist.
    """
    name = chosen()
    try:
        remove(name)
    except NotFound as error:
        if name != DEFAULT:
            raise ConfigurationError(str(error)) from None
        return False
    return True


def _write(contexts: Contexts) -> None:
    """Write the file, or delete it if no context is left. Raises `ConfigurationError`."""
    file, others = place(), dict(contexts.settings)
    lines = _lines(others.pop(DEFAULT, {}))
    if contexts.current != DEFAULT:
        lines.append(f"current = {json.dumps(contexts.current)}\n")
    for name, settings in others.items():
        lines += [f"\n[contexts.{json.dumps(name)}]\n", *_lines(settings)]
    try:
        if not lines:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = file.with_suffix(".new")
        beside.write_text("".join(lines))
        beside.chmod(0o600)
        beside.replace(file)
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None


def _lines(settings: Mapping[str, str]) -> list[str]:
    return [f"{name} = {_quoted(value)}\n" for name, value in settings.items()]


def _quoted(text: str) -> str:
    """Return a TOML string, which has JSON's escapes except those of surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
