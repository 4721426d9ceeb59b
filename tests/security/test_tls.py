"""Contexts out of files: what cannot be used is told by its name, and what changes is taken from then on."""

from __future__ import annotations

import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quire.runtime.errors import ConfigurationError
from quire.runtime.tls import ClientTls
from quire.security import tls
from quire.security.certs import Authority
from quire.security.configuration import Configuration, Internal, Tls, load


def of_node(directory: Path, **more: object) -> Tls:
    return Tls(certificate=str(directory / "node.pem"), key=str(directory / "node-key.pem"), **more)  # type: ignore[arg-type]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_context_follows_its_files(certs: Path, tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "authority.pem"
    shutil.copy(certs / "authority.pem", file)
    followed = tls.FollowedContext(ClientTls(authority=str(file)).context, [str(file)], clock)
    first = followed.current()
    clock.now += 10
    assert followed.current() is first

    file.write_text("half a certif")
    clock.now += 10
    assert followed.current() is first, "what cannot be used changes nothing"

    Authority.make(tmp_path / "new")
    (tmp_path / "new" / "authority.pem").rename(file)
    assert followed.current() is first, "files are not looked at all the time"
    clock.now += 10
    assert followed.current() is not first


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "other key", "binary", "key", "pass phrase"])
def test_a_file_that_cannot_be_used_is_named(
    certs: Path, strangers: Path, tmp_path: Path, damage: str
) -> None:
    for name in ("node.pem", "node-key.pem"):
        shutil.copy(certs / name, tmp_path / name)
    certificate, key = tmp_path / "node.pem", tmp_path / "node-key.pem"
    match damage:
        case "gone":
            certificate.unlink()
        case "empty":
            certificate.write_text("")
        case "cut":
            certificate.write_text(certificate.read_text()[:300])
        case "other key":
            shutil.copy(strangers / "node-key.pem", key)
        case "binary":
            certificate.write_bytes(bytes(range(256)))
        case "key":
            key.write_text(key.read_text()[:60])
        case "pass phrase":
            key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(ConfigurationError, match=r"node(-key)?\.pem") as refused:
        tls.for_clients(of_node(tmp_path))
    secret = (certs / "node-key.pem").read_text().splitlines()[1]
    assert secret not in str(refused.value)


def test_an_authority_that_is_none_is_named(tmp_path: Path, certs: Path) -> None:
    file = tmp_path / "authority.pem"
    for text in ("", "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=r"authority\.pem"):
            ClientTls(authority=str(file)).context()


def test_half_a_pair_is_refused(certs: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a key: set both"):
        ClientTls(certificate=str(certs / "alice.pem")).context()
    with pytest.raises(ConfigurationError, match="needs a certificate: set both"):
        ClientTls(key=str(certs / "alice-key.pem")).context()


def test_client_certificates_need_an_authority(certs: Path) -> None:
    with pytest.raises(ConfigurationError, match="no authority"):
        tls.for_clients(of_node(certs, client_certificates="required"))


def test_links_between_processes_take_what_tls_has(certs: Path) -> None:
    authority = str(certs / "authority.pem")
    assert tls.between_processes(Configuration()) is None
    assert tls.between_processes(Configuration(tls=of_node(certs))) is None, "without an authority of its own"
    both = tls.between_processes(
        Configuration(tls=of_node(certs, authority=authority), internal=Internal(required=True))
    )
    assert both is not None and both.required
    with pytest.raises(ConfigurationError, match="internal"):
        tls.between_processes(Configuration(tls=of_node(certs), internal=Internal(required=True)))


def test_paths_are_relative_to_the_file_and_unknown_keys_are_refused(certs: Path, tmp_path: Path) -> None:
    file = tmp_path / "security.toml"
    file.write_text('[tls]\ncertificate = "node.pem"\nkey = "/keys/node-key.pem"\n')
    found = load(str(file)).tls
    assert found is not None
    assert (found.certificate, found.key) == (str(tmp_path / "node.pem"), "/keys/node-key.pem")
    for text in ("[tls]\nplian = false\n", "[tsl]\n", '[tls]\nminimum = "1.0"\n', "[tls\n"):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=r"security\.toml"):
            load(str(file))
    assert load("") == Configuration()


def test_a_certificate_for_servers_only_leaves_processes_plain_or_is_refused(
    certs: Path, tmp_path: Path
) -> None:
    files = server_only(tmp_path)
    assert tls.between_processes(Configuration(tls=files)) is None
    assert tls.to_brokers(Configuration(tls=files)) is not None
    with pytest.raises(ConfigurationError, match="servers only"):
        tls.between_processes(Configuration(tls=files, internal=Internal()))
    own = Internal(
        certificate=str(certs / "node.pem"),
        key=str(certs / "node-key.pem"),
        authority=str(certs / "authority.pem"),
    )
    assert tls.between_processes(Configuration(tls=files, internal=own)) is not None


def server_only(directory: Path) -> Tls:
    """As public authorities sign them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (directory / "server.pem").write_bytes(certificate.public_bytes(pem))
    (directory / "server-key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )
    return Tls(
        certificate=str(directory / "server.pem"),
        key=str(directory / "server-key.pem"),
        authority=str(directory / "server.pem"),
    )


@pytest.mark.parametrize("shows_itself", [True, False])
def test_a_gateway_where_nobody_logs_in_shows_no_certificate(
    certs: Path, monkeypatch: pytest.MonkeyPatch, shows_itself: bool
) -> None:
    """Brokers would take each of its clients for the gateway."""
    files: list[ClientTls] = []
    monkeypatch.setattr(tls, "_client", files.append)
    tls.to_brokers(Configuration(tls=of_node(certs)), shows_itself=shows_itself)
    assert bool(files[-1].certificate) == shows_itself


def test_a_peer_can_ask_for_no_second_handshake(certs: Path) -> None:
    assert tls.for_clients(of_node(certs)).current().options & ssl.OP_NO_RENEGOTIATION
