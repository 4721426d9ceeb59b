"""All segments of a cluster, as the metadata store tells them: whoever serves their topics, loaded or not.

Reads the whole tree of topics, many records at a time: for what an operator asks, not for what runs by itself.
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
"""Topics that are read, or ledgers that are asked for, at the same time."""


async def all_topics(store: MetadataStore) -> AsyncIterator[topics.Topic]:
    """Every topic with all of its segments. One that is deleted meanwhile is left out."""
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


async def _load(store: MetadataStore, path: str) -> topics.Topic | None:
    try:
        return await topics.load(store, path)
    except NotFound:
        return None  # deleted meanwhile, or no topic but a node above topics


async def count_by_state(
    store: MetadataStore, is_flushed: Callable[[int], Awaitable[bool]]
) -> dict[str, dict[str, int]]:
    """For each state its number of segments and their bytes. An active segment's bytes are not counted."""
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
