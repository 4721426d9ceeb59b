"""The command line with a security file: keys and tokens, permissions, and what a process says that has secrets."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from click.testing import CliRunner, Result

from quire.cli import profile
from quire.cli.certs import command as certificates
from quire.cli.connection_options import _presented
from quire.cli.tokens import command as tokens
from quire.runtime.credentials import NOBODY, Credentials
from quire.runtime.errors import ConfigurationError
from quire.testing.zookeeper_server import free_port

from ..chaos.server import Server
from ..serving.security import audit

QUIRE = [sys.executable, "-m", "quire"]


def run(*words: str, **options: str) -> Result:
    return CliRunner().invoke(tokens, list(words), **options)  # type: ignore[arg-type]


def test_a_secret_key_and_its_tokens(tmp_path: Path) -> None:
    key, token = tmp_path / "secret.key", tmp_path / "app.token"
    assert run("create-key", str(key)).exit_code == 0
    assert len(key.read_bytes()) == 32 and key.stat().st_mode & 0o077 == 0
    assert "never overwritten" in str(run("create-key", str(key)).exception)
    token.write_text(run("create", "app", "--secret-key", str(key), "--expires", "30d").output)
    said = run("validate", str(token), "--secret-key", str(key), "--json")
    assert json.loads(said.output)["role"] == "app"
    shown = json.loads(run("show", str(token), "--json").output)
    assert shown["claims"]["sub"] == "app" and shown["header"]["alg"] == "HS256"


@pytest.mark.parametrize("kind", ["rsa", "ec", "ed25519"])
@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_a_pair_of_keys_and_its_tokens(tmp_path: Path, kind: str) -> None:
    private, public, token = (str(tmp_path / name) for name in ("private.pem", "public.pem", "token"))
    assert run("create-key", private, "--kind", kind, "--public-key", public).exit_code == 0
    Path(token).write_text(run("create", "app", "--private-key", private, "--audience", "quire").output)
    assert "app" in run("validate", token, "--public-key", public, "--audience", "quire").output
    refused = run("validate", token, "--public-key", public, "--audience", "other")
    assert "it would be refused" in str(refused.exception)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "secret.key"
    run("create-key", str(key))
    (tmp_path / "no-token").write_text("hello")
    for words, sentence in (
        (["create", "a/b", "--secret-key", str(key)], "is not a role"),
        (["create", "app"], "either --secret-key or --private-key"),
        (["create", "app", "--private-key", str(key)], "must be PEM"),
        (["create-key", str(tmp_path / "x"), "--kind", "rsa"], "--public-key"),
        (["show", str(tmp_path / "no-token")], "not a JSON Web Token"),
        *(
            ([*words, "data:;base64,bXktc2VjcmV0"], f"{words[-1]} takes a file")
            for words in (
                ["create", "app", "--secret-key"],
                ["create", "app", "--private-key"],
                ["validate", str(tmp_path / "no-token"), "--secret-key"],
                ["validate", str(tmp_path / "no-token"), "--public-key"],
            )
        ),
        (["validate", str(tmp_path / "no-token"), "--secret-key", str(key)], "refused"),
    ):
        said = str(run(*words).exception)
        assert sentence in said and "bXkt" not in said, words


# -- a process with secrets ------------------------------------------------------------------------------


AUDIT = "persistent://public/default/audit"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    key = tmp_path / "secret.key"
    run("create-key", str(key))
    for role in ("admin", "app"):
        made = run("create", role, "--secret-key", str(key), "--expires", "1d").output
        (tmp_path / f"{role}.token").write_text(made)
    (tmp_path / "security.toml").write_text(
        '[authentication.token]\nsecret_key = "secret.key"\n'
        '[authorization]\nsuperusers = ["admin"]\n'
        f'[audit]\nfile = "audit.jsonl"\ntopic = "{AUDIT}"\n'
        '[client]\nmethod = "token"\ntoken_file = "admin.token"\n'
    )
    return tmp_path


Quire = Callable[..., "subprocess.CompletedProcess[str]"]


async def test_a_server_with_a_security_file(folder: Path) -> None:
    server = Server(folder, security=str(folder / "security.toml"))
    await server.start()
    here = {
        "QUIRE_ADMIN_URL": server.http_url,
        "QUIRE_SERVICE_URL": server.service_url,
        "XDG_CONFIG_HOME": str(folder / "config"),
    }

    def quire(role: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **here}
        if role:
            environment["QUIRE_TOKEN_FILE"] = str(folder / f"{role}.token")
        return subprocess.run(
            [*QUIRE, *words],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )

    topic = "persistent://public/default/orders"
    login = ("login", "--admin-url", server.http_url, "--service-url", server.service_url)
    assert quire("", *login).returncode == 1
    assert quire("admin", *login).returncode == 0
    assert "admin.token" in (folder / "config" / "quire" / "profile.toml").read_text()
    assert quire("", "topics", "list").returncode == 0, "by the profile"
    assert quire("", "login", "--forget").returncode == 0
    refused = quire("", "topics", "create", topic)
    assert refused.returncode == 1 and "log in" in refused.stderr
    assert quire("admin", "topics", "create", topic).returncode == 0
    refused = quire("app", "produce", topic, stdin="hello\n")
    assert refused.returncode != 0 and "grant it produce" in refused.stderr
    granted = quire("admin", "permissions", "grant", "app", topic, "produce", "consume")
    assert granted.returncode == 0, granted.stderr
    assert quire("app", "produce", topic, stdin="hello\n").returncode == 0
    read = quire("app", "consume", topic, "--subscription", "s", "--from", "earliest", "--count", "1")
    assert read.stdout == "hello\n", read.stderr
    measured = quire("app", "bench", "produce", topic, "--messages", "50", "--warm-up", "0s")
    assert measured.stdout.count("published 50 messages") == 1, measured.stderr
    assert "app" in quire("admin", "permissions", "list", topic).stdout
    assert "was granted consume" in quire("admin", "permissions", "explain", "app", topic).stdout
    assert quire("admin", "permissions", "revoke", "app", topic).returncode == 0
    assert quire("app", "produce", topic, stdin="hello\n").returncode != 0
    assert quire("admin", "tenants", "create", "team", "--admin-roles", "app").returncode == 0
    assert quire("app", "namespaces", "create", "team/own").returncode == 0
    assert quire("app", "policies", "set", "team/own", "message-ttl", "1d").returncode == 0
    refused = quire("app", "policies", "set", "team/own", "max-producers-per-topic", "5")
    assert refused.returncode == 1 and "superuser" in refused.stderr, refused.stderr
    refused = quire("app", "bench", "produce", topic, "--messages", "50")
    assert refused.returncode == 1 and "grant it produce" in refused.stderr
    assert refused.stderr.count("\n") == 1 and "Traceback" not in refused.stderr
    count = len(audit(folder))
    read = quire(
        "admin", "consume", AUDIT, "--subscription", "s", "--from", "earliest", "--count", str(count)
    )
    published = [json.loads(line) for line in read.stdout.splitlines()]
    assert sorted(map(str, published)) == sorted(map(str, audit(folder))), read.stderr
    assert await server.stop() == 0

    lines = audit(folder)
    assert {"login-failed", "denied", "changed"} <= {line["event"] for line in lines}
    assert all(line["request"] for line in lines)
    secrets = [(folder / f"{role}.token").read_text().strip() for role in ("admin", "app")]
    said = str(lines) + server.log.read_text()
    for secret in secrets:
        assert secret not in said and secret.rpartition(".")[2] not in said


def test_a_profile_is_for_its_own_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("QUIRE_TOKEN", raising=False)
    assert profile.load() == {} and not profile.forget()
    profile.save({"admin_url": "http://here", "service_url": "pulsar://here", "token_file": "/the/token"})
    assert profile.place().stat().st_mode & 0o077 == 0
    mine = Credentials(token_file="/the/token")
    for words, presented in (
        ({"admin_url": "http://here"}, mine),
        ({"service_url": "pulsar://here", "admin_url": None}, mine),
        ({"admin_url": "http://there"}, NOBODY),
        ({"service_url": "pulsar://here", "admin_url": "http://there"}, NOBODY),
    ):
        assert _presented({}, words) == presented, words
    monkeypatch.setenv("QUIRE_TOKEN", "x")
    assert _presented({}, {"admin_url": "http://here"}) == Credentials(token="x")
    profile.place().write_text("token = 'x'\n")
    with pytest.raises(ConfigurationError, match="run `quire login` again"):
        profile.load()


def test_config_show_has_a_path_and_no_secret(folder: Path) -> None:
    shown = subprocess.run(
        [*QUIRE, "config", "show", "--security", str(folder / "security.toml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "security.toml" in shown
    assert (folder / "admin.token").read_text().strip() not in shown


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[tls", "cannot read the security file"),
        ("[authentication.tokens]\n", "unknown setting `tokens`"),
        ('[authentication.token]\nsecret_key = "not-there"\n', "cannot read the key"),
        ('[authentication.basic]\nfile = "not-there"\n', "cannot read the password file"),
    ],
)
def test_a_security_file_that_is_wrong_stops_the_start(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "security.toml").write_text(text)
    nowhere = ["--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    tried = subprocess.run(
        [*QUIRE, "standalone", *nowhere, "--security", str(tmp_path / "security.toml")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert tried.returncode == 2 and sentence in tried.stderr and tried.stdout == ""
    assert len(tried.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "data").exists()


async def test_roles_of_certificates(tmp_path: Path) -> None:
    """Mutual TLS as docs/security.md sets it up; the plain ports stay open, and take nobody without credentials."""
    certs, tls_port, https_port = tmp_path / "certs", free_port(), free_port()
    for words in (["make", str(certs)], ["user", str(certs), "admin"], ["user", str(certs), "app"]):
        assert CliRunner().invoke(certificates, words).exit_code == 0
    file = certs / "security.toml"
    file.write_text(
        file.read_text()
        + f'listen = "127.0.0.1:{tls_port}"\nhttp = "127.0.0.1:{https_port}"\n'
        + '[authentication.certificate]\n[authorization]\nsuperusers = ["admin"]\n[audit]\nfile = "audit.jsonl"\n'
    )
    server = Server(tmp_path, security=str(file))
    await server.start()
    environment = {
        **os.environ,
        "QUIRE_ADMIN_URL": f"https://127.0.0.1:{https_port}",
        "QUIRE_SERVICE_URL": f"pulsar+ssl://127.0.0.1:{tls_port}",
        "QUIRE_TLS_TRUST_CERTS": str(certs / "authority.pem"),
    }

    def quire(role: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        shown = {"QUIRE_TLS_CERTIFICATE": f"{certs}/{role}.pem", "QUIRE_TLS_KEY": f"{certs}/{role}-key.pem"}
        return subprocess.run(
            [*QUIRE, *words],
            input=stdin,
            capture_output=True,
            text=True,
            env={**environment, **(shown if role else {})},
            timeout=60,
            check=False,
        )

    refused = quire("", "topics", "list")
    assert refused.returncode == 1 and "log in" in refused.stderr
    assert "grant it produce" in quire("app", "produce", "orders", stdin="hello\n").stderr
    granted = quire("admin", "permissions", "grant", "app", "public/default", "produce")
    assert granted.returncode == 0, granted.stderr
    produced = quire("app", "produce", "orders", stdin="hello\n")
    assert produced.returncode == 0, produced.stderr
    with pytest.raises(pulsar.PulsarException):
        await asyncio.to_thread(send, server.service_url, certs, "app")
    await asyncio.to_thread(send, f"pulsar+ssl://127.0.0.1:{tls_port}", certs, "app")
    assert await server.stop() == 0


def send(url: str, certs: Path, role: str) -> None:
    client = pulsar.Client(
        url,
        pulsar.AuthenticationTLS(f"{certs}/{role}.pem", f"{certs}/{role}-key.pem"),
        operation_timeout_seconds=3,
        tls_trust_certs_file_path=f"{certs}/authority.pem",
        tls_validate_hostname=True,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        client.create_producer("orders").send(b"hello")
    finally:
        client.close()
