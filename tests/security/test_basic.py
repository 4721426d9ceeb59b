"""Passwords: bcrypt alone, known for a while, read again when the file changes."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError, NotAuthenticated, Unavailable
from quire.security import fair_executor
from quire.security.basic import Passwords
from quire.security.configuration import Basic


def line(user: str, password: str, rounds: int = 4) -> str:
    return f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(rounds)).decode()}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    file.write_text(line("app", "secret") + "\n" + line("other", "another"))
    return file


async def test_the_right_password_lets_in(file: Path) -> None:
    passwords = Passwords(Basic(str(file)), SystemClock())
    identity = await passwords.authenticate(b"app:secret")
    assert (identity.role, identity.method, identity.expires_ms) == ("app", "basic", None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"app",
        b"app:",
        b"app:wrong",
        b"other:secret",
        b"nobody:secret",
        b":secret",
        b"app:secret\0",
        b"\xff:secret",
        b"app:" + b"s" * 73,
        b"a/b:secret",
        b"app\n:secret",
    ],
)
async def test_all_else_is_refused_in_the_same_words(file: Path, data: bytes) -> None:
    passwords = Passwords(Basic(str(file)), SystemClock())
    with pytest.raises(NotAuthenticated, match="the user or the password is wrong"):
        await passwords.authenticate(data)


async def test_a_password_that_was_right_is_not_tried_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = Passwords(Basic(str(file)), SystemClock())
    await passwords.authenticate(b"app:secret")
    tried: list[Any] = []
    monkeypatch.setattr(bcrypt, "checkpw", lambda *words: tried.append(words))
    await passwords.authenticate(b"app:secret")
    assert not tried
    with pytest.raises(NotAuthenticated):
        await passwords.authenticate(b"app:secret2")
    assert len(tried) == 1


async def test_a_file_that_changes_is_read_again(file: Path) -> None:
    passwords = Passwords(Basic(str(file)), SystemClock())
    await passwords.authenticate(b"app:secret")
    file.write_text(line("app", "new secret"))
    with pytest.raises(NotAuthenticated):
        await passwords.authenticate(b"app:secret")
    assert (await passwords.authenticate(b"app:new secret")).role == "app"
    file.unlink()
    with pytest.raises(Unavailable):
        await passwords.authenticate(b"app:new secret")


async def test_who_floods_with_wrong_passwords_keeps_nobody_else_out(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, real = threading.Semaphore(0), bcrypt.checkpw

    def slowly(password: bytes, hashed: bytes) -> bool:
        assert password == b"secret" or may_go_on.acquire(timeout=60)
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", slowly)
    passwords = Passwords(Basic(str(file)), SystemClock())
    flood = [
        asyncio.ensure_future(passwords.authenticate(b"app:wrong", f"/10.0.0.9:{number}"))
        for number in range(500)
    ]
    await asyncio.sleep(0)
    right = asyncio.ensure_future(passwords.authenticate(b"app:secret", "/10.0.0.1:4711"))
    may_go_on.release(fair_executor.AT_ONCE_MAX + 1)  # so many of the flood come before it
    assert (await asyncio.wait_for(right, 30)).role == "app"
    may_go_on.release(len(flood))
    found = [type(one) for one in await asyncio.gather(*flood, return_exceptions=True)]
    in_line = fair_executor.AT_ONCE_MAX + fair_executor.WAITING_MAX - 1
    assert (found.count(NotAuthenticated), found.count(Unavailable)) == (in_line, 500 - in_line)


@pytest.mark.parametrize(
    "text",
    [
        "app:secret\n",
        "app:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n",
        "app:$apr1$abcdefgh$0123456789012345678901\n",
        "app\n",
        line("a/b", "secret"),
        line("app", "secret").replace("$04$", "$31$"),
        line("app", "secret")[:-5] + "\n",
    ],
    ids=["plain", "SHA", "apr1", "no password", "no user", "too many rounds", "cut short"],
)
def test_what_is_no_bcrypt_stops_the_start(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)
    with pytest.raises(ConfigurationError, match="line 4 of the password file") as refused:
        Passwords(Basic(str(file)), SystemClock())
    assert "secret" not in str(refused.value)


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    for where in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot read the password file"):
            Passwords(Basic(str(where)), SystemClock())
    (tmp_path / "binary").write_bytes(os.urandom(100) + b"\xff")
    with pytest.raises(ConfigurationError):
        Passwords(Basic(str(tmp_path / "binary")), SystemClock())


async def test_a_failure_costs_the_same_for_each_user_and_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    rounds = {"cheap": 4, "dear": 8, "middle": 6}
    file.write_text(
        "".join(
            f"{user}:{bcrypt.hashpw(b'right', bcrypt.gensalt(n)).decode()}\n" for user, n in rounds.items()
        )
    )
    passwords = Passwords(Basic(str(file)), SystemClock())
    spent: list[int] = []
    real = bcrypt.hashpw

    def counted(password: bytes, salt: bytes) -> bytes:
        spent.append(1 << int(salt[4:6]))
        return real(password, salt)

    monkeypatch.setattr(bcrypt, "hashpw", counted)
    monkeypatch.setattr(bcrypt, "checkpw", lambda password, hashed: counted(password, hashed) == hashed)
    for user in ("nobody", *rounds):
        with pytest.raises(NotAuthenticated):
            await passwords.authenticate(f"{user}:wrong".encode(), "/10.0.0.1:1")
        assert sum(spent) == 1 << 8, user
        spent.clear()
    assert (await passwords.authenticate(b"cheap:right", "/10.0.0.1:1")).role == "cheap"
    assert spent == [1 << 4]
