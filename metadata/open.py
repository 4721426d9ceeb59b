"""Opening of a metadata store by its URL: `sqlite:///var/lib/quire/metadata.db`, `zk://host:2181/chroot`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from ssl import SSLContext
from urllib.parse import unquote, urlsplit

from quire.metadata.sqlite import SqliteStore, look_at_file
from quire.metadata.store import MetadataStore
from quire.metadata.zookeeper_url import parse_url
from quire.runtime.credentials import NOBODY, Credentials
from quire.runtime.errors import ConfigurationError
from quire.runtime.tls import ClientTls
from quire.runtime.watchdog import Watchdog


def look_at(url: str) -> None:
    """Refuse a URL that can never be opened, before anything is created. Raises `ConfigurationError`."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        look_at_file(_path(url, parts.netloc, parts.path))
    elif parts.scheme in ("zk", "zk+ssl"):
        parse_url(url)
    else:
        raise _unknown(url)


async def open_store(
    url: str,
    tls: Callable[[], SSLContext] | None = None,
    login: Credentials = NOBODY,
    *,
    create: bool = True,
) -> MetadataStore:
    """Open the store at `url`. Raises `ConfigurationError`, whose message contains the correct form of a URL.

    If `create` is set, a missing SQLite file or chroot is created. Commands and processes that need an existing cluster
    do not set it, so that a mistyped URL leaves nothing. `tls` returns a new context for each connection to
    `zk+ssl://`; without it, the system's certificate authorities are trusted. `login` is a ZooKeeper user and password:
    only this user may read or change the nodes that this process creates.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            return await SqliteStore.open(_path(url, parts.netloc, parts.path), create=create)
        case "zk" | "zk+ssl":
            from quire.metadata.zookeeper import (
                ZooKeeperStore,
            )  # importing kazoo is slow, and SQLite does not need it

            return await ZooKeeperStore.open(url, tls or ClientTls().context, login, create=create)
    raise _unknown(url)


def is_missing_file(url: str) -> bool:
    """Return whether `url` is that of an SQLite file that does not exist."""
    parts = urlsplit(url)
    return parts.scheme == "sqlite" and not _path(url, parts.netloc, parts.path).exists()


def end_session_when_standing(store: MetadataStore, watchdog: Watchdog) -> None:
    """End the store's session if the event loop blocks for half of the session's time-out.

    Otherwise, ZooKeeper's client thread would keep the session, and all leases of this process, alive.
    """
    from quire.metadata.zookeeper import ZooKeeperStore

    if isinstance(store, ZooKeeperStore):
        watchdog.when_standing(lambda: store.session_timeout_ms / 2000, store.give_up_session)


def _unknown(url: str) -> ConfigurationError:
    return ConfigurationError(f"{url} is not a metadata URL; use sqlite:///PATH or zk://HOST:PORT/CHROOT")


def _path(url: str, host: str, path: str) -> Path:
    if host or path in ("", "/"):
        raise ConfigurationError(f"{url} contains no file; write sqlite:///absolute/path")
    return Path(unquote(path))
