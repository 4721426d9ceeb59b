"""The security file: one for all processes, TOML, named by the setting `security`. Without one nothing is secured.

    [tls]                     certificates of the ports for clients
    [internal]                of brokers, bookies and gateways among themselves; what is not said is as in [tls]
    [authentication]          who is let in; its tables are the providers, several at once
      [authentication.token]        signed by a key that is kept here
      [authentication.basic]        users and passwords of an htpasswd file
      [authentication.certificate]  the subject of a client's certificate
      [[authentication.oidc]]       tokens of an identity provider, a table for each issuer
    [authorization]           superusers and proxies; permissions themselves are given to namespaces and topics
    [limits]                  how much of a process one address, role, connection, tenant, namespace or topic may have
    [audit]                   where refusals and administrative changes are written down
    [client]                  what this process presents where it is a client: to brokers
    [metadata]                the user and the password without which nobody reads or changes what lies in ZooKeeper

Paths are relative to the file. What a table does not know is refused by its name: a word that is misspelt must not
leave a door open. `docs/security.md` has whole examples.
"""

from __future__ import annotations

import base64
import binascii
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from quire.runtime.credentials import Credentials as ToPresent
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import KIB, UNACKED_MESSAGES_MAX
from quire.runtime.settings import parse_address
from quire.security.identity import is_role

KEY_FILE_BYTES_MAX: Final = 64 * KIB
_TOPIC: Final = re.compile(r"persistent://[^/\s]+/[^/\s]+/[^/\s]+")
_T = TypeVar("_T", bound="_Table")


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file. Some have secrets, so none shows what is in it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Tls(_Table, frozen=True, forbid_unknown_fields=True):
    """The ports for clients."""

    certificate: str = ""
    key: str = ""
    authority: str = ""
    """What signs certificates of clients; PEM, as the others."""
    client_certificates: Literal["none", "optional", "required"] = "none"
    listen: str = "127.0.0.1:6651"
    http: str = "127.0.0.1:8443"
    plain: bool = True
    """False closes the ports without TLS."""
    minimum: Literal["1.2", "1.3"] = "1.2"


class Internal(_Table, frozen=True, forbid_unknown_fields=True):
    """Mutual TLS among brokers, bookies and gateways. What is empty is as in `[tls]`."""

    certificate: str = ""
    key: str = ""
    authority: str = ""
    required: bool = False
    """Whether a connection without TLS is refused."""


class Token(_Table, frozen=True, forbid_unknown_fields=True):
    """JSON web tokens that are signed by one key: a path, `file:PATH`, or the key itself as `data:;base64,…`."""

    secret_key: str = ""
    public_key: str = ""
    algorithms: tuple[str, ...] = ()
    """Empty: those that fit the key."""
    role_claim: str = "sub"
    audience: str = ""
    issuer: str = ""
    leeway_s: int = 10
    prefix: str = ""
    """Put before the names of its roles, so that they are nobody else's."""


class Basic(_Table, frozen=True, forbid_unknown_fields=True):
    """`file` is an htpasswd file with bcrypt alone (`htpasswd -B`)."""

    file: str
    prefix: str = ""
    """Put before the names of its roles, so that they are nobody else's."""


class Certificate(_Table, frozen=True, forbid_unknown_fields=True):
    """Which part of a certificate's subject is the role."""

    pattern: str = ""
    """A regular expression over the subject as RFC 4514 writes it, whose first group is the role; empty: the CN."""
    prefix: str = ""
    """Put before the names of its roles, so that they are nobody else's."""


class Oidc(_Table, frozen=True, forbid_unknown_fields=True):
    """One issuer of tokens. Its keys are fetched from `jwks`, a URL or a file; empty: where its discovery says."""

    issuer: str
    audience: str
    jwks: str = ""
    role_claim: str = "sub"
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    leeway_s: int = 10
    keys_kept_s: int = 3600
    """How long keys are used without asking for them again; a key that is not known is asked for at once."""
    prefix: str = ""
    """Put before the names of its roles, so that they are nobody else's."""


class AuthenticationConfiguration(_Table, frozen=True, forbid_unknown_fields=True):
    anonymous_role: str = ""
    """Of a client that presents nothing; empty: it is refused."""
    token: Token | None = None
    basic: Basic | None = None
    certificate: Certificate | None = None
    oidc: tuple[Oidc, ...] = ()


class AuthorizationConfiguration(_Table, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    """False: whoever is let in may do everything."""
    superusers: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    """Roles of gateways, which speak for others."""


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class Limits(_Table, frozen=True, forbid_unknown_fields=True):
    """What keeps tenants apart. 0: no limit but that of the server itself (`runtime/limits`).

    Those of namespaces and topics hold where no policy says otherwise.
    """

    connections_per_address: Count = 0
    connections_per_role: Count = 0
    requests_per_s: Count = 0
    """Of one connection: all commands but SEND, ACK and FLOW."""
    tenants: Count = 0
    namespaces_per_tenant: Count = 0
    topics_per_namespace: Count = 0
    producers_per_topic: Count = 0
    consumers_per_topic: Count = 0
    consumers_per_subscription: Count = 0
    subscriptions_per_topic: Count = 0
    unacked_messages_per_consumer: Count = UNACKED_MESSAGES_MAX


COUNTED: Final = tuple(
    sorted(
        {*Limits.__struct_fields__, "connections", "connections_logging_in"}
        - {"unacked_messages_per_consumer"}
    )
)
"""Limits at which one too many is refused, by their names, and those of the connections of a whole process."""


class Audit(_Table, frozen=True, forbid_unknown_fields=True):
    """To a file, to a topic, or to both."""

    file: str = ""
    """Of refusals; changes go to another one, see `audit`."""
    topic: str = ""
    """`persistent://TENANT/NAMESPACE/TOPIC`; brokers publish there what they write down, as `[client]` says."""
    bytes_max: int = 64 << 20
    """Then a file is renamed, and another one begun."""
    files_kept: int = 10


class Credentials(_Table, frozen=True, forbid_unknown_fields=True):
    """What this process presents: one method, and its data in a file, or here."""

    method: Literal["none", "token", "basic", "tls"] = "none"
    token: str = ""
    token_file: str = ""
    user: str = ""
    password_file: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""


class Metadata(_Table, frozen=True, forbid_unknown_fields=True):
    """What this process says to ZooKeeper; the nodes that it makes are for the same user alone."""

    user: str = ""
    password_file: str = ""

    @property
    def login(self) -> ToPresent:
        return ToPresent(user=self.user, password_file=self.password_file)


class Configuration(_Table, frozen=True, forbid_unknown_fields=True):
    """The whole file; what is None is off."""

    tls: Tls | None = None
    internal: Internal | None = None
    authentication: AuthenticationConfiguration | None = None
    authorization: AuthorizationConfiguration = AuthorizationConfiguration()
    limits: Limits = Limits()
    audit: Audit | None = None
    client: Credentials = Credentials()
    metadata: Metadata = Metadata()


_PATHS: Final[dict[type[_Table], tuple[str, ...]]] = {
    Tls: ("certificate", "key", "authority"),
    Internal: ("certificate", "key", "authority"),
    Token: ("secret_key", "public_key"),
    Basic: ("file",),
    Oidc: ("jwks",),
    Audit: ("file",),
    Credentials: ("token_file", "password_file", "certificate", "key", "authority"),
    Metadata: ("password_file",),
}


def load(path: str) -> Configuration:
    """What the file at `path` says; nothing is secured for "". Raises `ConfigurationError`."""
    if not path:
        return Configuration()
    file = Path(path)
    try:
        tables = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read the security file {path}: {error}") from None
    try:
        found = msgspec.convert(tables, Configuration)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"the security file {path}: {_in_words(str(error))}") from None
    try:
        _check(found)
    except ConfigurationError as error:
        raise ConfigurationError(f"the security file {path}: {error}") from None
    return _resolved(found, file.absolute().parent)


def _in_words(problem: str) -> str:
    """`Object contains unknown field `x` - at `$.tls`` as a sentence. No value is quoted: it may be a secret."""
    what, _, where = problem.partition(" - at ")
    table = where.strip("`").removeprefix("$").removeprefix(".").removesuffix("[...]")
    what = what.replace("Object contains unknown field", "there is no setting")
    what = what.replace("Object missing required field", "there must be a setting")
    if what.startswith("Invalid enum value"):
        what = "it is none of the values that it may have"
    return f"[{table}]: {what}" if table else what


def _check(found: Configuration) -> None:
    authentication, authorization = found.authentication, found.authorization
    if found.tls is not None:
        _check_tls(found.tls)
    if authentication is None:
        if authorization != AuthorizationConfiguration():
            raise ConfigurationError("[authorization] needs [authentication]: nobody is known without")
    elif not _lets_in(authentication):
        raise ConfigurationError(
            "[authentication] has no provider, so nobody could come in: add a table such as [authentication.token]"
        )
    roles = (*authorization.superusers, *authorization.proxies)
    if authentication is not None and authentication.anonymous_role:
        roles += (authentication.anonymous_role,)
        if authentication.anonymous_role in authorization.proxies:
            raise ConfigurationError("anonymous_role cannot be a proxy: anybody could speak for anybody")
    for one in _providers(authentication):
        if one.prefix and not is_role(one.prefix):
            raise ConfigurationError(
                f"the prefix {one.prefix!r} can begin no role: leave out / and control characters"
            )
    for role in roles:
        if not is_role(role):
            raise ConfigurationError(
                f"{role!r} is no role: write 1 to 256 characters without / and control characters"
            )
    if found.audit is not None:
        _check_audit(found.audit)
    _check_credentials(found.client)
    if bool(found.metadata.user) != bool(found.metadata.password_file) or ":" in found.metadata.user:
        raise ConfigurationError(
            "[metadata] needs a user without colons and a password_file, both or neither"
        )


def _check_audit(audit: Audit) -> None:
    if not audit.file and not audit.topic:
        raise ConfigurationError("[audit] needs a file or a topic")
    if audit.topic and not _TOPIC.fullmatch(audit.topic):
        raise ConfigurationError("[audit]: a topic is written persistent://TENANT/NAMESPACE/TOPIC")
    if audit.bytes_max < 4096 or audit.files_kept < 1:
        raise ConfigurationError("[audit]: bytes_max must be 4096 or more, and files_kept 1 or more")


def _lets_in(one: AuthenticationConfiguration) -> bool:
    return bool(_providers(one) or one.anonymous_role)


def _providers(one: AuthenticationConfiguration | None) -> Sequence[Token | Basic | Certificate | Oidc]:
    if one is None:
        return ()
    return [found for found in (one.token, one.basic, one.certificate, *one.oidc) if found is not None]


def _check_tls(tls: Tls) -> None:
    if not tls.certificate or not tls.key:
        raise ConfigurationError("[tls] needs certificate and key, paths of PEM files")
    if tls.client_certificates != "none" and not tls.authority:
        raise ConfigurationError("[tls]: client_certificates need an authority that signs them")
    parse_address(tls.listen, "[tls] listen")
    parse_address(tls.http, "[tls] http")


def _check_credentials(client: Credentials) -> None:
    given = {
        "none": True,
        "token": bool(client.token) != bool(client.token_file),
        "basic": bool(client.user and client.password_file),
        "tls": bool(client.certificate and client.key),
    }
    needed = {
        "token": "either token or token_file",
        "basic": "user and password_file",
        "tls": "certificate and key",
    }
    if not given[client.method]:
        raise ConfigurationError(f'[client]: the method "{client.method}" needs {needed[client.method]}')


def _resolved(table: _T, folder: Path) -> _T:
    """With its paths, and those of the tables in it, absolute."""
    changed: dict[str, Any] = {}
    for name in table.__struct_fields__:
        value = getattr(table, name)
        if isinstance(value, _Table):
            changed[name] = _resolved(value, folder)
        elif isinstance(value, tuple) and value and isinstance(value[0], _Table):
            changed[name] = tuple(_resolved(one, folder) for one in value)
        elif name in _PATHS.get(type(table), ()) and value and not _is_no_path(value):
            changed[name] = str(folder / value.removeprefix("file://").removeprefix("file:"))
    return msgspec.structs.replace(table, **changed)


def _is_no_path(value: str) -> bool:
    return value.startswith(("data:", "http://", "https://"))


def path_of_key(where: str) -> str:
    """Of the file that a key is in; "" for one that is written where its file's name could be."""
    return "" if where.startswith("data:") else where.removeprefix("file://").removeprefix("file:")


def read_key(where: str) -> bytes:
    """The bytes of a key: of a file, or of `data:;base64,…`. Raises `ConfigurationError`, which quotes no key."""
    if where.startswith("data:"):
        kind, _, text = where.partition(",")
        try:
            if not kind.endswith(";base64"):
                raise ValueError
            return base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            raise ConfigurationError("a key in the file itself must be written as data:;base64,…") from None
    try:
        with open(path_of_key(where), "rb") as file:
            raw = file.read(KEY_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"cannot read the key {where}: {getattr(error, 'strerror', error)}"
        ) from None
    if not raw or len(raw) > KEY_FILE_BYTES_MAX:
        raise ConfigurationError(f"the key {where} is empty, or larger than {KEY_FILE_BYTES_MAX} bytes")
    return raw
