"""Redaction of secrets in settings, the security file and log lines, because they are attached to tickets.

Secrets are in parameters of the archive's URL, in known fields of the security file, and in headers. Files with secrets
are shown by path, and never read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

HIDDEN: Final = "…"

NAMES: Final = ("secret_key", "session_token", "token", "password", "public_key")
"""Fields and parameters that may contain the secret itself. A key's path is shown, but inline data are redacted."""

_PATTERNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"((?:secret_key|session_token|access_token|password|token)=)[^&\s'\"]+",
        r"((?:bearer|basic) )[A-Za-z0-9+/=._~-]{8,}",
        r"(://[^/\s:@]*:)[^/\s@]+(?=@)",
        r"()\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*",
        r"(data:[^,\s]*,)[^\s'\"]+",
    )
)


def without_secrets(text: str) -> str:
    """Replace secrets in `text` by `HIDDEN`: in URLs, headers and tokens."""
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def hidden(value: Any, name: str = "") -> Any:
    """Return JSON with redacted secrets; `name` is the field of `value`."""
    if isinstance(value, Mapping):
        return {key: hidden(one, str(key)) for key, one in value.items()}
    if isinstance(value, str):
        is_path = name in ("secret_key", "public_key") and not value.startswith("data:")
        return HIDDEN if value and name in NAMES and not is_path else without_secrets(value)
    if isinstance(value, Sequence):
        return [hidden(one, name) for one in value]
    return value
