"""A node whose changes tell whoever watches it that there is something to look at.

What there is to look at, and the change of that node, are made together where nobody else would ever look.
"""

from __future__ import annotations

from quire.metadata.store import ANY_VERSION, MetadataStore, Put, Step
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


async def change_and_touch(store: MetadataStore, change: Step, path: str) -> None:
    """Make one change and touch the node at `path`: both or neither. Raises what `transact` does."""
    steps = (change, Put(path, b"", ANY_VERSION))
    try:
        await store.transact(steps)
    except NotFound:
        try:
            await store.create(path, b"")
        except AlreadyExists:
            pass  # it is the change that lacks its node, or somebody else made ours
        await store.transact(steps)
