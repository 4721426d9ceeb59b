"""`quire zookeeper` with a security file: a port with TLS for who shows a certificate of the authority."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from quire.metadata.zookeeper import ZooKeeperStore
from quire.runtime.credentials import Credentials
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.runtime.tls import ClientTls
from quire.security.certs import Authority
from quire.testing.zookeeper_server import classpath, free_port, java
from tests.cli.running import quire

START_S = 60.0


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    Authority.make(tmp_path).sign_process("node", ["localhost"], 1)
    (tmp_path / "security.toml").write_text(
        '[internal]\ncertificate = "node.pem"\nkey = "node-key.pem"\nauthority = "authority.pem"\n'
    )
    (tmp_path / "password").write_text("secret")
    return tmp_path


async def test_it_lets_in_who_shows_a_certificate(certs: Path) -> None:
    try:
        java(), classpath()
    except ConfigurationError as error:
        pytest.skip(str(error))
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quire", "zookeeper", "--data", str(certs / "data")),
        *("--listen", f"127.0.0.1:{free_port()}", "--listen-tls", f"127.0.0.1:{port}"),
        *("--security", str(certs / "security.toml")),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    files = [str(certs / name) for name in ("authority.pem", "node.pem", "node-key.pem")]
    login = Credentials(user="quire", password_file=str(certs / "password"))
    url = f"zk+ssl://localhost:{port}/quire"
    try:
        store = await ZooKeeperStore.open(url, ClientTls(*files).context, login, connect_timeout_s=START_S)
        await store.create("/a", b"x")
        assert (await store.get("/a")).value == b"x"
        await store.close()
        with pytest.raises(Unavailable):
            await ZooKeeperStore.open(url, ClientTls(files[0]).context, login, connect_timeout_s=2)
        assert (certs / "data" / "tls.pem").stat().st_mode & 0o077 == 0
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--listen-tls", "127.0.0.1:2281"), "a security file require each other"),
        (("--security", "FILE"), "a security file require each other"),
        (("--security", "FILE", "--listen-tls", "127.0.0.1:0"), "must have a fixed port"),
        (("--security", "FILE", "--listen-tls", "127.0.0.1:2281"), "no certificate, key and authority"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, flags: tuple[str, ...], sentence: str) -> None:
    file = tmp_path / "security.toml"
    file.write_text('[audit]\nfile = "audit.jsonl"\n')
    words = [str(file) if word == "FILE" else word for word in flags]
    found = quire("zookeeper", "--data", str(tmp_path / "data"), *words)
    assert found.code == 2 and sentence in found.err
