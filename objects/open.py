"""An object store from its URL: `file:///var/lib/quire/archive`, `s3://bucket/prefix?endpoint=…`.

`open_store` is for the event loop, `open_blocking` for processes that have none (Spark's executors).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from quire.objects.filesystem import FilesystemBlockingStore
from quire.objects.s3 import Patience, S3BlockingStore, S3Location
from quire.objects.store import BlockingStore, ObjectStore
from quire.runtime.errors import ConfigurationError

LOG_TIMEOUT_S: Final = 5


def open_store(url: str) -> ObjectStore:
    """Open the store that `url` names. Raises `ConfigurationError` with what to write instead."""
    return ObjectStore(open_blocking(url))


def open_for_log(url: str, threads: int) -> ObjectStore:
    """The same for a write-ahead log: a call is tried once, and soon told; who calls decides what that means."""
    return ObjectStore(open_blocking(url, Patience(1, LOG_TIMEOUT_S, threads + 1)), threads=threads)


def open_blocking(url: str, patience: Patience | None = None) -> BlockingStore:
    """The same, in blocking calls. One per process: it cannot be pickled."""
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
                raise ConfigurationError(f"{url} names no directory; write file:///absolute/path")
            return FilesystemBlockingStore(Path(unquote(parts.path)))
        case "s3":
            return S3BlockingStore(S3Location.parse(url), patience)
    raise ConfigurationError(
        f"{url.partition('?')[0]} is no object store's URL; use file:///PATH or s3://BUCKET/PREFIX"
    )
