"""A broker where people log in: tokens of one secret, passwords, and roles with permissions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import bcrypt
from joserfc import jwt
from joserfc.jwk import OctKey

from quire.runtime.clock import SystemClock
from quire.security.configuration import (
    Audit,
    AuthenticationConfiguration,
    AuthorizationConfiguration,
    Basic,
    Configuration,
    Credentials,
    Token,
)
from quire.security.security import Security, make_security

SECRET = b"a secret of the tests, of more than 32 bytes"
PASSWORD = "correct horse battery staple"


def token(role: str, *, seconds: float | None = None, secret: bytes = SECRET, **claims: Any) -> str:
    """Signed for `role`; it expires `seconds` from now."""
    if seconds is not None:
        claims["exp"] = time.time() + seconds
    return jwt.encode({"alg": "HS256"}, {"sub": role, **claims}, OctKey.import_key(secret))


def audit(folder: Path) -> list[dict[str, str]]:
    """What was written down in both files, by time."""
    files = (folder / "audit.jsonl", folder / "audit-changes.jsonl")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(lines, key=lambda line: str(line["time"]))


def configuration(folder: Path, **changed: Any) -> Configuration:
    """Tokens and passwords; `admin` is a superuser, `gateway` a proxy. Credentials expire to the second."""
    users = folder / "users"
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    users.write_text(f"app:{hashed}\nadmin:{hashed}\n")
    secret = folder / "secret.key"
    secret.write_bytes(SECRET)
    fields: dict[str, Any] = {
        "authentication": AuthenticationConfiguration(
            token=Token(secret_key=str(secret), leeway_s=0), basic=Basic(str(users))
        ),
        "authorization": AuthorizationConfiguration(
            superusers=("admin", "gateway-root"), proxies=("gateway",)
        ),
        "audit": Audit(str(folder / "audit.jsonl")),
        "client": Credentials(method="token", token=token("admin")),
    }
    return Configuration(**{**fields, **changed})


def security(folder: Path, **changed: Any) -> Security:
    return make_security(configuration(folder, **changed), SystemClock())
