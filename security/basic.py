"""Users and passwords of an htpasswd file, bcrypt alone: `htpasswd -B -c FILE USER`.

Other kinds of lines (MD5, SHA-1, crypt, plain text) are refused when the file is read: they are found out by trying.
The file is read again when it has changed; one that cannot be read then leaves nobody in by a password until it can.

bcrypt is slow on purpose. It runs in a thread, a few at a time, and addresses take turns (`turns`), so that who floods
with wrong passwords shuts nobody else out; a password that was right is known for a minute by a keyed digest, so that a
client with many connections pays once. An unknown user takes as long as a wrong password.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import bcrypt

from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, NotAuthenticated, Unavailable
from quire.runtime.limits import MIB
from quire.security.configuration import Basic
from quire.security.identity import Identity, is_role, role_of
from quire.security.turns import Turns

FILE_BYTES_MAX: Final = 8 * MIB
PASSWORD_BYTES_MAX: Final = 72
"""More than that bcrypt does not look at."""

ROUNDS_MAX: Final = 14
"""A second for each attempt: more, and a few users stop all others."""

KNOWN_S: Final = 60.0
KNOWN_MAX: Final = 10_000
_HASH: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_WRONG: Final = "the user or the password is wrong"


class Passwords:
    """The provider of the method `basic`."""

    def __init__(self, settings: Basic, clock: Clock) -> None:
        """Raises `ConfigurationError` for a file that cannot be used."""
        self._file = Path(settings.file)
        self._prefix = settings.prefix
        self._clock = clock
        self._version: tuple[int, ...] = ()
        self._hashes: dict[str, bytes] = {}
        self._proofs: frozenset[str] = frozenset()
        """Of all users with their hashes; see `Identity.proof`."""
        self._secret = os.urandom(32)
        self._known: dict[bytes, tuple[bytes, float]] = {}
        """By keyed digests of user and password: the hash that it fits, and until when we need not try again."""
        self._turns = Turns("passwords are being looked at")
        self._read()

    def _read(self) -> None:
        try:
            status = self._file.stat()
            version = (status.st_mtime_ns, status.st_ino, status.st_size)
            if version == self._version:
                return
            if status.st_size > FILE_BYTES_MAX:
                raise ConfigurationError(
                    f"the password file {self._file} is larger than {FILE_BYTES_MAX} bytes"
                )
            text = self._file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise ConfigurationError(f"cannot read the password file {self._file}: {why}") from None
        self._hashes = dict(
            self._line(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()
        )
        self._proofs = frozenset(self._proof(user, hashed) for user, hashed in self._hashes.items())
        self._version = version

    def _proof(self, user: str, hashed: bytes) -> str:
        return hmac.digest(self._secret, hashed + user.encode(), "sha256").hex()

    def _line(self, number: int, line: str) -> tuple[str, bytes]:
        user, _, hashed = line.strip().partition(":")
        match = _HASH.fullmatch(hashed)
        if not is_role(user) or match is None or int(match[1]) > ROUNDS_MAX:
            raise ConfigurationError(
                f"line {number} of the password file {self._file} is not USER:HASH with bcrypt of at most "
                f"2^{ROUNDS_MAX} rounds: make it by htpasswd -B"
            )
        return user, hashed.encode()

    async def authenticate(self, data: bytes, address: str = "") -> Identity:
        """`data` is user:password. Raises `NotAuthenticated`, and `Unavailable` while too many are being looked at."""
        user_bytes, colon, password = data.partition(b":")
        try:
            user = user_bytes.decode()
        except UnicodeDecodeError:
            user = ""
        if not colon or not is_role(user) or len(password) > PASSWORD_BYTES_MAX or b"\0" in password:
            raise NotAuthenticated(_WRONG)
        try:
            self._read()
        except ConfigurationError as error:
            raise Unavailable(f"passwords cannot be looked at now: {error}") from None
        hashed = self._hashes.get(user)
        digest = hmac.digest(self._secret, hashlib.sha256(user_bytes).digest() + password, "sha256")
        known = self._known.get(digest)
        if hashed is None or known is None or known[0] != hashed or known[1] < self._clock.monotonic():
            self._known.pop(digest, None)
            shown = hashed or self._any_hash()
            fits = await self._turns.run(address, lambda: bcrypt.checkpw(password, shown))
            if not fits or hashed is None:
                raise NotAuthenticated(_WRONG)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[digest] = hashed, self._clock.monotonic() + KNOWN_S
        role = role_of(user, "the user", self._prefix)
        return Identity(role, "basic", proof=self._proof(user, hashed))

    async def look(self) -> None:
        """Read the file again if it has changed; while it cannot be read, who is here stays."""
        with suppress(ConfigurationError):
            self._read()

    def trusts(self, proof: str) -> bool:
        return proof in self._proofs

    def _any_hash(self) -> bytes:
        """To try in vain for a user who is not there: one of those who are, for that takes as long as theirs."""
        return next(iter(self._hashes.values()), b"$2b$10$" + b"." * 53)
