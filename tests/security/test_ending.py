"""Certificates that end soon are told of in time, and those that do not are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.runtime.findings import ERROR, WARNING
from quire.security.certs import AUTHORITY, Authority, files
from quire.security.configuration import load
from quire.security.ending import ending


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [(365, "", ""), (14, WARNING, "expires on"), (1, ERROR, "expires on"), (-1 / 1440, ERROR, "expired")],
)
def test_a_certificate_of_so_many_days(days: float, level: str, words: str, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    certificate, key = authority.sign_process("broker-1", ["127.0.0.1"], days)
    file = tmp_path / "security.toml"
    file.write_text(
        f"[tls]\ncertificate = '{certificate}'\nkey = '{key}'\nauthority = '{files(tmp_path, AUTHORITY)[0]}'\n"
    )
    found = list(ending(load(str(file))))
    if not level:
        assert found == []
        return
    (one,) = found
    assert one.level == level and words in one.what and "certificate of [tls]" in one.what


def test_what_is_no_certificate_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_text("not yet renewed")
    file = tmp_path / "security.toml"
    file.write_text("[internal]\ncertificate = 'own.pem'\nkey = 'own.key'\nauthority = 'gone.pem'\n")
    found = list(ending(load(str(file))))
    assert [one.level for one in found] == [ERROR, ERROR]
    assert "own.pem" in found[0].what and "gone.pem" in found[1].what
