"""What kazoo does not know of TLS: the next answer may be here although the socket has nothing more to read."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.metadata.zookeeper_client import _Handler
from quire.metadata.zookeeper_url import parse_url
from quire.runtime.tls import ClientTls
from quire.security.certs import Authority
from quire.security.configuration import Tls
from quire.security.tls import for_clients


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    Authority.make(directory).sign_process("node", ["localhost"], 1)
    return directory


@pytest.fixture
def port(certs: Path) -> Iterator[int]:
    """A server that says two answers in one record, and then nothing."""
    context = for_clients(Tls(certificate=f"{certs}/node.pem", key=f"{certs}/node-key.pem")).current()
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        try:
            accepted, _ = listener.accept()
            with context.wrap_socket(accepted, server_side=True) as wrapped:
                wrapped.sendall(b"onetwo")
                ended.wait(30)
        except OSError:
            pass  # the client does not trust this server

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    ended.set()
    listener.close()
    thread.join()


def test_what_is_decrypted_can_be_read(certs: Path, port: int) -> None:
    handler = _Handler(5.0, ClientTls(f"{certs}/authority.pem").context)
    sock = handler.create_connection(("127.0.0.1", port), "localhost", 5.0, use_ssl=False)
    try:
        assert handler.select([sock], [], [], 5.0)[0] == [sock]
        assert sock.recv(3) == b"one"
        begin = time.monotonic()
        assert handler.select([sock], [], [], 5.0) == ([sock], [], [])
        assert time.monotonic() - begin < 2.5
        assert sock.recv(3) == b"two"
        assert handler.select([sock], [], [], 0.0) == ([], [], [])
    finally:
        sock.close()


def test_a_server_for_another_host_is_refused_and_why(certs: Path, port: int) -> None:
    handler = _Handler(5.0, ClientTls(f"{certs}/authority.pem").context)
    with pytest.raises(OSError, match="certificate is not accepted"):
        handler.create_connection(("127.0.0.1", port), "elsewhere.example", 5.0)
    assert "not accepted" in handler.refused


def test_the_port_with_tls_is_another_one() -> None:
    found = parse_url("zk+ssl://a,b:1/root?session_timeout=5s")
    assert (found.hosts, found.chroot, found.is_tls) == ("a:2281,b:1", "/root", True)
    assert not parse_url("zk://a").is_tls
