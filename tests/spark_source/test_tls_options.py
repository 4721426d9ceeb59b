"""The options of TLS for reading and writing, checked before anything is asked of a broker."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from quire.runtime.errors import ConfigurationError
from quire.runtime.tls import ClientTls
from quire.security.certs import Authority
from quire.spark_source.options import parse
from quire.spark_source.sink.options import parse as parse_sink

SOURCE = {"service_url": "https://localhost:8443", "topic": "t"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("certs")
    certificate, key = Authority.make(directory).sign_user("alice", 1)
    return {
        "tls_trust_certs": str(directory / "authority.pem"),
        "tls_certificate": str(certificate),
        "tls_key": str(key),
    }


def test_files_go_to_brokers_and_executors(files: dict[str, str]) -> None:
    expected = ClientTls(*files.values())
    found = parse(SOURCE | files)
    assert found.tls == expected
    assert pickle.loads(pickle.dumps(found.broker))._admin.tls == expected
    assert parse_sink(SOURCE | files | {"broker_url": "pulsar+ssl://localhost:6651"}).tls == expected


def test_without_them_the_systems_authorities_are_trusted() -> None:
    assert parse(SOURCE).tls == ClientTls()


@pytest.mark.parametrize("name", ["tls_trust_certs", "tls_certificate", "tls_key"])
def test_a_file_that_cannot_be_used_is_named(files: dict[str, str], name: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    for parsed in (parse, parse_sink):
        with pytest.raises(ConfigurationError, match=r"missing\.pem"):
            parsed(SOURCE | files | {name: missing})
