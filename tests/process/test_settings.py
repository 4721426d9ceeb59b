"""Settings of a command: where a secret may stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.process.settings import Given
from quire.process.standalone import StandaloneSettings

URL = "s3://bucket/prefix?access_key=me&secret_key=hush-hush"


def test_a_secret_in_a_flag_is_warned_of_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert Given({"archive": URL}, None).load(StandaloneSettings).archive == URL
    said = capsys.readouterr().err
    assert "--archive" in said and "QUIRE_ARCHIVE" in said and "hush" not in said


def test_a_secret_in_the_environment_or_the_file_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(f'archive = "{URL}"\n')
    assert Given({}, file).load(StandaloneSettings).archive == URL
    monkeypatch.setenv("QUIRE_ARCHIVE", URL)
    assert Given({"data": "x"}, None).load(StandaloneSettings).archive == URL
    assert capsys.readouterr().err == ""
