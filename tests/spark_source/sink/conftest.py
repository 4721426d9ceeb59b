"""Tasks of the sink against a broker in this process, which drops duplicates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from quire.client import EARLIEST, Client, Message
from quire.serving.broker import Broker
from quire.spark_source.sink.options import parse
from quire.spark_source.sink.task import TaskPlan, Written, run
from quire.spark_source.sink.topic import Target
from tests.serving.conftest import BrokerHouse, house, in_thread

__all__ = ["house"]

TOPIC = "persistent://public/default/t"


class Sink:
    """Tasks that write to a broker, one as which all have the same name."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def plan(
        self,
        *,
        epoch: int = 0,
        spark_partition: int = 0,
        partitions: int = 0,
        grew_from: int = 0,
        entry_bytes_max: int | None = None,
        **given: str,
    ) -> TaskPlan:
        options = parse({"service_url": "http://nowhere", "topic": "t", **given})
        name = "spark-query" if options.exactly_once else ""
        target = Target(partitions, entry_bytes_max, grew_from=grew_from)
        return TaskPlan(options, self.broker.service_url, target, spark_partition, name, epoch)

    async def write(self, rows: Iterable[Any], **how: Any) -> Written:
        """`rows`: values, or dictionaries of columns; a record batch of each hundred."""
        plan, batches = self.plan(**how), batches_of(rows)
        return await in_thread(lambda: run(plan, batches))

    async def read(self, topic: str = TOPIC) -> list[Message[bytes]]:
        """All messages, in order."""
        found = []
        async with (
            Client(self.broker.service_url) as client,
            client.reader(topic, start=EARLIEST, inclusive=True) as reader,
        ):
            while await reader.has_next():
                found.append(await reader.read(10))
        return found

    async def values(self, topic: str = TOPIC) -> list[bytes]:
        return [one.payload or b"" for one in await self.read(topic)]


def batches_of(rows: Iterable[Any], per_batch: int = 100) -> list[pa.RecordBatch]:
    every = [row if isinstance(row, dict) else {"value": row} for row in rows]
    return [pa.RecordBatch.from_pylist(every[i : i + per_batch]) for i in range(0, len(every), per_batch)]


def numbered(*numbers: int) -> list[bytes]:
    return [b"%06d" % number for number in range(*numbers)]


@pytest.fixture
async def sink(house: BrokerHouse) -> Sink:
    return Sink(await house.start(deduplication=True))
