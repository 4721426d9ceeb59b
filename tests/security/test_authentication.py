"""All providers together: which one is asked, whose names are whose, and what a header shows."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

import bcrypt
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from quire.runtime.clock import SystemClock
from quire.runtime.errors import NotAuthenticated
from quire.security.authentication import (
    CREDENTIALS_BYTES_MAX,
    REQUEST_ID,
    Authentication,
    make_authentication,
)
from quire.security.configuration import AuthenticationConfiguration, Basic, Certificate, Token
from quire.security.identity import Identity, Presented

SECRET = b"0123456789abcdef0123456789abcdef-secret"
TOKEN = jwt.encode({"alg": "HS256"}, {"sub": "app"}, OctKey.import_key(SECRET))


@pytest.fixture
def doors(tmp_path: Path) -> Authentication:
    (tmp_path / "users").write_text(f"app:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    (tmp_path / "secret.key").write_bytes(SECRET)
    configuration = AuthenticationConfiguration(
        token=Token(secret_key=str(tmp_path / "secret.key"), prefix="token:"),
        basic=Basic(str(tmp_path / "users"), prefix="user:"),
        certificate=Certificate(prefix="cert:"),
    )
    return make_authentication(configuration, SystemClock())


async def test_a_name_of_one_provider_is_no_name_of_another(doors: Authentication, certs: Path) -> None:
    certificate = ssl.PEM_cert_to_DER_cert((certs / "alice.pem").read_text())
    shown = [
        Presented("token", TOKEN.encode()),
        Presented("basic", b"app:secret"),
        Presented("tls", certificate=certificate),
    ]
    assert [(await doors.authenticate(one)).role for one in shown] == ["token:app", "user:app", "cert:alice"]


async def test_a_name_that_is_too_long_with_its_prefix_is_none(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_bytes(SECRET)
    settings = Token(secret_key=str(tmp_path / "secret.key"), prefix="p" * 10)
    doors = make_authentication(AuthenticationConfiguration(token=settings), SystemClock())
    long = jwt.encode({"alg": "HS256"}, {"sub": "a" * 250}, OctKey.import_key(SECRET))
    with pytest.raises(NotAuthenticated, match="is not a role"):
        await doors.authenticate(Presented("token", long.encode()))


@pytest.mark.parametrize(
    ("header", "method"),
    [
        ("", "none"),
        (f"Bearer {TOKEN}", "token"),
        (f"bearer  {TOKEN} ", "token"),
        ("Basic " + base64.b64encode(b"app:secret").decode(), "basic"),
        ("Basic not-base64", "basic"),
        ("Digest x", "neither Bearer nor Basic"),
        ("token x", "neither Bearer nor Basic"),
        ("tls", "neither Bearer nor Basic"),
        (TOKEN, "neither Bearer nor Basic"),
    ],
)
async def test_what_a_header_shows(doors: Authentication, header: str, method: str) -> None:
    shown = doors.in_request({"Authorization": header, REQUEST_ID: "mine-1"}, b"", "/10.0.0.1:4711")
    assert (shown.method, shown.address, shown.by, shown.request) == (
        method,
        "/10.0.0.1:4711",
        "HTTP",
        "mine-1",
    )
    if method == "token" or header.endswith("="):
        assert (await doors.authenticate(shown)).role.endswith(":app")
    else:
        with pytest.raises(NotAuthenticated) as refused:
            await doors.authenticate(shown)
        assert TOKEN[:8] not in str(refused.value)
    assert TOKEN[:8] not in repr(shown) and "secret" not in repr(shown)


@pytest.mark.parametrize("given", ["", "a b", "a\nb", "x" * 65, "\u0661"])
async def test_a_request_without_a_name_that_can_be_one_is_given_one(
    doors: Authentication, given: str
) -> None:
    found = {doors.in_request({REQUEST_ID: given}, b"", "").request for _ in range(3)}
    assert len(found) == 3 and all(len(one) == 16 for one in found)


async def test_who_is_named_by_nothing_that_can_go_stays(doors: Authentication, tmp_path: Path) -> None:
    user = await doors.authenticate(Presented("basic", b"app:secret"))
    token = await doors.authenticate(Presented("token", TOKEN.encode()))
    (tmp_path / "users").write_text("")
    await doors.look()
    assert not doors.holds(user) and doors.holds(token)


def signed(subject: str) -> Presented:
    return Presented(
        "token", jwt.encode({"alg": "HS256"}, {"sub": subject}, OctKey.import_key(SECRET)).encode()
    )


@pytest.mark.parametrize(
    ("prefixes", "subject", "role"),
    [
        (("", "data:"), "app", "app"),
        (("", "data:"), "data", "data"),
        (("", "data:"), "data:boss", ""),
        (("d", "data:"), "app", "dapp"),
        (("d", "data:"), "ata:boss", ""),
        (("data:", "d"), "boss", "data:boss"),
        (("data:", "data:x:"), "x:boss", ""),
        (("data:", "data:"), "boss", "data:boss"),
    ],
)
async def test_a_prefix_is_reserved_for_its_provider(
    tmp_path: Path, prefixes: tuple[str, str], subject: str, role: str
) -> None:
    (tmp_path / "users").write_text("")
    (tmp_path / "secret.key").write_bytes(SECRET)
    configuration = AuthenticationConfiguration(
        token=Token(secret_key=str(tmp_path / "secret.key"), prefix=prefixes[0]),
        basic=Basic(str(tmp_path / "users"), prefix=prefixes[1]),
    )
    doors = make_authentication(configuration, SystemClock())
    if role:
        assert (await doors.authenticate(signed(subject))).role == role
    else:
        with pytest.raises(NotAuthenticated, match="prefix of another provider"):
            await doors.authenticate(signed(subject))


async def test_a_method_that_is_not_configured_is_anonymous_where_that_has_a_role(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_bytes(SECRET)
    token = Token(secret_key=str(tmp_path / "secret.key"))
    doors = make_authentication(
        AuthenticationConfiguration(token=token, anonymous_role="guest"), SystemClock()
    )
    for shown in (Presented("none"), Presented("basic", b"app:secret"), Presented("athenz", b"x")):
        identity = await doors.authenticate(shown)
        assert (identity.role, identity.method) == ("guest", "none")
    with pytest.raises(NotAuthenticated):
        await doors.authenticate(Presented("token", b"wrong"))
    strict = make_authentication(AuthenticationConfiguration(token=token), SystemClock())
    with pytest.raises(NotAuthenticated, match="does not support the method"):
        await strict.authenticate(Presented("athenz", b"x"))


async def test_credentials_that_are_too_large_are_shown_to_no_provider() -> None:
    class Provider:
        asked = 0

        async def authenticate(self, data: bytes, address: str = "") -> Identity:
            self.asked += 1
            return Identity("app", "token")

        async def look(self) -> None: ...

        def trusts(self, proof: str) -> bool:
            return True

    provider = Provider()
    doors = Authentication("", {"token": provider})
    assert (await doors.authenticate(Presented("token", bytes(CREDENTIALS_BYTES_MAX)))).role == "app"
    with pytest.raises(NotAuthenticated, match="larger than 32768 bytes"):
        await doors.authenticate(Presented("token", bytes(CREDENTIALS_BYTES_MAX + 1)))
    assert provider.asked == 1
