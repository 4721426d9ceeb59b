"""Who the client says it is. The data is asked for at every connection and challenge, so a token may be renewed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quire.runtime.credentials import Credentials
from quire.runtime.tls import ClientTls


@dataclass(frozen=True)
class Authentication:
    """A method's name, as brokers know it, and where its data comes from."""

    method: str = "none"
    data: Callable[[], bytes] = field(default=bytes, repr=False)


def token(text: str | Callable[[], str]) -> Authentication:
    """A JSON web token, or what gives the current one."""
    provide = text if callable(text) else lambda: text
    return Authentication("token", lambda: provide().encode())


def presenting(credentials: Credentials, tls: ClientTls | None = None) -> Authentication:
    """What `credentials` say; without any, the certificate that is shown by `tls`. Raises `ConfigurationError`."""
    method = credentials.method
    if method == "none" and tls is not None and tls.certificate:
        method = "tls"
    return Authentication(method, credentials.data)


def basic(user: str, password: str) -> Authentication:
    return Authentication("basic", lambda: f"{user}:{password}".encode())
