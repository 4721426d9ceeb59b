"""Who the client says it is. The data is asked for at every connection and challenge, so a token may be renewed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Authentication:
    """A method's name, as brokers know it, and where its data comes from."""

    method: str = "none"
    data: Callable[[], bytes] = field(default=bytes, repr=False)


def token(text: str | Callable[[], str]) -> Authentication:
    """A JSON web token, or what gives the current one."""
    provide = text if callable(text) else lambda: text
    return Authentication("token", lambda: provide().encode())


def basic(user: str, password: str) -> Authentication:
    return Authentication("basic", lambda: f"{user}:{password}".encode())
