"""The command that installs an extra is one for this installation: a clone, a wheel, or an index."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from quire.runtime.installation import CLONE, pip_install


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with pip in a clone, which is the current directory."""
    pip = tmp_path / ".venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def installed_from(source: object, monkeypatch: pytest.MonkeyPatch) -> None:
    text = None if source is None else json.dumps(source)
    found = SimpleNamespace(read_text={"direct_url.json": text}.__getitem__)
    monkeypatch.setattr(metadata, "distribution", {"quire": found}.__getitem__)


def test_in_a_clone(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from({"url": environment.as_uri(), "dir_info": {"editable": True}}, monkeypatch)
    assert pip_install("spark") == ".venv/bin/pip install -e '.[spark]'"
    (environment / "below").mkdir()
    monkeypatch.chdir(environment / "below")
    assert pip_install("spark") == f"{environment}/.venv/bin/pip install -e '{environment}[spark]'"


def test_from_a_copy_of_a_clone(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from({"url": (environment / "a quire").as_uri(), "dir_info": {}}, monkeypatch)
    assert pip_install("s3") == ".venv/bin/pip install './a quire[s3]'"


def test_from_a_wheel(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "file:///srv/quire-0.1.0-py3-none-any.whl"
    installed_from({"url": url, "archive_info": {}}, monkeypatch)
    assert pip_install("otel") == f".venv/bin/pip install 'quire[otel] @ {url}'"


def test_from_an_index(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(None, monkeypatch)
    assert pip_install("avro") == ".venv/bin/pip install 'quire[avro]'"


def test_without_an_installation_and_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert pip_install("crypto") == f"{sys.executable} -m pip install -e '{CLONE}[crypto]'"


def test_no_message_names_a_package_of_an_index() -> None:
    rooms = [link.name for link in (CLONE / "quire").iterdir() if link.is_symlink()]
    for file in (file for room in rooms for file in (CLONE / room).rglob("*.py")):
        if file.name != "installation.py":
            assert "pip install quire" not in file.read_text().replace("'", ""), file
