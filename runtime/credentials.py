"""What a client presents to be let in: a token, or a user and a password; in REST and in the binary protocol.

Secrets are read from files whenever they are presented, so they may be renewed; they are in no text that is printed,
and no flag takes one, for the command lines of processes are seen by all of a machine.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quire.runtime.errors import ConfigurationError

SECRET_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True)
class Credentials:
    """Nothing, or one of the two; a token itself or its file."""

    token: str = field(default="", repr=False)
    token_file: str = ""
    user: str = ""
    password_file: str = ""

    @property
    def method(self) -> str:
        """As CONNECT names it. Raises `ConfigurationError` for what cannot be presented together."""
        has_token = bool(self.token or self.token_file)
        if has_token and self.user:
            raise ConfigurationError("present either a token or a user and a password")
        if bool(self.user) != bool(self.password_file):
            raise ConfigurationError("a user needs a password_file, and a password_file a user")
        return "token" if has_token else "basic" if self.user else "none"

    def data(self) -> bytes:
        """What CONNECT carries. Raises `ConfigurationError` when a file cannot be read."""
        match self.method:
            case "token":
                return self.token.encode() or _secret_in(self.token_file)
            case "basic":
                return self.user.encode() + b":" + _secret_in(self.password_file)
        return b""

    def headers(self) -> Mapping[str, str]:
        """What a request of REST carries. Raises as `data`."""
        match self.method:
            case "token":
                return {"Authorization": f"Bearer {self.data().decode(errors='replace')}"}
            case "basic":
                return {"Authorization": f"Basic {base64.b64encode(self.data()).decode()}"}
        return {}


NOBODY: Final = Credentials()
OPTIONS: Final = ("token_file", "user", "password_file")
"""What users are asked for by options and flags."""


def given_or_of_environment(given: Mapping[str, str]) -> Credentials:
    """Those of `OPTIONS` in `given`; when it has none of them, QUIRE_TOKEN or QUIRE_TOKEN_FILE and the like."""
    found = {name: given[name] for name in OPTIONS if given.get(name)}
    if not found:
        found = {name: os.environ.get(f"QUIRE_{name.upper()}", "") for name in ("token", *OPTIONS)}
    return Credentials(**found)


def _secret_in(path: str) -> bytes:
    """What is in a file, without the end of the line."""
    try:
        with open(path, "rb") as file:
            raw = file.read(SECRET_BYTES_MAX + 1).strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    if not raw or len(raw) > SECRET_BYTES_MAX or b"\n" in raw or b"\r" in raw:
        raise ConfigurationError(f"{path} must have one line, with the token or the password alone")
    return raw
