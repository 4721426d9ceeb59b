"""All ledgers there are, and those that nobody lists.

A ledger's record is written before anything else, and its owner lists it right after; a process that dies between the
two leaves an *orphan*: a record, perhaps bytes, and nobody who would ever read or delete them. `purpose` in the record
says who should list it. The search is made on demand, for it reads everything: ledgers first, lists after that, so a
ledger that was listed meanwhile is found; and only ledgers older than `grace_ms` count, for an owner may be about to
list a young one.

What it cannot judge (a purpose that it does not know) is no orphan. Nothing is deleted unless it is asked for.
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


class Orphan(NamedTuple):
    """A ledger that its owner does not list."""

    ledger_id: int
    purpose: str
    bytes: int
    created_ms: int


async def ledger_ids(store: MetadataStore) -> AsyncIterator[int]:
    """The id of every ledger that has a record, in at most 257 operations."""
    for folder in await store.children(paths.LEDGERS):
        for name in await store.children(f"{paths.LEDGERS}/{folder}"):
            yield int(name, 16)


async def orphans(store: MetadataStore, now_ms: int, grace_ms: int = GRACE_MS) -> list[Orphan]:
    """Ledgers of topics and state logs that these do not list."""
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
    """Ledgers that some topic's list or some state log names."""
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


async def _leaves(store: MetadataStore, path: str, depth: int) -> AsyncIterator[str]:
    for name in await store.children(path):
        if depth == 1:
            yield f"{path}/{name}"
        else:
            async for leaf in _leaves(store, f"{path}/{name}", depth - 1):
                yield leaf
