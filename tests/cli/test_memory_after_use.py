"""What a topic costs when it is unloaded: a server may have had a million of them."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from quire.cli.assemble import Standalone, load_standalone, standalone
from quire.cli.settings import Given
from quire.serving.names import TopicName
from quire.serving.ports import EARLIEST
from quire.serving.topic import topic as topic_module
from quire.wire.message import OutgoingMessage, encode_one

TOPICS = 300
BYTES_PER_TOPIC_MAX = 2_500
"""It is 1,000 to 2,000 as it is measured here: one durable subscription, one ledger."""


class Silent:
    """A producer that listens to nothing."""

    name = "silent"

    def nothing(self, *_: object) -> None: ...

    write = close = nothing


async def use(running: Standalone, number: int) -> None:
    """A topic with a message that its subscription acknowledged, unloaded."""
    broker, text = running.broker, f"persistent://public/default/topic-{number}"
    await broker.create_subscription(text, "s", EARLIEST)
    topic = await broker.registry.open_persistent(TopicName.parse(text))
    entry = encode_one(OutgoingMessage(bytes(100)), "p", 1, 1)
    topic._publisher.publish(Silent(), [b"\x08\x01\x10\x01"], [entry], None)  # type: ignore[arg-type]
    await topic.flushed()
    await broker.skip_messages(text, "s", None)
    await broker.registry.unload(topic.topic_name)


async def test_what_is_left_of_topics_that_were_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a run of the collector, which a server hardly ever has."""
    monkeypatch.setattr(topic_module, "SHED_AFTER_S", 0.0)
    flags: dict[str, Any] = {"data": str(tmp_path), "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
    async with standalone(load_standalone(Given(flags, None))) as running:
        await asyncio.gather(*(use(running, number) for number in range(50)))
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for start in range(1000, 1000 + TOPICS, 50):
                await asyncio.gather(*(use(running, start + number) for number in range(50)))
            async with asyncio.timeout(30):
                while True:
                    for topic in running.broker.registry.loaded():  # once more, for the archive
                        await running.broker.registry.unload(topic.topic_name)
                    await running.storage.flush()
                    await asyncio.sleep(0.05)
                    left = tracemalloc.get_traced_memory()[0] / TOPICS
                    if left <= BYTES_PER_TOPIC_MAX and not len(running.broker.registry):
                        break
        except TimeoutError:
            pytest.fail(
                f"{left:.0f} bytes a topic are left, and {len(running.broker.registry)} topics loaded"
            )
        finally:
            tracemalloc.stop()
            gc.enable()
