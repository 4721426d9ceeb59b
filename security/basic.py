"""Users and passwords of an htpasswd file with bcrypt hashes, from `htpasswd -B -c FILE USER`.

Other hashes (MD5, SHA-1, crypt, plain text) are refused when the file is read, because they are easy to crack.
The file is read again when it has changed. While it is unreadable, no password authenticates.

bcrypt is slow by design. It runs in a few threads, with a fair queue by address (`fair_executor`), so that a flood of
wrong passwords does not lock out other addresses. A keyed digest of a correct password is cached for a minute, for
clients with many connections. Each failure takes as long as the costliest hash in the file, even for an unknown user,
so that timing does not reveal user names.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import bcrypt

from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, NotAuthenticated, Unavailable
from quire.runtime.limits import MIB
from quire.security.configuration import Basic
from quire.security.fair_executor import FairExecutor
from quire.security.identity import Identity, is_role, role_of

FILE_BYTES_MAX: Final = 8 * MIB
PASSWORD_BYTES_MAX: Final = 72
"""Maximum length of a password: bcrypt ignores further bytes."""

ROUNDS_MAX: Final = 14
"""Maximum bcrypt cost: checking a password takes about a second. More would let a few users block all others."""

ROUNDS_MIN: Final = 4
"""Minimum cost that bcrypt supports."""

ROUNDS_OF_NOBODY: Final = 10
"""Cost used for unknown users if the file is empty."""

KNOWN_S: Final = 60.0
KNOWN_MAX: Final = 10_000
_HASH: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_WRONG: Final = "the user or the password is wrong"


class Passwords:
    """Provider of the method `basic`."""

    def __init__(self, settings: Basic, clock: Clock) -> None:
        """Read the file. Raises `ConfigurationError` if it cannot be used."""
        self._file = Path(settings.file)
        self._prefix = settings.prefix
        self._clock = clock
        self._version: tuple[int, ...] = ()
        self._hashes: dict[str, bytes] = {}
        self._rounds_max = ROUNDS_OF_NOBODY
        self._proofs: frozenset[str] = frozenset()
        """Proofs of all users with their hashes; see `Identity.proof`."""
        self._secret = os.urandom(32)
        self._known: dict[bytes, tuple[bytes, float]] = {}
        """Keyed digest of user and password -> (hash that it matches, monotonic time in s until which it is cached)."""
        self._executor = FairExecutor("password checks are waiting")
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
        self._rounds_max = max(map(_rounds_of, self._hashes.values()), default=ROUNDS_OF_NOBODY)
        self._proofs = frozenset(self._proof(user, hashed) for user, hashed in self._hashes.items())
        self._version = version

    def _proof(self, user: str, hashed: bytes) -> str:
        return hmac.digest(self._secret, hashed + user.encode(), "sha256").hex()

    def _line(self, number: int, line: str) -> tuple[str, bytes]:
        user, _, hashed = line.strip().partition(":")
        match = _HASH.fullmatch(hashed)
        if not is_role(user) or match is None or not ROUNDS_MIN <= int(match[1]) <= ROUNDS_MAX:
            raise ConfigurationError(
                f"line {number} of the password file {self._file} is not USER:HASH with bcrypt of at most "
                f"2^{ROUNDS_MAX} rounds; create it with htpasswd -B"
            )
        return user, hashed.encode()

    async def authenticate(self, data: bytes, address: str = "") -> Identity:
        """Verify `data`, user:password. Raises `NotAuthenticated`, or `Unavailable` if too many checks are waiting."""
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
            raise Unavailable(f"passwords cannot be checked now: {error}") from None
        hashed = self._hashes.get(user)
        digest = hmac.digest(self._secret, hashlib.sha256(user_bytes).digest() + password, "sha256")
        known = self._known.get(digest)
        if hashed is None or known is None or known[0] != hashed or known[1] < self._clock.monotonic():
            self._known.pop(digest, None)
            work = partial(_fits, password, hashed, self._rounds_max)
            if not await self._executor.run(address, work) or hashed is None:
                raise NotAuthenticated(_WRONG)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[digest] = hashed, self._clock.monotonic() + KNOWN_S
        role = role_of(user, "the user", self._prefix)
        return Identity(role, "basic", proof=self._proof(user, hashed), prefix=self._prefix)

    async def look(self) -> None:
        """Reload the file if it has changed; if it cannot be read, existing connections stay."""
        with suppress(ConfigurationError):
            self._read()

    def trusts(self, proof: str) -> bool:
        return proof in self._proofs


def _fits(password: bytes, hashed: bytes | None, rounds_max: int) -> bool:
    """Return whether the password matches. Each failure takes 2^rounds_max rounds, even for an unknown user.

    After a check with 2^n rounds, further hashes with 2^n, 2^(n+1), …, 2^(max-1) rounds add up to 2^max rounds.
    """
    if hashed is None:
        bcrypt.hashpw(password, _salt(rounds_max))
        return False
    if bcrypt.checkpw(password, hashed):
        return True
    for rounds in range(max(ROUNDS_MIN, _rounds_of(hashed)), rounds_max):
        bcrypt.hashpw(password, _salt(rounds))
    return False


def _salt(rounds: int) -> bytes:
    return b"$2b$%02d$" % rounds + b"." * 22


def _rounds_of(hashed: bytes) -> int:
    return int(hashed[4:6])
