"""A standalone server with TLS, as `quire certs` makes it, called by the command, the stock client and by hand."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.cli.running import Ran, quire
from tests.cli.secure import Served, running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With its plain ports closed."""
    directory = tmp_path_factory.mktemp("tls")
    certs = directory / "certs"
    assert quire("certs", "make", str(certs)).code == 0
    assert quire("certs", "user", str(certs), "alice").code == 0
    file = certs / "security.toml"
    file.write_text(
        file.read_text() + 'plain = false\nlisten = "0.0.0.0:0"\nhttp = "127.0.0.1:0"\n',
    )
    yield from running(directory, file)


def trusting(served: Served, *words: str) -> Ran:
    return quire(*words, "--tls-trust-certs", str(served.certs / "authority.pem"))


def test_messages_go_to_and_fro(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("one\ntwo\n")
    url = ("--service-url", served.service_url)
    assert trusting(served, "produce", "lines", str(file), *url).code == 0
    words = ("consume", "lines", "--subscription", "s", "--from", "earliest", "--count", "2", *url)
    trusted = os.environ | {"QUIRE_TLS_TRUST_CERTS": str(served.certs / "authority.pem")}
    read = subprocess.run([sys.executable, "-m", "quire", *words], capture_output=True, env=trusted)
    assert read.stdout == b"one\ntwo\n", read.stderr


def test_the_commands_that_a_start_prints_work_as_they_are(served: Served) -> None:
    printed = (served.data / "log").read_text()
    publish, read = [line.strip() for line in printed.splitlines() if line.startswith("    ")]
    assert f"The console in a browser: {served.http_url}/console\n" in printed
    for command, out in ((publish, b"published 1 message"), (read, b"Hello, Quire\n")):
        done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60)
        assert done.returncode == 0 and done.stdout.startswith(out), (command, done)


def test_operators_ask_by_https(served: Served) -> None:
    found = trusting(served, "topics", "create", "made", "--admin-url", served.http_url)
    assert found.code == 0, found.err
    urls = trusting(served, "topics", "lookup", "made", "--admin-url", served.http_url, "--json").json
    assert urls["brokerUrlTls"] == served.service_url and urls["httpUrlTls"] == served.http_url
    assert urls["brokerUrl"] == urls["httpUrl"] == ""


def test_check_deletes_its_topics_by_https(served: Served) -> None:
    found = trusting(
        served,
        *("check", "--seconds", "1", "--rate", "50", "--topics", "1", "--json"),
        *("--service-url", served.service_url, "--admin-url", served.http_url),
    )
    assert found.json["topics_kept"] == []


def test_processes_of_a_benchmark_use_tls(served: Served) -> None:
    words = ("bench", "produce", "--messages", "100", "--warm-up", "0s", "--json")
    urls = ("--service-url", served.service_url, "--admin-url", served.http_url)
    found = trusting(served, *words, *urls).json
    assert (found["publish"]["messages"], found["topics_kept"]) == (100, [])


def test_who_does_not_trust_the_authority_is_told_in_one_sentence(served: Served, tmp_path: Path) -> None:
    for words in (
        ("produce", "lines", os.devnull, "--service-url", served.service_url),
        ("topics", "list", "--admin-url", served.http_url),
    ):
        found = quire(*words)
        assert found.code == 2
        assert "is not trusted: its certificate is not accepted" in found.err
        assert found.err.count("\n") == 1
    missing = quire(
        "topics", "list", "--admin-url", served.http_url, "--tls-trust-certs", str(tmp_path / "no")
    )
    assert missing.code == 2 and f"cannot read the authority {tmp_path}/no: " in missing.err


def test_a_certificate_for_another_host_is_refused(served: Served) -> None:
    elsewhere = served.service_url.replace("127.0.0.1", "127.0.0.2")
    found = trusting(served, "produce", "lines", os.devnull, "--service-url", elsewhere)
    assert found.code == 2 and "IP address mismatch" in found.err


def test_the_stock_client_publishes_and_reads(served: Served, tmp_path: Path) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "log"))
    trusted = str(served.certs / "authority.pem")
    client = pulsar.Client(
        served.service_url, tls_trust_certs_file_path=trusted, tls_validate_hostname=True, logger=logger
    )
    consumer = client.subscribe("stock", "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer("stock")
    for number in range(100):
        producer.send_async(b"%d" % number * 1000, lambda *_: None)
    producer.flush()
    assert [consumer.receive(5000).data() for _ in range(100)] == [b"%d" % n * 1000 for n in range(100)]
    client.close()


def test_the_stock_client_refuses_a_strange_authority(served: Served, tmp_path: Path) -> None:
    assert quire("certs", "make", str(tmp_path / "other")).code == 0
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "log"))
    client = pulsar.Client(
        served.service_url,
        tls_trust_certs_file_path=str(tmp_path / "other" / "authority.pem"),
        operation_timeout_seconds=2,
        logger=logger,
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("stock")
    client.close()


def test_health_is_told_by_https(served: Served) -> None:
    context = ssl.create_default_context(cafile=str(served.certs / "authority.pem"))
    with urllib.request.urlopen(f"{served.http_url}/health", context=context) as answer:
        assert answer.status == 200


def test_keys_are_for_their_owner_and_files_are_not_written_over(served: Served) -> None:
    assert (served.certs / "authority-key.pem").stat().st_mode & 0o777 == 0o600
    again = quire("certs", "make", str(served.certs))
    assert again.code == 1 and "already exists" in again.err
    assert quire("certs", "user", str(served.certs), "../mallory").code == 2


@pytest.mark.parametrize("text", ["[tls]\n", "[tls", '[tls]\ncertificate = "gone.pem"\nkey = "gone.pem"\n'])
def test_a_server_with_a_wrong_security_file_does_not_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "security.toml"
    file.write_text(text)
    found = quire(
        "standalone", "--data", str(tmp_path / "data"), "--security", str(file), "--listen", "127.0.0.1:0"
    )
    assert found.code == 2 and found.err.count("\n") == 1, found
    assert not (tmp_path / "data" / "metadata.db").exists()


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One that knows its clients by their certificates."""
    directory = tmp_path_factory.mktemp("mutual")
    certs = directory / "certs"
    assert quire("certs", "make", str(certs)).code == 0
    for role in ("admin", "alice"):
        assert quire("certs", "user", str(certs), role).code == 0
    file = certs / "security.toml"
    file.write_text(
        file.read_text()
        + 'plain = false\nlisten = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n'
        + '[authentication.certificate]\n[authorization]\nsuperusers = ["admin"]\n'
    )
    yield from running(directory, file)


def test_a_certificate_says_who_comes(knowing: Served, tmp_path: Path) -> None:
    def client_of(role: str) -> pulsar.Client:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / role))
        shown = (str(knowing.certs / f"{role}.pem"), str(knowing.certs / f"{role}-key.pem"))
        return pulsar.Client(
            knowing.service_url,
            authentication=pulsar.AuthenticationTLS(*shown) if role else None,
            tls_trust_certs_file_path=str(knowing.certs / "authority.pem"),
            operation_timeout_seconds=3,
            logger=logger,
        )

    def shown(role: str) -> tuple[str, ...]:
        files = (str(knowing.certs / f"{role}.pem"), "--tls-key", str(knowing.certs / f"{role}-key.pem"))
        return ("--tls-certificate", *files, "--admin-url", knowing.http_url)

    for role in ("alice", ""):
        client = client_of(role)
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("known")
        client.close()
    assert trusting(knowing, "topics", "list", *shown("alice")).code != 0
    granted = trusting(knowing, "permissions", "grant", "alice", "public/default", "produce", *shown("admin"))
    assert granted.code == 0, granted.err
    client = client_of("alice")
    producer = client.create_producer("known")
    producer.send(b"it is alice")
    with pytest.raises(pulsar.PulsarException):
        client.subscribe("known", "s")
    client.close()


def test_a_certificate_that_ends_tomorrow_is_told_of(served: Served) -> None:
    """As it is in the file now, which is what the next connection gets."""

    def told() -> Ran:
        return trusting(served, "doctor", "--admin-url", served.http_url, "--json")

    assert "certificate of [tls]" not in told().out
    assert quire("certs", "make", str(served.certs), "--name", "soon", "--days", "1").code == 0
    before = {name: (served.certs / name).read_bytes() for name in ("node.pem", "node-key.pem")}
    for name in before:
        (served.certs / name).write_bytes((served.certs / name.replace("node", "soon")).read_bytes())
    found = told()
    for name, content in before.items():
        (served.certs / name).write_bytes(content)
    assert found.code == 4 and "certificate of [tls]) expires on" in found.out
