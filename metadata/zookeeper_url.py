"""Format of `zk://host:port,host:port/chroot?session_timeout=10s`: servers, chroot, and session time-out.

The default port is 2181. `zk+ssl://` uses TLS, with 2281 instead of 2181. A missing chroot is created; clusters that
share one ZooKeeper have different chroots. `session_timeout` is the time without contact after which other processes
may take over the leases of a process. A shorter time-out makes failovers faster, but shorter pauses then cause them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import parse_duration_ms

PORTS: Final = {"zk": 2181, "zk+ssl": 2281}
SESSION_TIMEOUT_MS: Final = 10_000
SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 600_000
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:@\s]+)(:(?P<port>[0-9]{1,5}))?")
EXAMPLE: Final = "zk://host:2181,host:2181/chroot?session_timeout=10s"


@dataclass(frozen=True, slots=True)
class ZooKeeperUrl:
    """Parts of a ZooKeeper URL. `chroot` is empty, or begins with a slash and does not end in one."""

    hosts: str
    chroot: str = ""
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    is_tls: bool = False


def parse_url(url: str) -> ZooKeeperUrl:
    """Parse a URL. Raises `ConfigurationError`, whose message contains the correct form."""
    parts = urlsplit(url)
    hosts = ",".join(_host(url, each, PORTS[parts.scheme]) for each in parts.netloc.split(","))
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    timeout_ms = parse_duration_ms(options.pop("session_timeout", f"{SESSION_TIMEOUT_MS}ms"))
    if options or parts.fragment:
        raise ConfigurationError(f"{url} has an option other than session_timeout; write {EXAMPLE}")
    if not SESSION_TIMEOUT_MS_MIN <= timeout_ms <= SESSION_TIMEOUT_MS_MAX:
        raise ConfigurationError(f"{url}: session_timeout must be between 1s and 10min")
    return ZooKeeperUrl(hosts, _chroot(url, unquote(parts.path)), timeout_ms, parts.scheme == "zk+ssl")


def _host(url: str, host: str, usual: int) -> str:
    found = _HOST.fullmatch(host)
    if found is None or not 0 < int(found["port"] or usual) < 65_536:
        raise ConfigurationError(f"{url} has an invalid server; write {EXAMPLE}")
    return f"{found['name']}:{found['port'] or usual}"


def _chroot(url: str, path: str) -> str:
    path = path.rstrip("/")
    if any(part in ("", ".", "..") or "\0" in part for part in path.split("/")[1:]):
        raise ConfigurationError(f"{url}: {path} is not a valid chroot; write {EXAMPLE}")
    if path.split("/")[1:2] == ["zookeeper"]:
        raise ConfigurationError(f"{url}: /zookeeper is reserved for ZooKeeper itself; use another chroot")
    return path
