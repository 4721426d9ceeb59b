"""Retirement record of a bookie, created in the transaction that removes the bookie's record.

A missing bookie record proves nothing: the store may be empty, belong to another cluster, be an older copy, or be
incomplete during a rescue. Only a retirement record proves that all data of a bookie were copied, so that it may empty
its directories.
"""

from __future__ import annotations

from quire.metadata import paths
from quire.metadata.store import Create, MetadataStore, Step
from quire.runtime.errors import NotFound


def retirement(uuid: str) -> Step:
    """Return the step that creates the retirement record, for the transaction that removes the bookie's record."""
    return Create(paths.retired(uuid), b"")


async def is_retired(store: MetadataStore, uuid: str) -> bool:
    """Return whether the retirement record exists, after a sync of the store. Raises `Unavailable`."""
    await store.sync()
    try:
        await store.get(paths.retired(uuid))
    except NotFound:
        return False
    return True


async def forget_retirement(store: MetadataStore, uuid: str) -> None:
    """Remove the retirement record, after the bookie's directories got another UUID."""
    try:
        await store.delete(paths.retired(uuid))
    except NotFound:
        pass
