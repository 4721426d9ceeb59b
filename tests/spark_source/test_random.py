"""What Spark is given while everything happens to a cluster: nothing short, nothing twice, nothing else.

Stock producers of every compression and batch size, with keys, deletes, chunks, delays and encryption, publish through
a gateway. Meanwhile the topic rolls (its segments are small), is archived, changes its broker, and brokers and bookies
are killed and started again. Five plans are taken in the time of each such trouble, and every tenth is read: each row
is one that was sent, once, in its producer's order, and everything is there that had a receipt before the plan. In the
end the rows are those that a stock reader gets.

`QUIRE_SPARK_PLANS=500` takes so many plans, `QUIRE_SPARK_SEED` the same choices again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, NamedTuple
from zlib import crc32

import pulsar
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pyspark.sql.datasource import InputPartition

from quire.spark_source import schema
from quire.spark_source.options import for_batch
from quire.spark_source.source import QuireReader
from tests.cluster.local import Cluster, running

PLANS = int(os.environ.get("QUIRE_SPARK_PLANS", "25"))
SEED = int(os.environ.get("QUIRE_SPARK_SEED", SystemRandom().getrandbits(32)))
SECONDS_MAX = 240 + 4.0 * PLANS
READ_EVERY = 10
PLANS_FOR_TROUBLE = 5
"""A plan takes milliseconds: by themselves they would all be taken before the first thing had happened."""
TROUBLES = ("unload", "archive", "archive", "broker", "bookie")
PACE = min(4.0, max(1.0, PLANS / 30))
"""In long runs writers rest longer, for each reading reads all that there is."""
TOPIC = "persistent://public/once/topic"
PATH = "persistent/public/once/topic"
CODECS = [getattr(pulsar.CompressionType, name) for name in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")]
COLUMNS = "message_index,properties,value,producer"
KEY = "alice"


def key_pair(directory: Path) -> pulsar.CryptoKeyReader:
    """A key pair, the private one as Spark's tasks look for it in the directory."""
    directory.mkdir()
    key = rsa.generate_private_key(65537, 2048)
    encoding, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    public, private = directory / "public", directory / f"{KEY}.pem"
    private.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no_password))
    public.write_bytes(
        key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return pulsar.CryptoKeyReader(str(public), str(private))


@dataclass
class Sent:
    """What producers sent, by name and number, and which have a receipt."""

    checksums: dict[str, int] = field(default_factory=dict)
    receipts: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)

    def receipt(self, name: str) -> Callable[[pulsar.Result, Any], None]:
        def answered(result: pulsar.Result, _: Any) -> None:
            if result == pulsar.Result.Ok:
                self.receipts.add(name)
            else:
                self.failed.append(f"{name}: {result}")

        return answered


class Writer:
    """A stock producer on a thread of its own."""

    def __init__(
        self, client: pulsar.Client, number: int, rng: Random, sent: Sent, keys: pulsar.CryptoKeyReader
    ) -> None:
        self._rng, self._sent = rng, sent
        self._name = f"writer-{number}"
        chunked = number == 0
        self._sizes = (1, 12_000_000) if chunked else (1, rng.choice([100, 3_000, 100_000]))
        self._pause_s = 2.0 if chunked else 0.02
        batch = rng.choice([1, 3, 100, 1000])
        self._is_batched = batch > 1 and not chunked
        codec = rng.choice(CODECS)
        # The stock client cannot inflate an empty payload of zlib, and discards the message; a batch is never empty.
        self._has_deletes = self._is_batched or codec == pulsar.CompressionType.NONE
        self._producer = client.create_producer(
            TOPIC,
            producer_name=self._name,
            compression_type=codec,
            batching_enabled=self._is_batched,
            chunking_enabled=chunked,
            batching_max_messages=max(2, batch),
            batching_max_publish_delay_ms=rng.choice([1, 10, 200]),
            block_if_queue_full=True,
            send_timeout_millis=0,
            **({"encryption_key": KEY, "crypto_key_reader": keys} if rng.random() < 0.5 else {}),
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            name = f"{self._name}/{number}"
            # The client sends a delayed message ahead of the batch that it gathers, which then counts as sent before.
            is_delayed = not self._is_batched and self._rng.random() < 0.1
            is_delete = self._has_deletes and self._rng.random() < 0.05
            size = 0 if is_delete else 16 + self._rng.randint(*self._sizes)
            value = self._rng.randbytes(16) * (size // 16)
            self._sent.checksums[name] = crc32(value)
            self._producer.send_async(
                value,
                self._sent.receipt(name),
                properties={"name": name},
                partition_key=self._rng.choice([None, "a", "b"]),
                deliver_after=timedelta(seconds=5) if is_delayed else None,
            )
            number += 1
            time.sleep(PACE * self._pause_s * self._rng.random())

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush()
        self._producer.close()


class Row(NamedTuple):
    """What is checked of a message: all values together would be gigabytes."""

    index: int
    name: str
    checksum: int


def check(rows: list[Row], receipts: set[str], sent: Sent) -> None:
    """The rows of one plan; `receipts` are those from before it."""
    names = [row.name for row in rows]
    assert len(set(names)) == len(names), "a message comes twice"
    assert not receipts.difference(names), "an acknowledged message is missing"
    assert [row.checksum for row in rows] == [sent.checksums[name] for name in names]
    indexes = [row.index for row in rows]
    assert indexes == sorted(set(indexes)), "rows are not in order"
    last: dict[str, int] = {}
    for name in names:
        producer, _, number = name.partition("/")
        assert int(number) == last.get(producer, -1) + 1, f"{name} is out of its producer's order"
        last[producer] = int(number)


def read(reader: QuireReader, tasks: list[InputPartition]) -> list[Row]:
    fields = schema.arrow(reader.options.columns)
    return [
        Row(row["message_index"], dict(row["properties"])["name"], crc32(row["value"]))
        for task in tasks
        for batch in reader.read(task)
        for row in pa.Table.from_batches([batch], fields).to_pylist()
    ]


async def trouble(cluster: Cluster, what: str, rng: Random) -> None:
    if what == "unload":
        await cluster.rest("PUT", f"/admin/v2/{PATH}/unload")
    elif what == "archive":
        await cluster.rest("POST", "/quire/v1/archive/run?seal=true")
    else:
        name = rng.choice(sorted(cluster.pids(what)))
        cluster.signal(name, signal.SIGKILL)
        await asyncio.sleep(rng.random())
        await cluster.restart_dead(name)
    await asyncio.sleep(rng.random())


async def take_plans(cluster: Cluster, reader: QuireReader, sent: Sent, rng: Random) -> None:
    """In rounds of all troubles, each in another order; the plans of one are spread over a second."""
    rounds = -(-PLANS // (PLANS_FOR_TROUBLE * len(TROUBLES)))
    troubles = [what for _ in range(rounds) for what in rng.sample(TROUBLES, len(TROUBLES))]
    plans = 0
    for what in troubles:
        meanwhile = asyncio.ensure_future(trouble(cluster, what, rng))
        for _ in range(PLANS_FOR_TROUBLE):
            await asyncio.sleep(0.4 * rng.random())
            receipts = set(sent.receipts)
            tasks = await asyncio.to_thread(reader.partitions)
            plans += 1
            if plans % READ_EVERY == 0:
                check(await asyncio.to_thread(read, reader, tasks), receipts, sent)
        await meanwhile
    assert plans >= PLANS


@pytest.mark.timeout(SECONDS_MAX)
async def test_every_plan_has_what_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"QUIRE_SPARK_SEED={SEED}")
    rng, sent = Random(SEED), Sent()
    keys = key_pair(tmp_path / "keys")
    monkeypatch.setenv("QUIRE_SEGMENT_BYTES_MAX", "2MiB")
    async with running(tmp_path / "cluster", session_timeout_ms="2s") as cluster:
        await cluster.rest("PUT", "/admin/v2/namespaces/public/once")
        await cluster.rest("POST", "/admin/v2/namespaces/public/once/deduplication", True)
        options = {"topic": TOPIC, "columns": COLUMNS, "crypto_key_dir": str(tmp_path / "keys")}
        reader = QuireReader(for_batch({"service_url": cluster.http_url, **options}))
        with ExitStack() as stack:
            client = pulsar.Client(
                cluster.service_url,
                logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log")),
            )
            stack.callback(client.close)
            writers = [
                await asyncio.to_thread(Writer, client, number, Random(rng.random()), sent, keys)
                for number in range(5)
            ]
            # C++ clients that connect again before their first receipt give two messages one sequence id.
            async with asyncio.timeout(60):
                while len({one.partition("/")[0] for one in sent.receipts}) < 5:  # noqa: ASYNC110  threads send
                    await asyncio.sleep(0.05)
            await take_plans(cluster, reader, sent, rng)
            await cluster.restart_dead()
            for writer in writers:
                await asyncio.to_thread(writer.close)
            assert not sent.failed and sent.receipts == set(sent.checksums)
            rows = await asyncio.to_thread(lambda: read(reader, reader.partitions()))
            check(rows, sent.receipts, sent)
            stock = await asyncio.to_thread(read_all, client, keys)
    assert len(rows) > 100
    assert [(row.name, row.checksum) for row in rows] == stock


def read_all(client: pulsar.Client, keys: pulsar.CryptoKeyReader) -> list[tuple[str, int]]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, crypto_key_reader=keys)
    found = []
    while reader.has_message_available():
        message = reader.read_next(30_000)
        found.append((message.properties()["name"], crc32(message.data())))
    reader.close()
    return found
