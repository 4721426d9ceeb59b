"""A task's rows in a real broker: as they were given, and once, however often they are written."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from quire.client import Client, ProducerSettings
from quire.client.routing import Router
from quire.runtime.errors import QuireError
from quire.serving.names import TopicName
from quire.spark_source.sink.sequence_ids import EPOCHS, EpochOver, ReplayDiffers
from quire.spark_source.sink.task import run
from quire.wire.message import OutgoingMessage
from tests.serving.conftest import BrokerHouse, in_thread
from tests.spark_source.sink.conftest import TOPIC, Sink, batches_of, numbered


async def test_rows_arrive_in_order_with_all_they_have(sink: Sink) -> None:
    rows = [
        {
            "value": b"%d" % i,
            "key": f"k{i % 3}",
            "properties": [("n", str(i))],
            "event_time": 1000 * (1_700_000_000_000 + i),
            "ordering_key": b"o",
        }
        for i in range(2500)
    ]
    kinds = pa.schema(
        [
            ("value", pa.binary()),
            ("key", pa.string()),
            ("properties", pa.map_(pa.string(), pa.string())),
            ("event_time", pa.timestamp("us", "UTC")),
            ("ordering_key", pa.binary()),
        ]
    )
    plan = sink.plan()
    batches = [pa.RecordBatch.from_pylist(rows[i : i + 700], kinds) for i in range(0, 2500, 700)]
    written = await in_thread(lambda: run(plan, batches))
    assert (written.rows, written.repeated) == (2500, 0)
    found = await sink.read()
    assert [one.payload for one in found] == [row["value"] for row in rows]
    assert [one.key for one in found] == [row["key"] for row in rows]
    assert [one.properties["n"] for one in found] == [str(i) for i in range(2500)]
    assert [one.event_time_ms for one in found] == [1_700_000_000_000 + i for i in range(2500)]
    assert {one.ordering_key for one in found} == {b"o"}
    assert {one.producer_name for one in found} == {"spark-query.0.0"}
    assert len({one.id[:2] for one in found}) == 3, "entries of a thousand"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batching": "false"},
        {"compression": "zstd", "batch_messages_max": "7"},
        {"batch_bytes_max": "100"},
        {"delivery": "at_least_once"},
    ],
    ids=str,
)
async def test_every_way_to_make_entries(sink: Sink, options: dict[str, str]) -> None:
    await sink.write(numbered(250), **options)
    assert await sink.values() == numbered(250)


async def test_no_rows_are_no_messages(sink: Sink) -> None:
    written = await sink.write([])
    assert written.rows == 0 and await sink.values() == []


async def test_a_task_that_failed_in_the_middle_is_run_again(sink: Sink) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches_of(numbered(450))
        raise RuntimeError("the executor's disk is full")

    plan = sink.plan(batch_messages_max="100")
    with pytest.raises(RuntimeError):
        await in_thread(lambda: run(plan, broken()))
    assert await sink.values() == numbered(400), "no entry that is not full"
    written = await sink.write(numbered(1000), batch_messages_max="100")
    assert await sink.values() == numbered(1000)
    assert (written.rows, written.repeated) == (1000, 400)


async def test_an_epoch_that_was_written_whole_is_written_again(sink: Sink) -> None:
    for epoch in (0, 1, 2):
        await sink.write(numbered(100 * epoch, 100 * epoch + 100), epoch=epoch)
        again = await sink.write(numbered(100 * epoch, 100 * epoch + 100), epoch=epoch)
        assert again.repeated == again.rows == 100
    assert await sink.values() == numbered(300)


async def test_epochs_go_on_in_the_next_generation(sink: Sink) -> None:
    for epoch in (EPOCHS - 1, EPOCHS, EPOCHS):
        await sink.write(numbered(epoch, epoch + 1), epoch=epoch)
    assert await sink.values() == numbered(EPOCHS - 1, EPOCHS + 1)


async def test_spark_partitions_do_not_hinder_each_other(sink: Sink) -> None:
    await asyncio.gather(*(sink.write(numbered(100 * i, 100 * i + 100), spark_partition=i) for i in range(4)))
    assert sorted(await sink.values()) == numbered(400)


async def test_a_replay_with_other_rows_is_refused_and_writes_nothing(sink: Sink) -> None:
    await sink.write(numbered(400), batch_messages_max="100")
    for rows in (numbered(400)[::-1], numbered(1, 500), numbered(399), numbered(200)):
        with pytest.raises(ReplayDiffers, match="epoch 0 is written again to persistent://public/default/t"):
            await sink.write(rows, batch_messages_max="100")
    assert await sink.values() == numbered(400)


async def test_rows_in_the_order_of_their_content_may_come_in_any(sink: Sink) -> None:
    rows = numbered(400)
    await sink.write(rows[::-1], row_order="content", batch_messages_max="100")
    written = await sink.write(rows[7:] + rows[:7], row_order="content", batch_messages_max="100")
    assert written.repeated == 400
    assert await sink.values() == rows


async def test_an_old_copy_of_the_checkpoint_is_refused(sink: Sink) -> None:
    await sink.write(numbered(10), epoch=8)
    with pytest.raises(EpochOver, match="old copy"):
        await sink.write(numbered(10), epoch=7)


async def test_two_tasks_of_one_partition_at_the_same_time(sink: Sink) -> None:
    """As Spark's speculation has them: the second waits for the first, and writes nothing."""
    reached, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[pa.RecordBatch]:
        yield from batches_of(numbered(500))
        reached.set()
        assert go_on.wait(60)
        yield from batches_of(numbered(500, 1000))

    plan = sink.plan(batch_messages_max="100")
    first = asyncio.create_task(in_thread(lambda: run(plan, slow())))
    await in_thread(lambda: reached.wait(60))
    second = asyncio.create_task(sink.write(numbered(1000), batch_messages_max="100"))
    await asyncio.sleep(0.2)
    assert not second.done()
    go_on.set()
    assert (await first).repeated == 0
    assert (await second).repeated == 1000
    assert await sink.values() == numbered(1000)


async def test_a_task_does_not_wait_for_the_other_for_ever(sink: Sink) -> None:
    async with Client(sink.broker.service_url) as client, client.producer(TOPIC, name="spark-query.0.0"):
        with pytest.raises(QuireError, match="another task still writes Spark partition 0"):
            await sink.write(numbered(5), send_timeout="1s")


async def test_the_broker_restarts_under_a_task(house: BrokerHouse, sink: Sink) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def halting() -> Iterator[pa.RecordBatch]:
        yield from batches_of(numbered(500))
        reached.set()
        assert go_on.wait(60)
        yield from batches_of(numbered(500, 1000))

    plan = sink.plan(batch_messages_max="50")
    task = asyncio.create_task(in_thread(lambda: run(plan, halting())))
    await in_thread(lambda: reached.wait(60))
    await house.kill(sink.broker)
    go_on.set()
    sink.broker = await house.start(deduplication=True)
    assert (await task).rows == 1000
    assert await sink.values() == numbered(1000)
    assert (await sink.write(numbered(1000), batch_messages_max="50")).repeated == 1000


async def test_a_task_dies_with_the_broker_and_is_run_again(house: BrokerHouse, sink: Sink) -> None:
    def dying() -> Iterator[pa.RecordBatch]:
        yield from batches_of(numbered(500))
        asyncio.run_coroutine_threadsafe(house.kill(sink.broker), loop).result(60)
        raise RuntimeError("killed")

    loop = asyncio.get_running_loop()
    plan = sink.plan(batch_messages_max="50")
    with pytest.raises(RuntimeError):
        await in_thread(lambda: run(plan, dying()))
    sink.broker = await house.start(deduplication=True)
    await sink.write(numbered(1000), batch_messages_max="50")
    assert await sink.values() == numbered(1000)


async def test_large_values_go_in_chunks_once(sink: Sink) -> None:
    rows = [b"small", bytes(12_000_000), b"tiny"]
    for repeated in (0, 3):
        written = await sink.write(rows, chunking="true")
        assert written.repeated == repeated
    assert await sink.values() == rows


async def test_a_value_that_is_too_large_is_named(sink: Sink) -> None:
    rows = [*numbered(5), bytes(6_000_000), *numbered(5, 10)]
    with pytest.raises(
        QuireError, match=r"row 5 of Spark partition 2 for persistent://public/default/t: .* too large"
    ):
        await sink.write(rows, spark_partition=2)
    assert await sink.values() == numbered(5), "nothing follows what is refused"


async def test_entries_are_no_larger_than_the_topic_allows(sink: Sink) -> None:
    rows = [bytes([i]) * 10_000 for i in range(50)]
    await sink.write(rows, entry_bytes_max=50_000)
    found = await sink.read()
    assert [one.payload for one in found] == rows and len({one.id[:2] for one in found}) > 10
    with pytest.raises(
        QuireError, match=r"row 1 of .*: 50016 bytes exceed the topic's policy maxMessageSize"
    ):
        await sink.write([b"x", bytes(50_000)], entry_bytes_max=50_000, epoch=1)


async def test_a_row_that_cannot_be_a_message_is_named(sink: Sink) -> None:
    with pytest.raises(QuireError, match=r"row 1 of Spark partition 0 for .*: its partition is 7"):
        await sink.write([{"value": b"a", "partition": None}, {"value": b"b", "partition": 7}])


PARTITIONS = 4


class Target:
    """A partition, as clients' routers see it."""

    is_gathering = False


@pytest.fixture
async def parts(sink: Sink) -> Sink:
    await sink.broker.registry.create(TopicName.parse(TOPIC), PARTITIONS, {})
    return sink


async def test_rows_go_to_the_partitions_they_name(parts: Sink) -> None:
    rows = [{"value": value, "partition": i % PARTITIONS} for i, value in enumerate(numbered(400))]
    await parts.write(rows, partitions=PARTITIONS)
    for i in range(PARTITIONS):
        assert await parts.values(f"{TOPIC}-partition-{i}") == numbered(i, 400, PARTITIONS)


@pytest.mark.parametrize("hashing", ["java", "murmur3"])
async def test_keys_go_where_clients_put_them(parts: Sink, hashing: str) -> None:
    rows = [{"value": value, "key": f"key-{i % 17}"} for i, value in enumerate(numbered(400))]
    await parts.write(rows, partitions=PARTITIONS, hashing=hashing, batching="by_key")
    router = Router(hashing, 0)
    every = [Target() for _ in range(PARTITIONS)]
    for i in range(PARTITIONS):
        found = await parts.read(f"{TOPIC}-partition-{i}")
        assert found
        for one in found:
            assert router.choose(OutgoingMessage(b"", one.key), every) is every[i]


async def test_rows_without_keys_spread_and_do_so_again(parts: Sink) -> None:
    for _ in range(2):
        await parts.write(numbered(400), partitions=PARTITIONS, batch_messages_max="20")
    sizes = [len(await parts.values(f"{TOPIC}-partition-{i}")) for i in range(PARTITIONS)]
    assert sizes == [100] * PARTITIONS


# -- partitions that are added between two attempts ------------------------------------------------------


def _keyed(count: int) -> list[dict[str, Any]]:
    return [{"value": value, "key": f"k{i % 50}"} for i, value in enumerate(numbered(count))]


def _plain(count: int) -> list[dict[str, Any]]:
    return [{"value": value} for value in numbered(count)]


async def _everything(sink: Sink, partitions: int) -> list[bytes]:
    found: list[bytes] = []
    for i in range(partitions):
        found += await sink.values(f"{TOPIC}-partition-{i}")
    return sorted(found)


@pytest.mark.parametrize("kind", [_keyed, _plain])
@pytest.mark.parametrize("count", [20, 50, 1000])
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "half"])
async def test_an_epoch_is_written_once_though_the_topic_grows(
    parts: Sink, kind: Callable[[int], list[dict[str, Any]]], count: int, is_whole: bool
) -> None:
    rows = kind(count)
    size = str(max(1, count // 10))

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches_of(rows[: count * 3 // 5])
        raise RuntimeError("the executor died")

    async def attempt(epoch: int, before: int, partitions: int) -> None:
        plan = parts.plan(
            epoch=epoch, partitions=partitions, grew_from=before, spark_partition=2, batch_messages_max=size
        )
        with contextlib.suppress(RuntimeError):
            await in_thread(lambda: run(plan, batches_of(rows) if is_whole else broken()))

    name = TopicName.parse(TOPIC)
    for epoch, (before, now, then) in enumerate([(0, 4, 6), (4, 6, 13)]):
        await attempt(epoch, before, now)
        await parts.broker.partitioned.grow(name, then)
        written = await parts.write(
            rows, epoch=epoch, partitions=then, grew_from=now, spark_partition=2, batch_messages_max=size
        )
        assert written.rows == count
        assert await _everything(parts, then) == sorted(numbered(count) * (epoch + 1))
    await parts.write(rows, epoch=2, partitions=13, grew_from=6, batch_messages_max=size)
    assert await _everything(parts, 13) == sorted(numbered(count) * 3)
    if count == 1000:
        assert await parts.values(f"{TOPIC}-partition-9"), "the next epoch goes to the new partitions, too"


async def test_a_row_may_name_a_partition_that_was_added_for_it(parts: Sink) -> None:
    rows = [{"value": b"a", "partition": 1}, {"value": b"b", "partition": 5}]
    with pytest.raises(QuireError, match="its partition is 5, but the topic has 4"):
        await parts.write(rows, partitions=4, batching="false")
    await parts.broker.partitioned.grow(TopicName.parse(TOPIC), 6)
    await parts.write(rows, partitions=6, grew_from=4, batching="false")
    assert await _everything(parts, 6) == [b"a", b"b"]


async def test_at_least_once_writes_what_it_is_told(sink: Sink) -> None:
    for _ in range(2):
        await sink.write(numbered(10), delivery="at_least_once")
    assert await sink.values() == numbered(10) * 2


async def test_other_producers_go_on_beside_it(sink: Sink) -> None:
    settings = ProducerSettings(batch_messages_max=10)
    async with Client(sink.broker.service_url) as client, client.producer(TOPIC, settings=settings) as other:
        for i in range(100):
            await other.enqueue(b"other %d" % i)
        await sink.write(numbered(1000))
        await sink.write(numbered(1000))
    values = await sink.values()
    assert len(values) == 1100 and [one for one in values if not one.startswith(b"other")] == numbered(1000)
