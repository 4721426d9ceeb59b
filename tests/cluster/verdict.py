"""Checks of a topic's messages after faults of a cluster."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.chaos.load import Log, Published, Record, unrecorded

from .local import Front

TRIES = 10


async def read(
    cluster: Front, topic: str, partitions: int = 0, record: Record = unrecorded
) -> list[list[int]]:
    """Return the numbers of all messages in each partition of the topic, in order.

    `partitions` is 0 for an unpartitioned topic, which has one list.
    """
    names = [f"{topic}-partition-{number}" for number in range(partitions)] or [topic]
    logs = []
    for name in names:
        log = await _read_one(cluster, name)
        log.tell(record)
        logs.append(log.numbers())
    return logs


async def _read_one(cluster: Front, name: str) -> Log:
    """Read a topic from its beginning. Retry if the connection is lost, because a busy machine may lose sessions."""
    for attempt in range(TRIES):
        log = Log(name)
        try:
            await log.extend(lambda: cluster.connect(name), 0)
            break
        except (OSError, EOFError, TimeoutError):
            if attempt + 1 == TRIES:
                raise
            await asyncio.sleep(1.0)
    return log


def check(stream: Published, logs: list[list[int]]) -> set[int]:
    """Check a topic whose producer has receipts for all its messages. Return the numbers of the stored messages."""
    assert not stream.errors, stream.errors[:3]
    counts = Counter(number for log in logs for number in log)
    lost = sorted(stream.acknowledged - counts.keys())
    assert not lost, f"{stream.topic}: {len(lost)} acknowledged messages are lost, from {lost[:5]} on"
    assert len(stream.acknowledged) == stream.sent
    if stream.never_twice:
        assert max(counts.values()) == 1, f"{stream.topic}: duplicates {counts.most_common(3)}"
    for log in logs:
        firsts = list(dict.fromkeys(log))
        assert firsts == sorted(firsts), f"{stream.topic}: out of order"
    return set(counts)
