"""Credentials of a client. They are read again for each connection and challenge, so that a token may be renewed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quire.runtime.credentials import Credentials
from quire.runtime.tls import ClientTls


@dataclass(frozen=True)
class Authentication:
    """Authentication method by its protocol name, and the function that returns its data."""

    method: str = "none"
    data: Callable[[], bytes] = field(default=bytes, repr=False)


def token(text: str | Callable[[], str]) -> Authentication:
    """Authenticate with a JSON Web Token, given as text or as a function that returns the current one."""
    provide = text if callable(text) else lambda: text
    return Authentication("token", lambda: provide().encode())


def presenting(credentials: Credentials, tls: ClientTls | None = None) -> Authentication:
    """Return the authentication for `credentials`, or if there are none, for the client certificate of `tls`, if given.

    Raises `ConfigurationError`.
    """
    method = credentials.method
    if method == "none" and tls is not None and tls.certificate:
        method = "tls"
    return Authentication(method, credentials.data)


def basic(user: str, password: str) -> Authentication:
    return Authentication("basic", lambda: f"{user}:{password}".encode())
