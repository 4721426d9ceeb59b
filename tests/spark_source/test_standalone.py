"""What the stock client published to a real server, read back from its archive and from its open tail."""

from __future__ import annotations

import urllib.request
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pulsar.schema import Array, AvroSchema, JsonSchema, Long, Record, String

from quire.spark_source import schema
from quire.spark_source.options import parse
from quire.spark_source.source import QuireReader
from tests.spark_source.conftest import Server

CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


def publish(client: pulsar.Client, topic: str, numbers: range, codec: str, *, batched: bool) -> None:
    producer = client.create_producer(
        topic,
        producer_name=f"{codec}-{batched}-{numbers.start}",
        compression_type=CODECS[codec],
        batching_enabled=batched,
        batching_max_publish_delay_ms=5,
        block_if_queue_full=True,
    )
    for number in numbers:
        producer.send_async(
            b"%d" % number * (1 + number % 50),
            lambda result, _: None,
            partition_key=f"key-{number % 7}" if number % 3 else None,
            properties={"number": str(number)} if number % 5 else {},
            event_timestamp=number + 1 if number % 2 else None,
        )
    producer.flush()
    producer.close()


def reader_of(server: Server, topic: str, **options: str) -> QuireReader:
    return QuireReader(parse({"service_url": server.http_url, "topic": topic, **options}))


def rows(server: Server, topic: str, **options: str) -> list[dict[str, Any]]:
    reader = reader_of(server, topic, **options)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    found: list[dict[str, Any]] = pa.Table.from_batches(
        batches, schema.arrow(reader.options.columns)
    ).to_pylist()
    return found


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_what_a_stock_client_published(
    server: Server, client: pulsar.Client, codec: str, batched: bool
) -> None:
    topic = f"{codec}-{batched}"
    publish(client, topic, range(600), codec, batched=batched)
    server.archive()
    publish(client, topic, range(600, 900), codec, batched=batched)
    plan = reader_of(server, topic).partitions()
    assert [piece.archived is not None for task in plan for piece in task.value] == [True, False]
    found = rows(server, topic)
    assert [row["message_index"] for row in found] == list(range(900))
    for number, row in enumerate(found):
        assert row["value"] == b"%d" % number * (1 + number % 50)
        assert row["key"] == (b"key-%d" % (number % 7) if number % 3 else None)
        assert row["properties"] == ([("number", str(number))] if number % 5 else [])
        assert (row["event_time"] is None) == (number % 2 == 0)
        assert row["topic"] == f"persistent://public/default/{topic}"
        assert row["producer"].startswith(f"{codec}-{batched}-")
    middle = found[450]
    start = ":".join(str(part) for part in (middle["ledger"], middle["entry"], max(middle["batch_index"], 0)))
    assert rows(server, topic, start=start) == found[450:]


def test_a_partitioned_topic_and_chunks(server: Server, client: pulsar.Client) -> None:
    url = f"{server.http_url}/admin/v2/persistent/public/default/parts/partitions"
    urllib.request.urlopen(urllib.request.Request(url, data=b"3", method="PUT"), timeout=10).close()
    publish(client, "parts", range(300), "none", batched=True)
    producer = client.create_producer("parts-partition-1", chunking_enabled=True, batching_enabled=False)
    large = bytes(range(256)) * 24_000
    producer.send(large)
    producer.close()
    found = rows(server, "parts", chunks="raw")
    chunks = [row for row in found if any(key == "quire.chunk.uuid" for key, _ in row["properties"])]
    assert b"".join(row["value"] for row in chunks) == large and len(chunks) == 2
    assert len(found) == 302 and {row["partition"] for row in found} <= {0, 1, 2}
    found = rows(server, "parts")
    assert len(found) == 301 and [row["value"] for row in found].count(large) == 1
    assert {row["topic"] for row in found} == {"persistent://public/default/parts"}


@pytest.mark.spark
def test_spark_over_a_real_server(server: Server, client: pulsar.Client, spark: Any) -> None:
    publish(client, "sparkling", range(2000), "zstd", batched=True)
    server.archive()
    publish(client, "sparkling", range(2000, 3000), "none", batched=False)
    frame = spark.read.format("quire").options(service_url=server.http_url, topic="sparkling").load()
    counted = frame.groupBy("key").count().collect()  # binary columns are bytes or bytearray, by version
    found = {None if row.key is None else bytes(row.key): row["count"] for row in counted}
    keys = [b"key-%d" % (number % 7) if number % 3 else None for number in range(3000)]
    assert found == {key: keys.count(key) for key in keys}


class Order(Record):  # type: ignore[misc]
    item = String()
    cents = Long()
    tags = Array(String())


@pytest.mark.spark
def test_spark_reads_typed_values(server: Server, client: pulsar.Client, spark: Any) -> None:
    for topic, schema_of in (("orders-avro", AvroSchema(Order)), ("orders-json", JsonSchema(Order))):
        producer = client.create_producer(topic, schema=schema_of)
        for number in range(100):
            producer.send_async(
                Order(item=f"i{number}", cents=number, tags=["a", "b"] if number % 2 else None),
                lambda *_: None,
            )
        producer.flush()
        producer.close()
        options = {"service_url": server.http_url, "topic": topic, "value_schema": "auto"}
        frame = spark.read.format("quire").options(**options, on_bad_value="null").load()
        rows = frame.select("value.*", "value_error").orderBy("cents").collect()
        expected = [(f"i{number}", number, ["a", "b"] if number % 2 else None, None) for number in range(100)]
        assert [(row.item, row.cents, row.tags, row.value_error) for row in rows] == expected
