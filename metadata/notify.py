"""Notification of other processes by a change of a node that they watch; they then read the changed records.

A record and the watched node are changed in one transaction if a failure between two separate changes could leave the
record unread.
"""

from __future__ import annotations

from quire.metadata.store import ANY_VERSION, MetadataStore, Put, Step
from quire.runtime.errors import AlreadyExists, NotFound


async def touch(store: MetadataStore, path: str, value: bytes = b"") -> None:
    """Change the node at `path`, or create it. Raises `Unavailable`, `OutcomeUnknown`."""
    try:
        await store.put(path, value, ANY_VERSION)
    except NotFound:
        try:
            await store.create(path, value)
        except AlreadyExists:
            await store.put(path, value, ANY_VERSION)


async def change_and_touch(store: MetadataStore, change: Step, path: str) -> None:
    """Apply one change and touch the node at `path`, in one transaction. Raises the errors of `transact`."""
    steps = (change, Put(path, b"", ANY_VERSION))
    try:
        await store.transact(steps)
    except NotFound:
        try:
            await store.create(path, b"")
        except AlreadyExists:
            pass  # the node that `change` changes is missing, or another process has created `path`
        await store.transact(steps)
