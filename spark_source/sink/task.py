"""Writer of one Spark task's rows. It collects them into entries of topic partitions, and publishes these in order.

    record batches ─▶ rows ─▶ an open entry for each topic partition ──full──▶ numbered, sent ─▶ in flight ─▶ receipt

Spark's rows come from a blocking iterator, which runs in a thread, so that connections stay alive while it blocks. At
most `IN_FLIGHT_BYTES_MAX` are without a receipt. The contents of an entry depend only on the rows (rule 2 of the
package). A task that fails closes its producers without a flush, so that it sends nothing more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from quire.client import Client, Producer, ProducerBusy, PublishFailed, PublishUnknown
from quire.client.authentication import presenting
from quire.client.batch import Publication
from quire.client.routing import full_name, partition_name
from quire.client.schema import BYTES, Schema
from quire.runtime.errors import ConfigurationError, QuireError, Unavailable
from quire.runtime.limits import KIB, MIB
from quire.spark_source.sink.options import SinkOptions
from quire.spark_source.sink.rows import Row, RowRefused, read
from quire.spark_source.sink.sequence_ids import EPOCHS, EpochOver, ReplayDiffers, SequenceIds, routing_of
from quire.spark_source.sink.topic import Target, prepare, publish_url
from quire.spark_source.sink.values import Encoder, TopicSchema
from quire.wire import pulsar_pb2 as pb
from quire.wire.hashing import java_string_hash, murmur3_32
from quire.wire.message import OutgoingMessage

IN_FLIGHT_BYTES_MAX: Final = 16 * MIB
SORTED_BYTES_MAX: Final = 256 * MIB
"""Maximum size of a task's rows with `row_order=content`, which sorts them in memory."""

ENTRY_OVERHEAD_BYTES: Final = 1 * KIB
"""Upper bound of an entry's overhead: its bytes in addition to its rows."""

BUSY_PAUSE_S: Final = 0.5

HASHES: Final[Mapping[str, Callable[[str], int]]] = {
    "java": lru_cache(1 << 16)(java_string_hash),
    "murmur3": lambda key: murmur3_32(key.encode()),
}


@dataclass(frozen=True)
class TaskPlan:
    """Parameters of a task: its options, Spark partition, epoch and producer name.

    If `name` is "", the broker assigns one. `url` and `target` belong to the option topic. Without that option the task
    looks up the topics of its rows.
    """

    options: SinkOptions
    url: str
    target: Target
    spark_partition: int
    name: str
    epoch: int
    routes: int = 0
    """Number of partitions to which rows without a partition are routed.

    0 means all partitions, or as many as the epoch's stored rows record.
    """

    @property
    def producer_name(self) -> str:
        return f"{self.name}.{self.spark_partition}.{self.epoch // EPOCHS}" if self.name else ""


@dataclass
class Written:
    """Rows and bytes that a task has written. `repeated` is the number of rows that had been written before."""

    rows: int = 0
    bytes: int = 0
    repeated: int = 0


class _Registered(Schema[bytes]):
    """Schema of values that are already encoded. Producers declare it, and each message has its version."""

    def __init__(self, schema: TopicSchema) -> None:
        self._info = schema.info

    @property
    def info(self) -> pb.Schema:
        return self._info

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, payload: bytes, key: bytes | None, writer: pb.Schema | None) -> bytes:
        return payload


class _InFlight(NamedTuple):
    publication: Publication
    topic: str
    first_row: int
    rows: int
    bytes: int


class _Topic:
    """Topic of some rows: its partitions, and the number of partitions to which rows without one are routed."""

    def __init__(self, name: str, target: Target, plan: TaskPlan) -> None:
        self.name = name
        self.target = target
        self.routes = plan.routes or target.partitions or 1
        self.partitions: dict[int, _Partition] = {}
        """Partitions with an attached producer, by number."""
        largest, bytes_max = target.entry_bytes_max, plan.options.producer.batch_bytes_max
        self.entry_bytes = bytes_max if largest is None else min(bytes_max, largest - ENTRY_OVERHEAD_BYTES)
        """Maximum bytes of rows, before compression, in one entry."""

    def partition_name(self, partition: int) -> str:
        return partition_name(self.name, partition) if self.target.partitions else self.name


class _Partition:
    """One topic partition: its producer, and the entry that is being filled."""

    def __init__(self, of: _Topic, topic: str, producer: Producer[bytes], ids: SequenceIds) -> None:
        self.of = of
        self.topic = topic
        self.producer = producer
        self.ids = ids
        self.messages: list[OutgoingMessage] = []
        self.bytes = 0
        self.first_row = 0

    def compare_recorded(self) -> None:
        """Compare with the sequence ids that the broker returned at attachment. Raises `EpochOver`, `ReplayDiffers`."""
        for sequence_id in self.producer.recorded_sequence_ids:
            self.ids.recorded(sequence_id)

    def open_entry(self, row: int) -> None:
        """Open the next entry, whose first row is `row`."""
        self.messages, self.bytes, self.first_row = [], 0, row


def run(plan: TaskPlan, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write a task's rows, and return when all are stored. Raises a `QuireError` with topic and rows."""
    return asyncio.run(_Task(plan).run(iter(batches)))


class _Task:
    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._settings = plan.options.producer
        self._client: Client | None = None
        self._topics: dict[str, _Topic] = {}
        """Topics by the names in rows; \"\" for the option topic."""
        self._in_flight: deque[_InFlight] = deque()
        self._bytes_in_flight = 0
        self._turn = plan.spark_partition
        """Partition for rows without a key. After each entry, the next partition follows, round-robin."""
        self._hash = HASHES[self._settings.hashing]
        schema = plan.target.schema
        self._encode = None if schema is None else Encoder(schema).encode
        self._schema = BYTES if schema is None else _Registered(schema)
        self._written = Written()

    async def run(self, batches: Iterator[pa.RecordBatch]) -> Written:
        try:
            if self._plan.options.topic:
                await self._open_topic(self._plan.options.topic, self._plan.target, self._plan.url)
            await (self._all_sorted if self._plan.options.sorts else self._all)(batches)
            await self._finish()
            return self._written
        except RowRefused as error:
            raise QuireError(self._where(error.row, 1, self._topic_name) + str(error)) from None
        except (ReplayDiffers, EpochOver) as error:
            raise type(error)(f"{self._replay()}{error}") from None
        finally:
            for target in self._partitions():
                await target.producer.close(flush=False)
            if self._client is not None:
                await self._client.close()

    def _partitions(self) -> Iterator[_Partition]:
        for topic in {id(one): one for one in self._topics.values()}.values():
            yield from topic.partitions.values()

    def _read(self, batch: pa.RecordBatch, first_row: int) -> Iterator[Row]:
        return read(batch, first_row, self._encode, names_topics=not self._plan.options.topic)

    async def _all(self, batches: Iterator[pa.RecordBatch]) -> None:
        first_row = 0
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            await self._write_rows(self._read(batch, first_row), first_row)
            first_row += batch.num_rows

    async def _all_sorted(self, batches: Iterator[pa.RecordBatch]) -> None:
        held: list[Row] = []
        size = 0
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            first = len(held)
            held += self._read(batch, first)
            size += sum(message.size for message, _, _ in held[first:])
            if size > SORTED_BYTES_MAX:
                raise ConfigurationError(
                    f"row_order=content keeps a task's rows in memory, and Spark partition "
                    f"{self._plan.spark_partition} has more than {SORTED_BYTES_MAX // MIB} MiB of them: write smaller "
                    "micro-batches, or more partitions"
                )
        held.sort(key=_contents)
        await self._write_rows(iter(held), 0)

    async def _write_rows(self, rows: Iterator[Row], first_row: int) -> None:
        messages_max = self._settings.batch_messages_max
        by_key = self._plan.options.by_key
        for row, (one, named, name) in enumerate(rows, first_row):
            topic = self._topics.get(name) or await self._look_up(name, row)
            partition = self._choose(topic, one, named, row)
            target = topic.partitions.get(partition) or await self._open(topic, partition)
            size = one.size
            held = target.messages
            if held and (target.bytes + size > topic.entry_bytes or (by_key and held[0].key != one.key)):
                await self._send(target)
            if not target.messages:
                target.open_entry(row)
            target.messages.append(one)
            target.bytes += size
            if len(target.messages) == messages_max:
                await self._send(target)

    def _choose(self, topic: _Topic, one: OutgoingMessage, named: int | None, row: int) -> int:
        """Return the partition of a row, which depends only on the rows and on the epoch's routing."""
        if named is not None:
            partitions = topic.target.partitions or 1
            if not 0 <= named < partitions:
                remedy = "drop(partition) routes rows by their keys"
                raise RowRefused(row, f"its partition is {named}, but the topic has {partitions}; {remedy}")
            return named
        if topic.routes == 1:
            return 0
        return (self._turn if one.key is None else self._hash(one.key)) % topic.routes

    # -- Topics ----------------------------------------------------------------------------------------

    async def _look_up(self, name: str, row: int) -> _Topic:
        """Return the topic that a row's column names, and open it once. Equivalent names are one topic."""
        try:
            full = full_name(name)
        except ConfigurationError as error:
            raise RowRefused(row, str(error)) from None
        if full not in self._topics:
            options = replace(self._plan.options, topic=full)
            target = await asyncio.to_thread(prepare, options)
            url = await asyncio.to_thread(publish_url, options, target.partitions)
            await self._open_topic(full, target, url)
        self._topics[name] = self._topics[full]
        return self._topics[name]

    async def _open_topic(self, name: str, target: Target, url: str) -> None:
        plan = self._plan
        if self._client is None:
            tls = plan.options.tls
            self._client = Client(url, tls=tls, authentication=presenting(plan.options.credentials, tls))
        self._topics[name] = topic = _Topic(name, target, plan)
        if plan.options.topic:
            self._topics[""] = topic
        if plan.name and target.grew_from and not plan.routes:
            await self._find_routes(topic)

    async def _find_routes(self, topic: _Topic) -> None:
        """Route rows by the number of partitions that an earlier attempt used, which may be smaller.

        To find it, attach to all partitions first, in order, so that concurrent attempts cannot deadlock.
        """
        plan, target = self._plan, topic.target
        for partition in range(target.partitions):
            await self._attach(topic, partition)
        recorded = {
            number: max(one.producer.recorded_sequence_ids) for number, one in topic.partitions.items()
        }
        found = routing_of(recorded, plan.epoch, target.partitions, target.grew_from)
        topic.routes = found.routes
        for one in topic.partitions.values():
            one.ids = SequenceIds(plan.epoch, found.routes if found.is_numbered else 0)
            one.compare_recorded()

    async def _open(self, topic: _Topic, partition: int) -> _Partition:
        made = await self._attach(topic, partition)
        made.compare_recorded()
        return made

    async def _attach(self, topic: _Topic, partition: int) -> _Partition:
        name = topic.partition_name(partition)
        made = _Partition(topic, name, await self._producer(name), SequenceIds(self._plan.epoch))
        topic.partitions[partition] = made
        return made

    async def _producer(self, topic: str) -> Producer[bytes]:
        """Return an attached producer. Wait while another producer with the same name is attached."""
        plan = self._plan
        assert self._client is not None
        loop = asyncio.get_running_loop()
        end_s = loop.time() + plan.options.send_timeout_s
        while True:
            made = self._client.producer(
                topic, schema=self._schema, name=plan.producer_name, settings=self._settings
            )
            try:
                await made.start()
                return made
            except ProducerBusy as error:
                if loop.time() > end_s:
                    raise Unavailable(
                        f"another task still writes Spark partition {plan.spark_partition} to {topic} ({error})"
                    ) from None
            await asyncio.sleep(BUSY_PAUSE_S)

    # -- Entries ---------------------------------------------------------------------------------------

    async def _send(self, target: _Partition) -> None:
        """Send the partition's open entry, as soon as the limit of bytes in flight allows it."""
        messages, size, first_row = target.messages, target.bytes, target.first_row
        target.open_entry(first_row + len(messages))
        largest = target.of.target.entry_bytes_max
        if largest is not None and size > largest - ENTRY_OVERHEAD_BYTES:
            raise PublishFailed(
                f"{self._where(first_row, len(messages), target.topic)}{size} bytes exceed the topic's policy "
                f"maxMessageSize, {largest} bytes per entry"
            )
        while self._in_flight and self._bytes_in_flight + size > IN_FLIGHT_BYTES_MAX:
            await self._settle()
        ids = target.ids.next(messages)
        try:
            publication = target.producer.send_entry(messages, *ids)
        except PublishFailed as error:
            raise PublishFailed(self._where(first_row, len(messages), target.topic) + str(error)) from None
        self._in_flight.append(_InFlight(publication, target.topic, first_row, len(messages), size))
        self._bytes_in_flight += size
        if messages[0].key is None:
            self._turn += 1
        while self._in_flight and (publication.is_done or self._in_flight[0].publication.is_done):
            await self._settle()  # at once if encoding failed, because no entry may follow

    async def _settle(self) -> None:
        """Wait for the receipt of the oldest entry. Raises `PublishFailed`, `PublishUnknown`."""
        one = self._in_flight.popleft()
        self._bytes_in_flight -= one.bytes
        timeout_s = self._plan.options.send_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                receipt = await one.publication
        except TimeoutError:
            raise PublishUnknown(
                f"{self._where(one.first_row, one.rows, one.topic)}no receipt within {timeout_s:g} s; it is "
                "unknown whether they are stored"
            ) from None
        except (PublishFailed, PublishUnknown) as error:
            raise type(error)(self._where(one.first_row, one.rows, one.topic) + str(error)) from None
        self._written.rows += one.rows
        self._written.bytes += one.bytes
        if receipt.message_id.ledger_id < 0:
            self._written.repeated += one.rows

    async def _finish(self) -> None:
        for target in self._partitions():
            if target.messages:
                await self._send(target)
        while self._in_flight:
            await self._settle()
        for target in self._partitions():
            target.compare_recorded()
            target.ids.end()

    # -- Texts of errors -------------------------------------------------------------------------------

    def _where(self, first_row: int, rows: int, topic: str) -> str:
        which = f"row {first_row}" if rows == 1 else f"rows {first_row} to {first_row + rows - 1}"
        return f"{which} of Spark partition {self._plan.spark_partition} for {topic}: "

    def _replay(self) -> str:
        plan = self._plan
        topic = self._topic_name
        return f"Spark partition {plan.spark_partition} of epoch {plan.epoch} is written again to {topic}: "

    @property
    def _topic_name(self) -> str:
        return self._plan.options.topic or "the topics of the rows"


def _contents(row: Row) -> tuple[object, ...]:
    """Return a row's fields as a sort key; its message key first, so that `batching=by_key` makes large entries."""
    one, partition, topic = row
    properties = sorted(one.properties.items())
    return (
        one.key or "",
        one.payload or b"",
        one.payload is None,
        one.event_time_ms,
        one.ordering_key or b"",
        properties,
        -1 if partition is None else partition,
        topic,
    )
