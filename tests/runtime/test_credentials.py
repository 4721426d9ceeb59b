"""What a client presents: from files that may change, never printed, and only what goes together."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.runtime.credentials import NOBODY, Credentials, given_or_of_environment
from quire.runtime.errors import ConfigurationError


def test_each_way(tmp_path: Path) -> None:
    token, password = tmp_path / "token", tmp_path / "password"
    token.write_text("a.b.c\n")
    password.write_text("secret\n")
    by_file = Credentials(token_file=str(token))
    assert (by_file.method, by_file.data()) == ("token", b"a.b.c")
    assert by_file.headers() == {"Authorization": "Bearer a.b.c"}
    token.write_text("d.e.f")
    assert by_file.data() == b"d.e.f", "it is read anew"
    by_user = Credentials(user="app", password_file=str(password))
    assert (by_user.method, by_user.data()) == ("basic", b"app:secret")
    assert by_user.headers() == {"Authorization": "Basic YXBwOnNlY3JldA=="}
    assert (NOBODY.method, NOBODY.data(), NOBODY.headers()) == ("none", b"", {})


@pytest.mark.parametrize("text", ["", "\n", "two\nlines\n", "x" * 70_000])
def test_a_file_that_has_no_secret(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigurationError, match="one line"):
        Credentials(token_file=str(tmp_path / "token")).data()


def test_what_does_not_go_together() -> None:
    for wrong in (
        Credentials(token="x", user="app", password_file="y"),
        Credentials(user="app"),
        Credentials(password_file="y"),
    ):
        with pytest.raises(ConfigurationError):
            wrong.headers()
    with pytest.raises(ConfigurationError, match="cannot read"):
        Credentials(token_file="/nowhere/token").data()


def test_what_is_given_beats_the_environment_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_TOKEN", "x")
    assert given_or_of_environment({}) == Credentials(token="x")
    given = {"user": "app", "password_file": "y"}
    assert given_or_of_environment(given) == Credentials(user="app", password_file="y")
