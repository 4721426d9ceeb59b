"""A node whose changes are a knock at the door: whoever watches it hears that there is something to look at."""

from __future__ import annotations

from quire.metadata.store import ANY_VERSION, MetadataStore
from quire.runtime.errors import AlreadyExists, NotFound


async def touch(store: MetadataStore, path: str, value: bytes = b"") -> None:
    """Change the node at `path`, or make it. Raises `Unavailable`, `OutcomeUnknown`."""
    try:
        await store.put(path, value, ANY_VERSION)
    except NotFound:
        try:
            await store.create(path, value)
        except AlreadyExists:
            await store.put(path, value, ANY_VERSION)
