"""What a topic costs when it is unloaded: a server may have had a million of them."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from quire.process.settings import Given
from quire.process.standalone import Standalone, load, standalone
from quire.serving.model.ports import EARLIEST
from quire.serving.names import TopicName
from quire.serving.registry import offloading
from quire.wire.message import OutgoingMessage, encode_one
from tests.serving.silent import publish_silently

TOPICS = 500
AT_ONCE = 50
BYTES_PER_TOPIC_MAX = 1200
"""With one durable subscription, and one ledger that the bookie keeps, and its label."""


async def use(running: Standalone, number: int) -> None:
    """A topic with a message that its subscription acknowledged, unloaded."""
    broker, text = running.broker, f"persistent://public/default/topic-{number}"
    await broker.admin.subscriptions.create(TopicName.parse(text), "s", EARLIEST)
    topic = await broker.registry.open_persistent(TopicName.parse(text))
    entry = encode_one(OutgoingMessage(bytes(100)), "p", 1, 1)
    publish_silently(topic, entry, head=b"\x08\x01\x10\x01")
    await topic.log.publisher.flushed()
    await broker.admin.subscriptions.skip(TopicName.parse(text), "s", None)
    await broker.registry.unload(topic.topic_name)


async def left_bytes(running: Standalone, numbers: range) -> int:
    """What is traced when these topics were used and rest, and it falls no more."""
    for start in range(numbers.start, numbers.stop, AT_ONCE):
        await asyncio.gather(*(use(running, start + number) for number in range(AT_ONCE)))
    least, looks = sys.maxsize, 0
    async with asyncio.timeout(60):
        while looks < 5:
            await running.storage.flush()
            await asyncio.sleep(0.1)
            left = tracemalloc.get_traced_memory()[0]
            looks = looks + 1 if left >= least and not len(running.broker.registry) else 0
            least = min(least, left)
    return least


async def test_what_is_left_of_topics_that_were_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By how much a second round of topics adds to the first, after which the free lists and caches are full.

    All that Python allocates in this process is counted: broker, bookie, metadata store and archive. Without a run of
    the collector, which a server hardly ever has.
    """
    monkeypatch.setattr(offloading, "ADOPT_AFTER_S", 3600.0)  # else they are loaded once more, to be archived
    flags: dict[str, Any] = {"data": str(tmp_path), "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
    async with standalone(load(Given(flags, None))) as running:
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            first = await left_bytes(running, range(1000, 1000 + TOPICS))
            second = await left_bytes(running, range(5000, 5000 + TOPICS))
        finally:
            tracemalloc.stop()
            gc.enable()
    assert (second - first) / TOPICS <= BYTES_PER_TOPIC_MAX
