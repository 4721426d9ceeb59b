"""`quire support-bundle`: what somebody needs who was not there, and not one secret."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import quote

import pytest

from tests.cli.running import Server, quire, standalone

ARCHIVE_SECRET = "wJalr/XUtnFEMI+K7MDENG"
ARCHIVE_SESSION = "FwoGZXIvYXdzEPLANTED"
PASSWORD = "a-planted-password"
STRANGER = "c3RyYW5nZXI6cGxhbnRlZC1ieS1hLXN0cmFuZ2Vy"
"""What somebody presents who is not let in."""


class Secured:
    """A server with a secret in every setting that may hold one."""

    def __init__(self, directory: Path) -> None:
        key = directory / "key"
        assert quire("tokens", "create-key", str(key)).code == 0
        self.key = base64.b64encode(key.read_bytes()).decode()
        self.token = self._token("admin", key)
        self.own = self._token("broker", key)
        (directory / "admin.token").write_text(self.token)
        (directory / "password").write_text(PASSWORD)
        self.security = directory / "security.toml"
        self.security.write_text(
            f"""
            [authentication.token]
            secret_key = "data:;base64,{self.key}"
            [authorization]
            superusers = ["admin", "broker"]
            [client]
            method = "token"
            token = "{self.own}"
            [metadata]
            user = "quire"
            password_file = "password"
            """
        )
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        self.archive = (
            f"s3://bucket/prefix?endpoint={endpoint}&access_key=AKIA&secret_key={quote(ARCHIVE_SECRET)}"
            f"&session_token={ARCHIVE_SESSION}"
        )

    def _token(self, role: str, key: Path) -> str:
        return quire("tokens", "create", role, "--secret-key", str(key)).out.strip()

    @property
    def planted(self) -> list[str]:
        raw = base64.b64decode(self.key).decode(errors="replace")
        texts = [self.key, self.token, self.own, ARCHIVE_SECRET, ARCHIVE_SESSION, PASSWORD, STRANGER, raw]
        return [*texts, quote(ARCHIVE_SECRET), quote(ARCHIVE_SECRET, safe="")]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secured, Server]]:
    directory = tmp_path_factory.mktemp("secured")
    made = Secured(directory)
    flags = ("--security", str(made.security), "--archive", made.archive, "--log-level", "debug")
    with standalone(directory, *flags) as server:
        yield made, server


def contents(file: Path) -> dict[str, str]:
    """Every file of the bundle, by its path within."""
    with tarfile.open(file) as tar:
        found = {}
        for member in tar.getmembers():
            reader = tar.extractfile(member)
            assert reader is not None
            found[member.name.partition("/")[2]] = reader.read().decode()
        return found


def test_everything_is_there_and_no_secret(secured: tuple[Secured, Server], tmp_path: Path) -> None:
    made, server = secured
    refused = urllib.request.Request(
        f"{server.http_url}/admin/v2/clusters?token={STRANGER}",
        headers={"Authorization": f"Basic {STRANGER}"},
    )
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(refused, timeout=10)
    file = tmp_path / "found.tar.gz"
    words = ("--admin-url", server.http_url, "--token-file", str(made.security.parent / "admin.token"))
    assert quire("topics", "create", "orders", *words).code == 0
    log = ("--log", str(server.log))
    ran = quire("support-bundle", str(file), "--topic", "orders", *log, *words)
    assert ran.code == 0 and re.search(r"of 1 process\b", ran.out), ran
    found = contents(file)
    (folder,) = {name.split("/")[1] for name in found if name.startswith("members/")}
    own = {name.rpartition("/")[2]: text for name, text in found.items() if name.startswith("members/")}
    assert folder.startswith("standalone-127.0.0.1-")
    assert "MainThread" in own["stacks.txt"] and "quire-watchdog" in own["stacks.txt"]
    assert "tasks" in own["stacks.txt"] and "archive unavailable" in own["log.txt"]
    assert "quire_build_info" in own["metrics.txt"] and "quire_loop_lag_seconds_bucket" in own["metrics.txt"]
    archive = json.loads(own["settings.json"])["settings"]["archive"]
    assert archive["source"] == "flag" and archive["value"].startswith("s3://bucket/prefix?endpoint=http")
    security = json.loads(own["security.json"])
    assert security["authorization"]["superusers"] == ["admin", "broker"]
    assert security["client"]["method"] == "token" and security["metadata"]["user"] == "quire"
    assert any("archive" in one["what"] for one in json.loads(found["doctor.json"])["findings"])
    assert "cluster/overview.json" in found and "cluster/bookies.json" in found
    assert json.loads(found["topics/orders.json"])["stats"]["msgInCounter"] == 0
    for name, text in found.items():
        for secret in made.planted:
            assert secret not in text, f"{name} tells {secret}"


def test_who_is_no_superuser_gets_nothing(secured: tuple[Secured, Server], tmp_path: Path) -> None:
    _, server = secured
    ran = quire("support-bundle", str(tmp_path / "f.tar.gz"), "--admin-url", server.http_url)
    assert ran.code == 0
    found = contents(tmp_path / "f.tar.gz")
    assert set(found) == {"missing.txt"} and "log in" in found["missing.txt"]


def test_a_cluster_that_does_not_answer_has_one_too(tmp_path: Path) -> None:
    log = tmp_path / "broker-1.log"
    log.write_text(f"its last words; Authorization: Bearer {'x' * 30}\n")
    file = tmp_path / "found.tar.gz"
    ran = quire("support-bundle", str(file), "--log", str(log), "--admin-url", "http://127.0.0.1:1", "--json")
    assert ran.json["members"] == 0 and any("no broker answers" in one for one in ran.json["missing"])
    found = contents(file)
    assert "no broker answers" in found["doctor.json"]
    (kept,) = [text for name, text in found.items() if name.startswith("logs/")]
    assert kept == "its last words; Authorization: Bearer …\n"
    again = quire("support-bundle", str(file))
    assert again.code == 2 and "File exists" in again.err


def test_a_process_that_is_asked_by_a_signal_writes_its_stacks_and_goes_on(
    secured: tuple[Secured, Server],
) -> None:
    _, server = secured
    server.process.send_signal(signal.SIGUSR1)
    deadline = monotonic() + 30.0
    while "most recent call first" not in server.log.read_text():
        assert monotonic() < deadline
        sleep(0.05)
    assert urllib.request.urlopen(f"{server.http_url}/health", timeout=10).status == 200
