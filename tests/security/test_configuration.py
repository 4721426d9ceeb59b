"""The security file: what it says, and what is refused, by the name of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.runtime.credentials import Credentials as Presented
from quire.runtime.errors import ConfigurationError
from quire.security.configuration import (
    AuthenticationConfiguration,
    Configuration,
    Credentials,
    Token,
    load,
)

WHOLE = """
[tls]
certificate = "broker.pem"
key = "/etc/broker.key"
client_certificates = "optional"
authority = "authority.pem"

[authentication.token]
secret_key = "secret.key"

[[authentication.oidc]]
issuer = "https://issuer.example"
audience = "quire"
jwks = "keys.json"

[[authentication.oidc]]
issuer = "https://other.example"
audience = "quire"
jwks = "https://other.example/keys"

[authorization]
superusers = ["admin"]
proxies = ["gateway"]

[audit]
file = "audit.jsonl"

[client]
method = "token"
token_file = "broker.token"
"""


def written(folder: Path, text: str) -> str:
    file = folder / "security.toml"
    file.write_text(text)
    return str(file)


def test_no_file_secures_nothing() -> None:
    assert load("") == Configuration()


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    found = load(written(tmp_path, WHOLE))
    assert found.tls is not None and found.authentication is not None and found.audit is not None
    assert found.tls.certificate == f"{tmp_path}/broker.pem"
    assert found.tls.key == "/etc/broker.key"
    assert found.authentication.token is not None
    assert found.authentication.token.secret_key == f"{tmp_path}/secret.key"
    assert [one.jwks for one in found.authentication.oidc] == [
        f"{tmp_path}/keys.json",
        "https://other.example/keys",
    ]
    assert found.audit.file == f"{tmp_path}/audit.jsonl"
    assert found.client.token_file == f"{tmp_path}/broker.token"
    assert found.authorization.proxies == ("gateway",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "cannot read"),
        ("[tsl]\n", "unknown setting `tsl`"),
        ("[tls]\ncertificat = 'x'\n", "[tls]: unknown setting `certificat`"),
        ("[tls]\nplain = 'no'\n", "[tls.plain]"),
        ("[tls]\n", "certificate and key"),
        ("[tls]\ncertificate = 'a'\nkey = 'b'\nminimum = '1.1'\n", "not one of the allowed values"),
        ("[tls]\ncertificate = 'a'\nkey = 'b'\nclient_certificates = 'required'\n", "authority"),
        ("[tls]\ncertificate = 'a'\nkey = 'b'\nlisten = 'here'\n", "[tls] listen"),
        ("[authentication]\n", "no provider"),
        ("[authorization]\nsuperusers = ['admin']\n", "needs [authentication]"),
        ("[authentication]\nanonymous_role = 'a/b'\n", "not a role"),
        ("[authentication]\nanonymous_role = 'a'\n[authorization]\nsuperusers = ['']\n", "not a role"),
        ("[authentication]\nanonymous_role = 'a'\n[authorization]\nproxies = ['a']\n", "all clients"),
        ("[authentication.basic]\nfile = 'users'\nprefix = 'a/'\n", "is not valid in a role"),
        ("[authentication.basic]\n", "missing setting `file`"),
        ("[client]\nmethod = 'token'\n", "token_file"),
        ("[client]\nmethod = 'tls'\ncertificate = 'x'\n", "certificate and key"),
        ("[audit]\nfile = 'x'\nfiles_kept = 0\n", "files_kept"),
        ("[audit]\n", "a file or a topic"),
        ("[audit]\ntopic = 'audit'\n", "persistent://TENANT"),
        ("[audit]\ntopic = 'non-persistent://t/n/audit'\n", "persistent://TENANT"),
    ],
)
def test_what_cannot_be_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(written(tmp_path, text))
    assert words in str(refused.value) and "\n" not in str(refused.value).strip()


def test_what_has_secrets_shows_none_of_them() -> None:
    client = Credentials(method="token", token="my-secret-token")
    authentication = AuthenticationConfiguration(token=Token(secret_key="data:;base64,bXktc2VjcmV0"))
    shown = repr(Configuration(client=client, authentication=authentication))
    assert "my-secret" not in shown and "bXkt" not in shown
    assert "my-secret" not in repr(Presented(token="my-secret-token"))


def test_a_secret_in_the_wrong_place_is_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(written(tmp_path, "[client]\nmethod = 'my-secret-token'\n"))
    assert "my-secret" not in str(refused.value)
