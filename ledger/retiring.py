"""Retirement of bookies: a bookie's record is replaced by a retirement record.

If a bookie drains on an operator's order, its record contains the order, so a compare-and-set of the record is enough.
If it drains because its process shall stop, only its ephemeral registration contains the intent. Such a bookie may have
restarted meanwhile and received new ledgers, so the same transaction checks that its registration is unchanged.
"""

from __future__ import annotations

from quire.metadata import paths
from quire.metadata.bookie_states import TRANSITIONS, BookieEvent
from quire.metadata.records import BookieIntent, BookieRecord, decode
from quire.metadata.retirement import retirement
from quire.metadata.store import Check, Delete, MetadataStore, Step
from quire.runtime.errors import AlreadyExists, NotFound, VersionConflict


async def known_bookies(store: MetadataStore) -> dict[str, BookieRecord]:
    """Return the identity record of every bookie that was not retired, by UUID."""
    found: dict[str, BookieRecord] = {}
    for uuid in await store.children(paths.BOOKIES):
        path = paths.bookie(uuid)
        try:
            found[uuid] = decode(BookieRecord, (await store.get(path)).value, path)
        except NotFound:
            continue
    return found


async def retire(store: MetadataStore, uuid: str) -> bool:
    """Retire a drained bookie: remove its record, and create a retirement record, in one transaction.

    Return False if it is no longer draining. See `metadata.retirement`.
    """
    try:
        await store.transact([*await _steps(store, uuid), retirement(uuid)])
    except (NotFound, VersionConflict, AlreadyExists):
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
        raise NotFound(f"bookie {uuid} is not draining any more")
    return [Check(available_path, up.version), removal]
