"""What the stock client published to a real server, read back from its archive and from its open tail."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
import pyarrow as pa
import pytest

from quire.spark_source import schema
from quire.spark_source.options import parse
from quire.spark_source.source import QuireReader

CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


class Server(NamedTuple):
    pulsar_url: str
    http_url: str

    def archive(self) -> None:
        """Seal what is open and archive it."""
        request = urllib.request.Request(f"{self.http_url}/quire/v1/archive/run?seal=true", method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            json.load(answer)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data: Path = tmp_path_factory.mktemp("standalone")
    loopback = "127.0.0.1:0"
    command = [sys.executable, "-m", "quire", "standalone", "--data", str(data)]
    process = subprocess.Popen(
        [*command, "--listen", loopback, "--http", loopback], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ready = process.stdout.readline().split()
    assert ready[0] == "ready", ready
    yield Server(ready[1], ready[2])
    process.terminate()
    process.wait(30)


@pytest.fixture
def client(server: Server) -> Iterator[pulsar.Client]:
    made = pulsar.Client(server.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


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
    assert [partition.value.archived is not None for partition in plan] == [True, False]
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
    found = rows(server, "parts")
    chunks = [row for row in found if any(key == "quire.chunk.uuid" for key, _ in row["properties"])]
    assert b"".join(row["value"] for row in chunks) == large and len(chunks) == 2
    assert len(found) == 302 and {row["partition"] for row in found} <= {0, 1, 2}
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
