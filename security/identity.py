"""Who somebody is: a role, how it was proven, and until when that holds.

Two things end it: the time, and whoever takes away what proved it, such as a line of the password file or a key. The
latter has a name, `Identity.proof`, and is looked for every few seconds while a connection lasts.

A role is a name that an administrator grants permissions to. It comes from outside (a claim of a token, the user of a
password, the subject of a certificate), so it is checked here once (`role_of`): what could break a line of a log or a
path of the REST interface is no role.

A proxy speaks for others. Then `original` is the role that the proxy has seen proven, and both must be allowed what is
asked (`Identity.roles`). That it may speak for others is checked where its credentials are (`authorization`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import msgspec

from quire.runtime.errors import NotAuthenticated

ROLE_CHARS_MAX: Final = 256
_ROLE: Final = re.compile(r"[^/\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,256}")


def is_role(text: object) -> bool:
    """Whether it can be the name of a role: 1 to 256 characters, without slashes and control characters."""
    return isinstance(text, str) and bool(_ROLE.fullmatch(text)) and text.strip() == text


def role_of(value: object, source: str, prefix: str = "") -> str:
    """The role that `source` (a claim, a header, a certificate) names, after what its provider puts before each.

    Raises `NotAuthenticated`.
    """
    role = prefix + value if is_role(value) and isinstance(value, str) else ""
    if not is_role(role):
        raise NotAuthenticated(
            f"{source} is no role: 1 to {ROLE_CHARS_MAX} characters, without / and control characters"
        )
    return role


@dataclass(frozen=True)
class Presented:
    """What somebody shows to be let in, and over which connection."""

    method: str
    data: bytes = field(default=b"", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    """Of the connection, DER, as TLS has verified it."""
    address: str = ""
    """`/host:port`."""
    by: str = "CONNECT"
    """What the audit log calls it."""
    request: str = ""
    """What its client calls a request of HTTP."""


class Identity(msgspec.Struct, frozen=True):
    """`expires_ms` is by the calendar, in milliseconds since 1970; None: it does not expire."""

    role: str
    method: str
    expires_ms: int | None = None
    original: str = ""
    """For whom a proxy of this role speaks; empty: for itself."""
    proof: str = ""
    """Which line or key of its provider proved it, by a name that tells nothing of it; empty: only time ends it."""

    @property
    def roles(self) -> tuple[str, ...]:
        """All that must be allowed what is asked."""
        return (self.role, self.original) if self.original else (self.role,)

    def __str__(self) -> str:
        return f"{self.original} through {self.role}" if self.original else self.role
