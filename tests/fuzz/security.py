"""What somebody sends who is not let in yet: tokens, passwords, headers."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from tempfile import gettempdir

from quire.runtime.clock import SystemClock
from quire.runtime.errors import NotAuthenticated
from quire.security.authentication import Authentication
from quire.security.configuration import Oidc, Token
from quire.security.identity import Presented, is_role
from quire.security.oidc import Issuers
from quire.security.tokens import Tokens

SECRET = b"a secret of the search, of more than 32 bytes"
_KEY = "data:;base64," + base64.b64encode(SECRET).decode()
_NOWHERE = str(Path(gettempdir()) / "no-keys-here")
_LOOP = asyncio.new_event_loop()


def _made() -> Authentication:
    clock = SystemClock()
    issuers = Issuers([Oidc(issuer="https://issuer.example", audience="quire", jwks=_NOWHERE)], clock)
    return Authentication("", {"token": Tokens(Token(secret_key=_KEY), clock)}, issuers)


def login(data: bytes) -> None:
    """Nothing but a refusal in one line, or an identity whose role is one."""
    if not data:
        return
    doors = _made()
    method = ("token", "basic", "tls", "none", "token")[data[0] % 5]
    tried = (
        Presented(method, data[1:]),
        doors.in_request({"Authorization": "Bearer " + data[1:].decode("latin1")}, b"", ""),
        doors.in_request({"Authorization": data[1:].decode("latin1")}, b"", ""),
    )
    for one in tried:
        try:
            identity = _LOOP.run_until_complete(doors.authenticate(one))
        except NotAuthenticated as error:
            assert "\n" not in str(error) and len(str(error)) < 500
        except Exception as error:
            assert "cannot be fetched" in str(error), error
        else:
            assert is_role(identity.role)
