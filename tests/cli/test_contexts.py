"""Contexts of `quire login`: several clusters, each with its own addresses and credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from quire.cli import profile
from quire.cli.connection_options import _presented, take_connection
from quire.cli.output import NOT_FOUND, TRY_AGAIN, WRONG_USE
from quire.runtime.credentials import NOBODY, Credentials
from quire.runtime.tls import ClientTls
from tests.cli.recording import Recording, recording
from tests.cli.running import quire

OLD = 'admin_url = "http://127.0.0.1:2"\nservice_url = "pulsar://127.0.0.1:3"\n'
"""The file of versions without contexts; nothing listens there."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("ADMIN_URL", "SERVICE_URL", "CONTEXT", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"QUIRE_{name}", raising=False)


@pytest.fixture
def broker() -> Iterator[Recording]:
    with recording() as made:
        made.answers["GET /admin/v2/clusters"] = {}
        made.answers["GET /admin/v2/brokers/health"] = "ok"
        yield made


def log_in(broker: Recording, *words: str) -> str:
    ran = quire("login", "--admin-url", broker.url, "--service-url", "pulsar://prod:6650", *words)
    assert ran.code == 0, ran.err
    return ran.out


def asked_at() -> str:
    """The address that a command without further options asks."""
    ran = quire("brokers", "healthcheck", "--json")
    if ran.code == 0:
        return str(ran.json["url"])
    assert ran.code == TRY_AGAIN, ran
    return ran.err.split()[5]


def test_the_old_file_is_the_default_context(broker: Recording) -> None:
    profile.place().parent.mkdir()
    profile.place().write_text(OLD)
    assert asked_at() == "http://127.0.0.1:2"
    assert "quire --context prod" in log_in(broker, "--context", "prod")
    assert asked_at() == "http://127.0.0.1:2"
    assert quire("--context", "prod", "brokers", "healthcheck").code == 0
    assert quire("brokers", "healthcheck", "--context", "prod").code == 0
    assert profile.place().read_text().startswith(OLD)
    assert profile.place().stat().st_mode & 0o077 == 0


def test_a_context_is_chosen_by_the_flag_the_environment_or_for_all(
    broker: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile.place().parent.mkdir()
    profile.place().write_text(OLD)
    log_in(broker, "--context", "prod")
    assert asked_at() == "http://127.0.0.1:2"
    monkeypatch.setenv("QUIRE_CONTEXT", "prod")
    assert asked_at() == broker.url
    monkeypatch.setenv("QUIRE_ADMIN_URL", "http://127.0.0.1:4")
    assert asked_at() == "http://127.0.0.1:4", (
        "an address in the environment overrides a context that is not a flag"
    )
    assert quire("--context", "prod", "brokers", "healthcheck").code == 0
    monkeypatch.delenv("QUIRE_ADMIN_URL")
    monkeypatch.delenv("QUIRE_CONTEXT")
    assert quire("contexts", "use", "prod").out == "prod is the current context\n"
    assert asked_at() == broker.url
    monkeypatch.setenv("QUIRE_CONTEXT", "default")
    assert "QUIRE_CONTEXT=default still overrides" in quire("contexts", "use", "prod").err


def test_contexts_are_listed_and_removed(broker: Recording, tmp_path: Path) -> None:
    none = quire("contexts", "list")
    assert (none.code, none.out) == (0, "") and "quire login --context NAME" in none.err
    (tmp_path / "prod.token").write_text("secret")
    log_in(broker)
    log_in(broker, "--context", "prod", "--token-file", str(tmp_path / "prod.token"))
    quire("contexts", "use", "prod")
    rows = [line.split()[:3] for line in quire("contexts", "list").out.splitlines()[1:]]
    assert rows == [["default", broker.url, "pulsar://prod:6650"], ["*", "prod", broker.url]]
    assert [row["current"] for row in quire("contexts", "list", "--json").json] == [False, True]
    assert "secret" not in profile.place().read_text()
    assert quire("contexts", "remove", "prod").out == "removed prod; default is the current context now\n"
    assert (tmp_path / "prod.token").exists()
    missing = quire("contexts", "remove", "prod")
    assert missing.code == NOT_FOUND and "there is no context 'prod'" in missing.err
    assert quire("login", "--forget").out == "forgotten\n"
    assert not profile.place().exists()


def test_a_wrong_name_is_wrong_use_with_the_nearest_one(broker: Recording) -> None:
    log_in(broker, "--context", "prod")
    for words in (("--context", "prdo", "topics", "list"), ("contexts", "use", "prdo")):
        ran = quire(*words)
        assert (ran.code, ran.out) == (WRONG_USE, "")
        assert ran.err == "quire: there is no context 'prdo': did you mean 'prod'?\n"
    strange = quire(
        "login", "--context", "a b", "--admin-url", broker.url, "--service-url", "pulsar://prod:6650"
    )
    assert strange.code == WRONG_USE and "letters" in strange.err
    assert [row["context"] for row in quire("contexts", "list", "--json").json] == ["prod"]


def test_a_login_uses_the_addresses_of_the_environment(
    broker: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_ADMIN_URL", broker.url)
    monkeypatch.setenv("QUIRE_SERVICE_URL", "pulsar://there:6650")
    assert quire("login").code == 0
    assert profile.load() == {"admin_url": broker.url, "service_url": "pulsar://there:6650"}


def test_one_address_alone_is_refused_and_a_later_login_keeps_both(broker: Recording, tmp_path: Path) -> None:
    alone = quire("login", "--context", "prod", "--admin-url", broker.url)
    assert alone.code == WRONG_USE and "give --service-url, too" in alone.err
    assert not profile.place().exists() and broker.asked == []
    log_in(broker, "--context", "prod")
    (tmp_path / "new.token").write_text("secret")
    assert quire("login", "--context", "prod", "--token-file", str(tmp_path / "new.token")).code == 0
    (row,) = quire("contexts", "list", "--json").json
    assert (row["admin_url"], row["service_url"]) == (broker.url, "pulsar://prod:6650")
    assert row["token_file"].endswith("new.token")


def test_a_login_without_a_name_leaves_the_current_context_alone(broker: Recording) -> None:
    log_in(broker, "--context", "prod")
    quire("contexts", "use", "prod")
    log_in(broker)
    assert [row["context"] for row in quire("contexts", "list", "--json").json] == ["default", "prod"]
    assert quire("login", "--forget").out == "forgotten\n"
    assert quire("login", "--forget").out == "there was nothing to forget\n"
    wrong = quire("login", "--forget", "--context", "prdo")
    assert wrong.code == WRONG_USE and "did you mean 'prod'?" in wrong.err
    assert [row["context"] for row in quire("contexts", "list", "--json").json] == ["prod"]


def test_any_path_can_be_remembered(broker: Recording, tmp_path: Path) -> None:
    folder = tmp_path / "a \U0001f511 \x7f"
    folder.mkdir()
    (folder / "token").write_text("secret")
    log_in(broker, "--token-file", str(folder / "token"))
    assert profile.load()["token_file"] == str(folder / "token")


def test_certificates_of_a_context_go_only_to_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"tls_certificate": "/test/c", "tls_key": "/test/k", "tls_trust_certs": "/test/a"}
    test = {"admin_url": "http://test", **files}
    profile._write(profile.Contexts({"prod": {"admin_url": "http://prod"}, "test": test}, "test"))
    own, other = {"admin_url": "http://test"}, {"admin_url": "http://other"}
    assert take_connection(dict(own))[0] == ClientTls("/test/a", "/test/c", "/test/k")
    assert take_connection(dict(other))[0] == ClientTls("/test/a", "", "")
    assert take_connection(other | {"tls_certificate": "/c"})[0].certificate == "/c"
    monkeypatch.setenv("QUIRE_TLS_CERTIFICATE", "/env/c")
    monkeypatch.setenv("QUIRE_TOKEN", "x")
    assert take_connection(dict(own))[0].certificate == "/env/c"
    with click.Context(click.Command("any", params=[])) as context:
        profile._choose(context, click.Option(["--context"]), "prod")
        tls, credentials = take_connection({"admin_url": "http://prod"})
        assert (tls.certificate, credentials) == ("", NOBODY)


def test_credentials_of_a_context_go_only_to_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    prod = {"admin_url": "http://prod", "service_url": "pulsar://prod", "token_file": "/prod/token"}
    test = {"admin_url": "http://test", "service_url": "pulsar://test", "token_file": "/test/token"}
    profile._write(profile.Contexts({"prod": prod, "test": test}, "test"))
    monkeypatch.setenv("QUIRE_TOKEN", "x")
    command = click.Command("any", params=[])
    with click.Context(command) as context:
        profile._choose(context, click.Option(["--context"]), "prod")
        assert _presented({}, {"admin_url": "http://prod"}) == Credentials(token_file="/prod/token")
        assert _presented({}, {"admin_url": "http://test"}) == Credentials(token="x")
        given = {"token_file": "/given"}
        assert _presented(given, {"admin_url": "http://prod"}) == Credentials(token_file="/given")
        monkeypatch.delenv("QUIRE_TOKEN")
        assert _presented({}, {"admin_url": "http://test"}) == NOBODY
    assert _presented({}, {"admin_url": "http://prod"}) == NOBODY
    assert _presented({}, {"admin_url": "http://test"}) == Credentials(token_file="/test/token")


def test_a_malformed_file_is_refused_and_kept() -> None:
    profile.place().parent.mkdir()
    for text in ("token = 'x'\n", "contexts = 1\n", "[contexts.prod]\nport = 1\n", "current = 5\n", "= ="):
        profile.place().write_text(text)
        ran = quire("contexts", "list")
        assert ran.code == WRONG_USE and "run `quire login` again" in ran.err
        assert profile.place().read_text() == text
