"""Inventory of all segments in the metadata store, of loaded and unloaded topics, and of all brokers.

It reads the records of all topics, so use it for operators' requests, not for background work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from quire.metadata import paths, topics
from quire.metadata.records import SegmentRecord, SegmentState
from quire.metadata.segment_states import segment_state
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound

AT_ONCE: Final = 64
"""Number of topics or ledgers that are read in parallel."""


async def all_topics(store: MetadataStore) -> AsyncIterator[topics.Topic]:
    """Yield every topic with all its segments, except topics that are deleted during the call."""
    for tenant in await store.children(paths.TOPICS):
        for namespace in await store.children(f"{paths.TOPICS}/{tenant}"):
            for domain in await store.children(f"{paths.TOPICS}/{tenant}/{namespace}"):
                folder = f"{paths.TOPICS}/{tenant}/{namespace}/{domain}"
                names = await store.children(folder)
                for start in range(0, len(names), AT_ONCE):
                    batch = (_load(store, f"{folder}/{name}") for name in names[start : start + AT_ONCE])
                    for topic in await asyncio.gather(*batch):
                        if topic is not None:
                            yield topic


async def find_topic(store: MetadataStore, name: str) -> topics.Topic | None:
    """Return a topic with all its segments, by its full name; None if it has no record."""
    domain, _, local = name.partition("://")
    tenant, namespace, topic = local.split("/", 2)
    return await _load(store, paths.topic(tenant, namespace, topic, domain))


async def _load(store: MetadataStore, path: str) -> topics.Topic | None:
    try:
        return await topics.load(store, path)
    except NotFound:
        return None  # deleted during the call, or an inner node of the tree


async def count_by_state(
    store: MetadataStore, is_flushed: Callable[[int], Awaitable[bool]]
) -> dict[str, dict[str, int]]:
    """Return the number of segments and their bytes by state, without the bytes of active segments."""
    counts = {state.value: {"segments": 0, "bytes": 0} for state in SegmentState}
    unclear: list[SegmentRecord] = []

    def count(segment: SegmentRecord, flushed: bool) -> None:
        one = counts[segment_state(segment, is_flushed=flushed).value]
        one["segments"] += 1
        one["bytes"] += segment.bytes

    async for topic in all_topics(store):
        for segment in topic.segments:
            if segment.is_sealed and segment.archive is None:
                unclear.append(segment)
            else:
                count(segment, flushed=False)
    for start in range(0, len(unclear), AT_ONCE):
        batch = unclear[start : start + AT_ONCE]
        answers = await asyncio.gather(*(is_flushed(segment.ledger_id) for segment in batch))
        for segment, flushed in zip(batch, answers, strict=True):
            count(segment, flushed)
    return counts
