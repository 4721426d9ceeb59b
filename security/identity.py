"""Identity of a client: a role, its proof, and its expiry.

An identity ends when it expires, or when its proof is removed. A proof is, for example, a line of the password file, or
a key. Its name, `Identity.proof`, is checked every few seconds while a connection lasts.

A role is a name to which an administrator grants permissions. It is client input (a claim of a token, the user of a
password, the subject of a certificate), so it is checked in `role_of`: characters that could break a line of a
log or a path of the REST interface are refused.

A proxy acts for other roles. Then `original` is the role that the proxy has authenticated, and both must have the
permission (`Identity.roles`). `authorization` checks that it is a proxy.
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
    """Return whether a text is a valid role: 1 to 256 characters, without slashes and control characters."""
    return isinstance(text, str) and bool(_ROLE.fullmatch(text)) and text.strip() == text


def role_of(value: object, source: str, prefix: str = "") -> str:
    """Return the role in `value`, with its provider's prefix; `source` (a claim, a header) names it in errors.

    Raises `NotAuthenticated`.
    """
    role = prefix + value if is_role(value) and isinstance(value, str) else ""
    if not is_role(role):
        raise NotAuthenticated(
            f"{source} is not a role: 1 to {ROLE_CHARS_MAX} characters, without / and control characters"
        )
    return role


@dataclass(frozen=True)
class Presented:
    """Credentials that a client presented, and facts about its connection."""

    method: str
    data: bytes = field(default=b"", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    """Certificate of the connection in DER, which TLS has verified."""
    address: str = ""
    """Address of the client, `/host:port`."""
    by: str = "CONNECT"
    """Name of the action in the audit log."""
    request: str = ""
    """Id of an HTTP request, from the client or generated."""


class Identity(msgspec.Struct, frozen=True):
    """Identity of a client. `expires_ms` is in ms since 1970; None: it does not expire."""

    role: str
    method: str
    expires_ms: int | None = None
    original: str = ""
    """Role that a proxy with this identity acts for; empty: it acts for itself."""
    proof: str = ""
    """Opaque name of the provider's entry or key that authenticated it; empty: it can only expire."""
    prefix: str = ""
    """Prefix that the provider adds to its roles."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that must all be allowed an action."""
        return (self.role, self.original) if self.original else (self.role,)

    def __str__(self) -> str:
        return f"{self.original} through {self.role}" if self.original else self.role
