"""A metadata store from its URL: `sqlite:///var/lib/quire/metadata.db`, `zk://host:2181/chroot`."""

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
    """Refuse a URL that can never be opened, before anything is made. Raises `ConfigurationError`."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        look_at_file(_path(url, parts.netloc, parts.path))
    elif parts.scheme in ("zk", "zk+ssl"):
        parse_url(url)
    else:
        raise _unknown(url)


async def open_store(
    url: str, tls: Callable[[], SSLContext] | None = None, login: Credentials = NOBODY
) -> MetadataStore:
    """Open the store that `url` names. Raises `ConfigurationError` with what to write instead.

    `tls` gives the context for `zk+ssl://`, anew for each connection; without it the system's authorities are trusted.
    `login`: a user and a password, without which nobody else reads or changes what is made (ZooKeeper's alone).
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            return await SqliteStore.open(_path(url, parts.netloc, parts.path))
        case "zk" | "zk+ssl":
            from quire.metadata.zookeeper import ZooKeeperStore  # kazoo costs a start that needs none of it

            return await ZooKeeperStore.open(url, tls or ClientTls().context, login)
    raise _unknown(url)


def end_session_when_standing(store: MetadataStore, watchdog: Watchdog) -> None:
    """The store's session is given up when the loop stands for half of its time-out.

    Else a thread would keep it alive, and with it all that this process owns and does not serve.
    """
    from quire.metadata.zookeeper import ZooKeeperStore

    if isinstance(store, ZooKeeperStore):
        watchdog.when_standing(lambda: store.session_timeout_ms / 2000, store.give_up_session)


def _unknown(url: str) -> ConfigurationError:
    return ConfigurationError(f"{url} is no metadata URL; use sqlite:///PATH or zk://HOST:PORT/CHROOT")


def _path(url: str, host: str, path: str) -> Path:
    if host or path in ("", "/"):
        raise ConfigurationError(f"{url} names no file; write sqlite:///absolute/path")
    return Path(unquote(path))
