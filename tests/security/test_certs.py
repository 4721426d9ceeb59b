"""What `quire certs` makes: for whom it is good, and that keys are for their owner alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from quire.runtime.clock import SystemClock
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotAuthenticated
from quire.security.certificates import CertificateRoles, RoleRule, is_of_a_process
from quire.security.certs import Authority
from quire.security.configuration import Certificate


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_a_key_is_for_its_owner_alone(certs: Path) -> None:
    for file in certs.glob("*-key.pem"):
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_users_certificate_is_not_one_of_a_process(certs: Path) -> None:
    assert is_of_a_process(read(certs / "node.pem"))
    assert not is_of_a_process(read(certs / "alice.pem"))


def test_an_authority_is_loaded_and_signs_more(certs: Path) -> None:
    certificate, _ = Authority.load(certs).sign_user("bob", 1)
    authority = read(certs / "authority.pem")
    read(certificate).verify_directly_issued_by(authority)
    assert RoleRule().role_of(read(certificate)) == "bob"


def test_nothing_is_written_over(certs: Path) -> None:
    before = (certs / "node.pem").read_bytes()
    with pytest.raises(AlreadyExists, match=r"node.*already exists"):
        Authority.load(certs).sign_process("node", ["localhost"], 1)
    assert (certs / "node.pem").read_bytes() == before


@pytest.mark.parametrize("name", ["", "../alice", "a/b", "/etc/passwd", ".", "..", ".hidden", "a\nb"])
def test_a_name_is_no_path(certs: Path, name: str) -> None:
    with pytest.raises(ConfigurationError):
        Authority.load(certs).sign_user(name, 1)


def test_a_directory_without_an_authority_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no usable certificate authority"):
        Authority.load(tmp_path)


def test_a_role_is_the_common_name_or_what_a_rule_finds(certs: Path) -> None:
    alice = read(certs / "alice.pem")
    assert RoleRule().role_of(alice) == "alice"
    assert RoleRule("^CN=(al[^,]*)$").role_of(alice) == "alice"
    assert RoleRule("O=([^,]+)").role_of(alice) == ""


def test_a_comma_in_a_name_makes_no_second_field(tmp_path: Path) -> None:
    certificate, _ = Authority.make(tmp_path).sign_user("eve,CN=admin", 1)
    assert RoleRule("(?:^|[^\\\\],)CN=([^,\\\\]+)").role_of(read(certificate)) == ""
    assert RoleRule().role_of(read(certificate)) == "eve,CN=admin"


def test_a_name_that_looks_like_a_field_is_none(tmp_path: Path) -> None:
    certificate, _ = Authority.make(tmp_path).sign_user("OU=admin", 1)
    assert RoleRule("OU=([^,]+)").role_of(read(certificate)) == ""


async def test_a_certificate_that_has_expired_is_no_credential(certs: Path) -> None:
    class Later(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 3_700 * 86_400_000

    shown = x509.load_pem_x509_certificate((certs / "alice.pem").read_bytes())
    der = shown.public_bytes(serialization.Encoding.DER)
    assert (await CertificateRoles(Certificate(), SystemClock()).authenticate(der)).role == "alice"
    with pytest.raises(NotAuthenticated, match="has expired"):
        await CertificateRoles(Certificate(), Later()).authenticate(der)


@pytest.mark.parametrize("rule", ["(", "CN=.*", "(a)(b)"])
def test_a_rule_that_names_no_role_is_refused(rule: str) -> None:
    with pytest.raises(ConfigurationError, match="the certificate pattern"):
        RoleRule(rule)
