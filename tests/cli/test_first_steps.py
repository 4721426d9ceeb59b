"""First steps that a start prints: their options are those that the server's security file requires."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from quire.cli.first_steps import commands, console_url
from quire.runtime.settings import format_address
from quire.security.configuration import Configuration, load
from quire.serving.ownership.port import Addresses
from tests.cli.running import standalone

PLAIN = Addresses("pulsar://127.0.0.1:6650", {}, http_url="http://127.0.0.1:8080")
ONLY_TLS = Addresses(
    "", {}, service_url_tls="pulsar+ssl://localhost:6651", http_url_tls="https://localhost:8443"
)
TLS = '[tls]\ncertificate = "node.pem"\nkey = "node-key.pem"\nauthority = "authority.pem"\nplain = false\n'
TOKEN = '[authentication.token]\nsecret_key = "secret.key"\n'
BASIC = '[authentication.basic]\nfile = "users"\n'
CERTIFICATE = "[authentication.certificate]\n"


def options(addresses: Addresses, security: Configuration, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["quire"])
    publish, read = commands(addresses, security)
    start, found = "echo 'Hello, Quire' | quire produce hello", ""
    assert publish.startswith(start)
    found = publish.removeprefix(start)
    assert read == f"quire consume hello --subscription first --from earliest --count 1{found}"
    return found.strip()


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        (TOKEN, "--token-file TOKEN_FILE"),
        (BASIC, "--user USER --password-file PASSWORD_FILE"),
        (BASIC + TOKEN, "--token-file TOKEN_FILE"),
    ],
)
def test_credentials_are_named(
    text: str, needed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "security.toml"
    file.write_text(text)
    assert options(PLAIN, load(str(file)), monkeypatch) == needed


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        (TLS, ""),
        (TLS + TOKEN, " --token-file TOKEN_FILE"),
        (TLS + CERTIFICATE, " --tls-certificate CERTIFICATE --tls-key KEY"),
        (TLS + 'client_certificates = "required"\n', " --tls-certificate CERTIFICATE --tls-key KEY"),
    ],
)
def test_tls_needs_an_authority_and_perhaps_a_certificate(
    text: str, needed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("certs").mkdir()
    Path("certs/security.toml").write_text(text)
    trusted = "--service-url pulsar+ssl://localhost:6651 --tls-trust-certs certs/authority.pem"
    assert options(ONLY_TLS, load("certs/security.toml"), monkeypatch) == trusted + needed


def test_the_usual_server_needs_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options(PLAIN, Configuration(), monkeypatch) == ""
    other = Addresses("pulsar://127.0.0.1:6655", {}, http_url="http://0.0.0.0:8085")
    assert options(other, Configuration(), monkeypatch) == "--service-url pulsar://127.0.0.1:6655"
    assert console_url(PLAIN) == "http://127.0.0.1:8080/console"
    assert console_url(ONLY_TLS) == "https://localhost:8443/console"
    assert console_url(other) == f"http://{format_address('localhost', 8085)}/console"


def test_the_log_as_json_is_json_in_every_line(tmp_path: Path) -> None:
    with standalone(tmp_path, "--log-json", "true") as server:
        pass
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (hint,) = [line for line in lines if "/console" in line["message"]]
    assert server.http_url in hint["message"] and "produce hello" in hint["message"]
