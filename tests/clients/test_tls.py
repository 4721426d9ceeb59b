"""The Go and Java programs of docs/first-hour.md, unchanged, against a server that takes TLS alone.

Whom to trust the system is told. They are built with the modules and jars of this folder's programs (`programs`).
Python's TLS is played in `tests/cli/test_tls.py`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import quire
from tests.cli.secure import Served, running
from tests.clients import programs
from tests.clients.test_examples import EXAMPLES, check, ran


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("tls")
    certs = directory / "certs"
    assert quire("certs", "make", str(certs)).code == 0
    file = certs / "security.toml"
    file.write_text(file.read_text() + 'plain = false\nlisten = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n')
    yield from running(directory, file)


@pytest.mark.skipif(shutil.which("go") is None, reason="there is no go")
def test_go(served: Served, tmp_path: Path) -> None:
    programs.go()  # fetches and compiles the client, which no other test then does at the same time
    program = str(tmp_path / "first")
    modules = f"-modfile={programs.HERE / 'go' / 'go.mod'}"
    built = ran(["go", "build", modules, "-o", program, "."], EXAMPLES / "go", GOPROXY="off")
    if "GOPROXY=off" in built.stderr:
        pytest.skip("the Go client was not fetched yet")
    assert built.returncode == 0, built.stderr
    authority = served.certs / "authority.pem"
    check(ran([program, served.service_url], tmp_path, SSL_CERT_FILE=str(authority)), "Go")
    assert quire("certs", "make", str(tmp_path / "other")).code == 0
    strange = str(tmp_path / "other" / "authority.pem")
    refused = ran([program, served.service_url], tmp_path, SSL_CERT_FILE=strange, SSL_CERT_DIR=str(tmp_path))
    assert refused.returncode != 0 and "certificate" in refused.stdout + refused.stderr


@pytest.mark.skipif(shutil.which("mvn") is None, reason="there is no mvn")
def test_java(served: Served, tmp_path: Path) -> None:
    store = tmp_path / "trusted.p12"
    words = ["keytool", "-importcert", "-noprompt", "-alias", "quire", "-storetype", "PKCS12"]
    words += ["-keystore", str(store), "-storepass", "changeit", "-file", str(served.certs / "authority.pem")]
    subprocess.run(words, check=True, capture_output=True)
    trusting = [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=changeit"]
    jars = programs.java()[3]
    program = str(EXAMPLES / "java" / "src" / "main" / "java" / "First.java")
    check(ran(["java", *trusting, "-cp", jars, program, served.service_url], tmp_path), "Java")
