"""Security file: a TOML file for all processes, set by the setting `security`. Without it, nothing is secured.

    [tls]                     certificates of the ports for clients
    [internal]                certificates between brokers, bookies and gateways; by default those of [tls]
    [authentication]          its tables are the providers; several may be used
      [authentication.token]        tokens that a local key signed
      [authentication.basic]        users and passwords of an htpasswd file
      [authentication.certificate]  the subject of a client's certificate
      [[authentication.oidc]]       tokens of an identity provider, a table for each issuer
    [authorization]           superusers and proxies; permissions are granted on namespaces and topics
    [limits]                  shares of one address, role, connection, tenant, namespace or topic in a process
    [audit]                   files and topic for refusals and administrative changes
    [client]                  credentials of this process as a client of brokers
    [metadata]                user and password that protect the nodes in ZooKeeper

Paths are relative to the file. An unknown field is an error, because a misspelt field might leave something
unprotected. `docs/security.md` has complete examples.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from quire.runtime.credentials import Credentials as ToPresent
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import KIB, SUBSCRIPTION_UNACKED_MESSAGES_MAX, UNACKED_MESSAGES_MAX
from quire.runtime.settings import parse_address
from quire.security.identity import is_role

KEY_FILE_BYTES_MAX: Final = 64 * KIB
_TOPIC: Final = re.compile(r"persistent://[^/\s]+/[^/\s]+/[^/\s]+")
_T = TypeVar("_T", bound="_Table")


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table of the file. Its `repr` shows no fields, because some contain secrets."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Tls(_Table, frozen=True, forbid_unknown_fields=True):
    """The ports for clients."""

    certificate: str = ""
    key: str = ""
    authority: str = ""
    """Certificate authority of clients' certificates; a PEM file."""
    client_certificates: Literal["none", "optional", "required"] = "none"
    listen: str = "127.0.0.1:6651"
    http: str = "127.0.0.1:8443"
    plain: bool = True
    """If false, the ports without TLS are closed."""
    minimum: Literal["1.2", "1.3"] = "1.2"


class Internal(_Table, frozen=True, forbid_unknown_fields=True):
    """Mutual TLS among brokers, bookies and gateways. Empty fields default to `[tls]`."""

    certificate: str = ""
    key: str = ""
    authority: str = ""
    required: bool = False
    """If true, connections without TLS are refused."""


class Token(_Table, frozen=True, forbid_unknown_fields=True):
    """JSON web tokens signed with one key, given as a path, `file:PATH`, or `data:;base64,…`."""

    secret_key: str = ""
    public_key: str = ""
    algorithms: tuple[str, ...] = ()
    """Allowed signature algorithms; empty: all that fit the key."""
    role_claim: str = "sub"
    audience: str = ""
    issuer: str = ""
    leeway_s: int = 10
    prefix: str = ""
    """Prefix added to its roles, which reserves these names for this provider."""


class Basic(_Table, frozen=True, forbid_unknown_fields=True):
    """Users of an htpasswd file with bcrypt hashes (`htpasswd -B`)."""

    file: str
    prefix: str = ""
    """Prefix added to its roles, which reserves these names for this provider."""


class Certificate(_Table, frozen=True, forbid_unknown_fields=True):
    """Roles from the subjects of clients' certificates."""

    pattern: str = ""
    """Regular expression for the subject in RFC 4514 form, whose first group is the role; empty: the common name."""
    prefix: str = ""
    """Prefix added to its roles, which reserves these names for this provider."""


class Oidc(_Table, frozen=True, forbid_unknown_fields=True):
    """One issuer of tokens. Its keys are fetched from `jwks`, a URL or a file; empty: from its OpenID discovery."""

    issuer: str
    audience: str
    jwks: str = ""
    role_claim: str = "sub"
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    leeway_s: int = 10
    keys_kept_s: int = 3600
    """Seconds for which keys are cached; an unknown key is fetched at once."""
    prefix: str = ""
    """Prefix added to its roles, which reserves these names for this provider."""


class AuthenticationConfiguration(_Table, frozen=True, forbid_unknown_fields=True):
    anonymous_role: str = ""
    """Role of clients without credentials; empty: they are refused."""
    token: Token | None = None
    basic: Basic | None = None
    certificate: Certificate | None = None
    oidc: tuple[Oidc, ...] = ()


class AuthorizationConfiguration(_Table, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    """If False, all authenticated roles may do everything."""
    superusers: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    """Roles of gateways, which may act for other roles."""


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class Limits(_Table, frozen=True, forbid_unknown_fields=True):
    """Limits that isolate tenants; 0: only the server's own limits (`runtime/limits`) apply.

    Limits of namespaces and topics apply where no policy sets one.
    """

    connections_per_address: Count = 0
    connections_per_role: Count = 0
    requests_per_s: Count = 0
    """Requests per second of one connection: all commands except SEND, ACK and FLOW."""
    tenants: Count = 0
    namespaces_per_tenant: Count = 0
    topics_per_namespace: Count = 0
    producers_per_topic: Count = 0
    consumers_per_topic: Count = 0
    consumers_per_subscription: Count = 0
    subscriptions_per_topic: Count = 0
    unacked_messages_per_consumer: Count = UNACKED_MESSAGES_MAX
    unacked_messages_per_subscription: Count = SUBSCRIPTION_UNACKED_MESSAGES_MAX


COUNTED: Final = tuple(
    sorted(
        {*Limits.__struct_fields__, "connections", "connections_logging_in"}
        - {"unacked_messages_per_consumer", "unacked_messages_per_subscription"}
    )
)
"""Names of all limits above which requests or connections are refused, including limits of a process."""


class Audit(_Table, frozen=True, forbid_unknown_fields=True):
    """Audit log in a file, in a topic, or in both."""

    file: str = ""
    """Path of the file for refusals; administrative changes are in a second file, see `audit`."""
    topic: str = ""
    """`persistent://TENANT/NAMESPACE/TOPIC`; brokers publish the lines there with the credentials of `[client]`."""
    bytes_max: int = 64 << 20
    """Size at which a file is rotated."""
    files_kept: int = 10


class Credentials(_Table, frozen=True, forbid_unknown_fields=True):
    """Credentials of this process as a client: one method, with its data in a file or in this table."""

    method: Literal["none", "token", "basic", "tls"] = "none"
    token: str = ""
    token_file: str = ""
    user: str = ""
    password_file: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""


class Metadata(_Table, frozen=True, forbid_unknown_fields=True):
    """Credentials for ZooKeeper; only this user can access the nodes that the process creates."""

    user: str = ""
    password_file: str = ""

    @property
    def login(self) -> ToPresent:
        return ToPresent(user=self.user, password_file=self.password_file)


class Configuration(_Table, frozen=True, forbid_unknown_fields=True):
    """The whole file; a table that is None is disabled."""

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
    """Load the file at `path`; "" gives a configuration without any security. Raises `ConfigurationError`."""
    if not path:
        return Configuration()
    import tomllib  # its patterns take time to compile, and many starts read no file

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
    """Translate msgspec's error text, such as `Object contains unknown field `x` - at `$.tls``, to the file's terms.

    Values are not quoted, because they may be secret.
    """
    what, _, where = problem.partition(" - at ")
    table = where.strip("`").removeprefix("$").removeprefix(".").removesuffix("[...]")
    what = what.replace("Object contains unknown field", "unknown setting")
    what = what.replace("Object missing required field", "missing setting")
    if what.startswith("Invalid enum value"):
        what = "not one of the allowed values"
    return f"[{table}]: {what}" if table else what


def _check(found: Configuration) -> None:
    authentication, authorization = found.authentication, found.authorization
    if found.tls is not None:
        _check_tls(found.tls)
    if authentication is None:
        if authorization != AuthorizationConfiguration():
            raise ConfigurationError("[authorization] needs [authentication], which determines the roles")
    elif not _lets_in(authentication):
        raise ConfigurationError(
            "[authentication] has no provider, so no client could log in; add a table such as [authentication.token]"
        )
    roles = (*authorization.superusers, *authorization.proxies)
    if authentication is not None and authentication.anonymous_role:
        roles += (authentication.anonymous_role,)
        if authentication.anonymous_role in authorization.proxies:
            raise ConfigurationError(
                "anonymous_role cannot be a proxy, or all clients could act for all roles"
            )
    for one in _providers(authentication):
        if one.prefix and not is_role(one.prefix):
            raise ConfigurationError(
                f"the prefix {one.prefix!r} is not valid in a role: / and control characters are not allowed"
            )
    for role in roles:
        if not is_role(role):
            raise ConfigurationError(
                f"{role!r} is not a role: roles have 1 to 256 characters, without / and control characters"
            )
    if found.audit is not None:
        _check_audit(found.audit)
    _check_credentials(found.client)
    if bool(found.metadata.user) != bool(found.metadata.password_file) or ":" in found.metadata.user:
        raise ConfigurationError(
            "[metadata] needs both user and password_file, or neither; the user must not contain a colon"
        )


def _check_audit(audit: Audit) -> None:
    if not audit.file and not audit.topic:
        raise ConfigurationError("[audit] needs a file or a topic")
    if audit.topic and not _TOPIC.fullmatch(audit.topic):
        raise ConfigurationError("[audit]: the topic must be written as persistent://TENANT/NAMESPACE/TOPIC")
    if audit.bytes_max < 4096 or audit.files_kept < 1:
        raise ConfigurationError("[audit]: bytes_max must be at least 4096, and files_kept at least 1")


def _lets_in(one: AuthenticationConfiguration) -> bool:
    return bool(_providers(one) or one.anonymous_role)


def _providers(one: AuthenticationConfiguration | None) -> Sequence[Token | Basic | Certificate | Oidc]:
    if one is None:
        return ()
    return [found for found in (one.token, one.basic, one.certificate, *one.oidc) if found is not None]


def _check_tls(tls: Tls) -> None:
    if not tls.certificate or not tls.key:
        raise ConfigurationError("[tls] needs certificate and key, the paths of PEM files")
    if tls.client_certificates != "none" and not tls.authority:
        raise ConfigurationError(
            "[tls]: client_certificates needs an authority, the certificate of their signer"
        )
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
    """Return a table with absolute paths, also in the tables within it."""
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
    """Return the path of a key's file, or "" if `where` is the key itself."""
    return "" if where.startswith("data:") else where.removeprefix("file://").removeprefix("file:")


def read_key(where: str) -> bytes:
    """Read a key from a file, or from `data:;base64,…`. Raises `ConfigurationError`, without the key in its text."""
    if where.startswith("data:"):
        kind, _, text = where.partition(",")
        try:
            if not kind.endswith(";base64"):
                raise ValueError
            return base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            raise ConfigurationError(
                "a key within the security file must be written as data:;base64,…"
            ) from None
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
