"""Made-up topics that grow, roll and are trimmed, and streams of them without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from quire.spark_source.stream import partitions as partitions_module
from quire.wire.message import OutgoingMessage, encode_batch, encode_one
from tests.spark_source.micro_batches import Query

TIME_MS = 1_700_000_000_000
PREFIX = "persistent://public/default/"
TOPIC = f"{PREFIX}t"


def entries(first: int, count: int) -> list[bytes]:
    return [encode_one(OutgoingMessage(b"%d" % i), "p", i, TIME_MS + i) for i in range(first, first + count)]


def batch(first: int, count: int) -> bytes:
    return encode_batch(
        [OutgoingMessage(b"%d" % i) for i in range(first, first + count)], "p", first, TIME_MS
    )


class Topic:
    """A made-up partition that grows, rolls and is trimmed, its messages numbered by their index."""

    def __init__(self, broker: Any, name: str = TOPIC, ledger_id: int = 1) -> None:
        self.broker, self.name, self.next, self.ledger_id = broker, name, 0, ledger_id
        broker.topics[name] = []

    def segment(self, count: int, *, per_entry: int = 1) -> None:
        self.broker.next_index = self.next
        content, counts = entries(self.next, count), [1] * count
        if per_entry > 1:
            content = [batch(self.next + i, per_entry) for i in range(0, count, per_entry)]
            counts = [per_entry] * len(content)
        self.broker.topics[self.name].append(self.broker.segment(self.ledger_id, content, counts))
        self.next += count
        self.ledger_id += 2

    def trim(self, count: int = 1) -> None:
        del self.broker.topics[self.name][:count]
        self.broker.trimmed[self.name] = self.next


@pytest.fixture
def topic(broker: Any) -> Topic:
    made = Topic(broker)
    made.segment(100)
    made.segment(100)
    return made


def number(row: dict[str, Any]) -> int:
    return int(row["value"])


def query(broker: Any, *, asks_end_first: bool = False, **options: str) -> Query:
    given = {"service_url": broker.url, "columns": "topic,value"}
    named = {} if "topics_pattern" in options else {"topic": "t"}
    return Query(given | named | options, asks_end_first=asks_end_first)


either_order = pytest.mark.parametrize("asks_end_first", [False, True], ids=["PySpark 4.2", "PySpark 4.1"])


@pytest.fixture(autouse=True)
def look_for_partitions_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module, "DISCOVERY_S", 0.0)
