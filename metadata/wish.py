"""A node that carries no value, only a version: whoever watches it hears that there is something to look at."""

from __future__ import annotations

from quire.metadata.store import ANY_VERSION, MetadataStore
from quire.runtime.errors import AlreadyExists, NotFound


async def touch(store: MetadataStore, path: str) -> None:
    """Change the node at `path`, or make it. Raises `Unavailable`, `OutcomeUnknown`."""
    try:
        await store.put(path, b"", ANY_VERSION)
    except NotFound:
        try:
            await store.create(path, b"")
        except AlreadyExists:
            await store.put(path, b"", ANY_VERSION)
