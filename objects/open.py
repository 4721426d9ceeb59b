"""Functions that open an object store by its URL: `file:///var/lib/quire/archive`, `s3://bucket/prefix?endpoint=…`.

`open_store` is for the event loop, `open_blocking` for processes without one (Spark's executors).
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
"""Time-out in seconds of one call to the store of a write-ahead log; the caller repeats or hedges the call."""


def open_store(url: str) -> ObjectStore:
    """Open the store at `url`. Raises `ConfigurationError`, which shows the form of a correct URL."""
    return ObjectStore(open_blocking(url))


def open_for_log(url: str, threads: int) -> ObjectStore:
    """Open a store for a write-ahead log: one attempt per call with a short time-out, because the caller retries."""
    return ObjectStore(open_blocking(url, Patience(1, LOG_TIMEOUT_S, threads + 1)), threads=threads)


def open_blocking(url: str, patience: Patience | None = None) -> BlockingStore:
    """Open a store for blocking calls. It cannot be pickled, so each process opens its own."""
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
                raise ConfigurationError(f"{url} contains no directory; write file:///absolute/path")
            return FilesystemBlockingStore(Path(unquote(parts.path)))
        case "s3":
            return S3BlockingStore(S3Location.parse(url), patience)
    raise ConfigurationError(
        f"{url.partition('?')[0]} is not an object store's URL; use file:///PATH or s3://BUCKET/PREFIX"
    )
