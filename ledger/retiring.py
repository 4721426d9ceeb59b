"""Bookies that are members, and how one ceases to be: its record is removed.

A bookie that drains because an operator wants it to go has that in its record, so removing the version that was read
is enough. One that drains because it was told to stop has the wish in its ephemeral registration: it may be back by
now, as a member with new ledgers, so its registration is checked in the same transaction.
"""

from __future__ import annotations

from quire.metadata import paths
from quire.metadata.bookie_states import TRANSITIONS, BookieEvent
from quire.metadata.records import BookieIntent, BookieRecord, decode
from quire.metadata.store import Check, Delete, MetadataStore, Step
from quire.runtime.errors import NotFound, VersionConflict


async def known_bookies(store: MetadataStore) -> dict[str, BookieRecord]:
    """The identity record of every bookie that was not retired, by UUID."""
    found: dict[str, BookieRecord] = {}
    for uuid in await store.children(paths.BOOKIES):
        path = paths.bookie(uuid)
        try:
            found[uuid] = decode(BookieRecord, (await store.get(path)).value, path)
        except NotFound:
            continue
    return found


async def retire(store: MetadataStore, uuid: str) -> bool:
    """Remove what is known of a drained bookie; False when it does not want to go at this very moment."""
    try:
        await store.transact(await _steps(store, uuid))
    except (NotFound, VersionConflict):
        return False
    return True


async def _steps(store: MetadataStore, uuid: str) -> list[Step]:
    path, available_path = paths.bookie(uuid), paths.bookie_available(uuid)
    node = await store.get(path)
    removal = Delete(path, node.version)
    intent = decode(BookieRecord, node.value, path).intent
    assert TRANSITIONS.next(intent, BookieEvent.RETIRED) is None
    if intent is BookieIntent.DRAIN:
        return [removal]
    up = await store.get(available_path)
    if decode(BookieRecord, up.value, available_path).intent is not BookieIntent.DRAIN:
        raise NotFound(f"bookie {uuid} does not drain any more")
    return [Check(available_path, up.version), removal]
