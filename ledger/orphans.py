"""Enumeration of all ledgers, and search for orphaned ledgers, which no owner lists.

A ledger's record is written first, and its owner lists the ledger right after. A process that dies between these writes
leaves an *orphan*: a record, perhaps blocks, and no owner that would read or delete them. The record's `purpose` names
the owner that should list it.

The search runs on demand, because it reads all records. It reads the ledgers' records before the owners' lists, so a
ledger that its owner lists meanwhile does not count as an orphan. Only ledgers older than `grace_ms` count, because an
owner may be about to list a younger one. A ledger with an unknown purpose is not an orphan. Orphans are deleted only on
an operator's order. Immediately before each deletion, the store's cluster id is confirmed, and the ledger's record and
its owner's list are read again (`is_listed`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from quire.metadata import paths, topics
from quire.metadata.records import (
    LedgerRecord,
    StateLogRecord,
    decode,
)
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound

GRACE_MS: Final = 3_600_000
"""Age in ms from which a ledger may be an orphan: far longer than an owner needs to list a new ledger."""


class Orphan(NamedTuple):
    """Ledger that its owner does not list."""

    ledger_id: int
    purpose: str
    bytes: int
    created_ms: int


async def ledger_ids(store: MetadataStore) -> AsyncIterator[int]:
    """Yield the id of every ledger that has a record, in at most 257 operations."""
    for folder in await store.children(paths.LEDGERS):
        for name in await store.children(f"{paths.LEDGERS}/{folder}"):
            yield int(name, 16)


async def orphans(store: MetadataStore, now_ms: int, grace_ms: int = GRACE_MS) -> list[Orphan]:
    """Return the ledgers of topics and state logs that their owners do not list."""
    candidates: dict[int, LedgerRecord] = {}
    async for ledger_id in ledger_ids(store):
        path = paths.ledger(ledger_id)
        try:
            record = decode(LedgerRecord, (await store.get(path)).value, path)
        except NotFound:
            continue
        is_known_kind = record.purpose.partition(":")[0] in ("topic", "compacted", "state")
        if is_known_kind and record.created_ms + grace_ms <= now_ms:
            candidates[ledger_id] = record
    listed = await _listed(store)
    return [
        Orphan(ledger_id, record.purpose, record.bytes, record.created_ms)
        for ledger_id, record in sorted(candidates.items())
        if ledger_id not in listed
    ]


async def _listed(store: MetadataStore) -> set[int]:
    """Return the ledgers that a topic or a state log lists."""
    found: set[int] = set()
    async for path in _leaves(store, paths.TOPICS, 4):
        try:
            topic = await topics.load(store, path)
        except NotFound:
            continue
        found |= {segment.ledger_id for segment in topic.segments}
        if topic.record.compacted is not None:
            found.add(topic.record.compacted.ledger_id)
    async for path in _leaves(store, paths.STATE, 3):
        try:
            found |= set(decode(StateLogRecord, (await store.get(path)).value, path).ledgers)
        except NotFound:
            continue
    return found


async def is_listed(store: MetadataStore, record: LedgerRecord) -> bool:
    """Return whether the owner named by the ledger's purpose lists it now; True if the purpose is unknown."""
    kind, _, whose = record.purpose.partition(":")
    try:
        if kind in ("topic", "compacted"):
            domain, _, name = whose.partition("://")
            tenant, namespace, local = name.split("/", 2)
            topic = await topics.load(store, paths.topic(tenant, namespace, local, domain))
            compacted = topic.record.compacted
            listed = {segment.ledger_id for segment in topic.segments}
            return record.ledger_id in listed or (
                compacted is not None and compacted.ledger_id == record.ledger_id
            )
        if kind == "state":
            path = paths.state_log(*whose.split("/"))
            return record.ledger_id in decode(StateLogRecord, (await store.get(path)).value, path).ledgers
    except NotFound:
        return False
    return True


async def _leaves(store: MetadataStore, path: str, depth: int) -> AsyncIterator[str]:
    for name in await store.children(path):
        if depth == 1:
            yield f"{path}/{name}"
        else:
            async for leaf in _leaves(store, f"{path}/{name}", depth - 1):
                yield leaf
