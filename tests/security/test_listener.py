"""Connections that begin with a handshake: who gets in, and what those cost who do not."""

from __future__ import annotations

import asyncio
import resource
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.runtime.limits import HANDSHAKE_S
from quire.runtime.tls import ClientTls
from quire.security import followed, tls
from quire.security import listener as listening
from quire.security.certs import Authority
from quire.security.configuration import Tls
from quire.security.listener import TlsListener

EXPIRED = -0.001
"""Days: some seconds after it began to be valid."""


class Echo(asyncio.Protocol):
    """Says what it hears, and whether over TLS."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        shown = transport.get_extra_info("peercert") or {}
        name = dict(one[0] for one in shown.get("subject", ())).get("commonName", "nobody")
        secure = "tls" if transport.get_extra_info("ssl_object") else "plain"
        transport.write(f"{secure} {name}\n".encode())

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def bound() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(1024)
    sock.setblocking(False)
    return sock


def of_node(directory: Path, **more: Any) -> Tls:
    return Tls(
        certificate=str(directory / "node.pem"),
        key=str(directory / "node-key.pem"),
        authority=str(directory / "authority.pem"),
        **more,
    )


@asynccontextmanager
async def serving(configured: Tls, *, takes_plain: bool = False) -> AsyncIterator[TlsListener]:
    listener = TlsListener(bound(), tls.for_clients(configured), takes_plain=takes_plain)
    listener.start(Echo)
    try:
        yield listener
    finally:
        listener.close()


def client(directory: Path, name: str = "") -> ssl.SSLContext:
    authority = str(directory / "authority.pem")
    if not name:
        return ClientTls(authority).context()
    return ClientTls(authority, str(directory / f"{name}.pem"), str(directory / f"{name}-key.pem")).context()


async def said(listener: TlsListener, context: ssl.SSLContext | None, host: str = "127.0.0.1") -> str:
    """The first line over a new connection."""
    port = listener.address.rpartition(":")[2]
    name = {"server_hostname": host} if context else {}
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port), ssl=context, **name)  # type: ignore[arg-type]
        try:
            writer.write(b"")
            return (await reader.readline()).decode().strip()
        finally:
            writer.close()


async def test_a_client_that_trusts_the_authority_gets_in(certs: Path) -> None:
    async with serving(of_node(certs)) as listener:
        assert await said(listener, client(certs)) == "tls nobody"
        assert await said(listener, client(certs), "localhost") == "tls nobody"


async def test_who_trusts_another_authority_or_wants_another_host_does_not(
    certs: Path, strangers: Path
) -> None:
    async with serving(of_node(certs)) as listener:
        with pytest.raises(ssl.SSLCertVerificationError):
            await said(listener, client(strangers))
        with pytest.raises(ssl.SSLCertVerificationError, match="match"):
            await said(listener, client(certs), "elsewhere.example")
        assert await said(listener, client(certs)) == "tls nobody"


@pytest.mark.parametrize(("shown", "nobody"), [("none", True), ("optional", True), ("required", False)])
async def test_certificates_of_clients(certs: Path, strangers: Path, shown: str, nobody: bool) -> None:
    async with serving(of_node(certs, client_certificates=shown)) as listener:
        name = "nobody" if shown == "none" else "alice"
        assert await said(listener, client(certs, "alice")) == f"tls {name}"
        foreign = ssl.create_default_context(cafile=str(certs / "authority.pem"))
        foreign.load_cert_chain(strangers / "alice.pem", strangers / "alice-key.pem")
        for context, expected in ((client(certs), nobody), (foreign, shown == "none")):
            try:
                answer = await said(listener, context)
            except OSError:
                answer = ""  # in TLS 1.3 the refusal comes after the client's own end of the handshake
            assert answer == ("tls nobody" if expected else "")


async def test_an_expired_certificate_is_refused(tmp_path: Path, certs: Path) -> None:
    authority = Authority.make(tmp_path)
    authority.sign_process("node", ["127.0.0.1"], EXPIRED)
    authority.sign_user("alice", EXPIRED)
    shutil.copytree(tmp_path, tmp_path / "good", ignore=lambda *_: ["good", "node.pem", "node-key.pem"])
    Authority.load(tmp_path / "good").sign_process("node", ["127.0.0.1"], 1)
    async with serving(of_node(tmp_path)) as listener:
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await said(listener, client(tmp_path))
    async with serving(of_node(tmp_path / "good", client_certificates="required")) as listener:
        with pytest.raises((OSError, AssertionError)):
            assert await said(listener, client(tmp_path, "alice"))


async def test_old_versions_are_refused(certs: Path) -> None:
    old = ssl.create_default_context(cafile=str(certs / "authority.pem"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(of_node(certs)) as listener:
        assert await said(listener, old) == "tls nobody"
    async with serving(of_node(certs, minimum="1.3")) as listener:
        assert await said(listener, client(certs)) == "tls nobody"
        with pytest.raises(OSError):
            await said(listener, old)


async def test_new_connections_get_a_new_certificate_and_old_ones_stay(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "LOOK_S", 0.0)
    for name in ("authority.pem", "authority-key.pem"):
        shutil.copy(certs / name, tmp_path / name)
    Authority.load(tmp_path).sign_process("node", ["127.0.0.1"], 1)
    async with serving(of_node(tmp_path)) as listener:
        port = int(listener.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(certs))
        assert await reader.readline() == b"tls nobody\n"
        for name in ("node.pem", "node-key.pem"):
            (tmp_path / name).unlink()
        Authority.load(tmp_path).sign_process("node", ["elsewhere.example"], 1)
        with pytest.raises(ssl.SSLCertVerificationError):
            await said(listener, client(certs))
        assert await said(listener, client(certs), "elsewhere.example") == "tls nobody"
        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        writer.close()


async def test_the_first_byte_tells_plain_from_tls_where_both_are_taken(certs: Path) -> None:
    async with serving(of_node(certs), takes_plain=True) as listener:
        assert await said(listener, client(certs)) == "tls nobody"
        reader, writer = await asyncio.open_connection(*listener.address.split(":"))
        writer.write(b"hello\n")
        assert await reader.readline() == b"plain nobody\n"
        assert await reader.readline() == b"hello\n"
        writer.close()


async def test_bytes_that_are_no_handshake_cost_one_connection(certs: Path) -> None:
    async with serving(of_node(certs)) as listener:
        reader, writer = await asyncio.open_connection(*listener.address.split(":"))
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        await reader.read()
        writer.close()
        assert await said(listener, client(certs)) == "tls nobody"
        assert listener.handshakes_failed_total == 1


async def test_who_stalls_is_dropped_by_those_who_come_after(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 3)
    async with serving(of_node(certs)) as listener:
        stalled = [await asyncio.open_connection(*listener.address.split(":")) for _ in range(3)]
        while listener.handshakes_under_way < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await said(listener, client(certs)) == "tls nobody"
        async with asyncio.timeout(5):
            assert await stalled[0][0].read() == b"", "the oldest made room"
        for _, writer in stalled:
            writer.close()


async def test_who_stalls_for_too_long_is_dropped(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert HANDSHAKE_S <= 10
    monkeypatch.setattr(listening, "HANDSHAKE_S", 0.05)
    async with serving(of_node(certs)) as listener:
        reader, writer = await asyncio.open_connection(*listener.address.split(":"))
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
        assert listener.handshakes_failed_total == 1


async def test_a_closed_listener_lets_nobody_in_and_nobody_go(certs: Path) -> None:
    async with serving(of_node(certs)) as listener:
        port = int(listener.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(certs))
        assert await reader.readline() == b"tls nobody\n"
        listener.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        writer.close()


async def test_two_thousand_that_stall_keep_nobody_else_waiting(certs: Path) -> None:
    count = 2_000
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < 2 * count + 500:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, 2 * count + 500), most))
    begun = b"\x16\x03\x01\x02\x00\x01\x00"  # of a handshake, which promises five hundred bytes more
    stalled: list[socket.socket] = []
    try:
        async with serving(of_node(certs)) as listener:
            address = ("127.0.0.1", int(listener.address.rpartition(":")[2]))
            reader, writer = await asyncio.open_connection(*address, ssl=client(certs))
            await reader.readline()
            for number in range(count):
                stalled.append(socket.create_connection(address))
                stalled[-1].sendall(begun)
                if number % 100 == 0:
                    writer.write(b"still here\n")
                    async with asyncio.timeout(5):
                        assert await reader.readline() == b"still here\n"
                    assert await said(listener, client(certs)) == "tls nobody"
            assert 0 < listener.handshakes_under_way <= listening.HANDSHAKES_MAX
            writer.close()
    finally:
        for sock in stalled:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))
