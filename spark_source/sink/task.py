"""One Spark task: its rows become entries, each topic partition's in order, and are waited for.

    record batches ─▶ rows ─▶ an open entry for each topic partition ──full──▶ numbered, sent ─▶ in flight ─▶ receipt

Spark's rows come from a blocking iterator, which is asked in a thread, so that connections live while the rows take
their time. At most `IN_FLIGHT_BYTES_MAX` are without a receipt. What an entry holds depends on the rows alone: see
rule 2 of the package. A task that fails sends nothing more: its producers are closed as they are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from quire.client import Client, Producer, ProducerBusy, PublishFailed, PublishUnknown
from quire.client.authentication import presenting
from quire.client.batch import Publication
from quire.client.routing import partition_name
from quire.client.schema import BYTES, Schema
from quire.runtime.errors import ConfigurationError, QuireError, Unavailable
from quire.runtime.limits import KIB, MIB
from quire.spark_source.sink.options import SinkOptions
from quire.spark_source.sink.rows import Row, RowRefused, read
from quire.spark_source.sink.sequence_ids import EPOCHS, EpochOver, ReplayDiffers, SequenceIds
from quire.spark_source.sink.topic import Target
from quire.spark_source.sink.values import Encoder, TopicSchema
from quire.wire import pulsar_pb2 as pb
from quire.wire.hashing import java_string_hash, murmur3_32
from quire.wire.message import OutgoingMessage

IN_FLIGHT_BYTES_MAX: Final = 16 * MIB
SORTED_BYTES_MAX: Final = 256 * MIB
"""`row_order=content` holds a task's rows in memory."""

ENTRY_OVERHEAD_BYTES: Final = 1 * KIB
"""What an entry has beside its rows, amply."""

BUSY_PAUSE_S: Final = 0.5

HASHES: Final[Mapping[str, Callable[[str], int]]] = {
    "java": lru_cache(1 << 16)(java_string_hash),
    "murmur3": lambda key: murmur3_32(key.encode()),
}


@dataclass(frozen=True)
class TaskPlan:
    """What a task writes as: of which Spark partition and epoch. `name` "": the broker makes one up."""

    options: SinkOptions
    url: str
    target: Target
    spark_partition: int
    name: str
    epoch: int

    @property
    def entry_bytes(self) -> int:
        """Of rows, before compression, that make one entry."""
        largest = self.target.entry_bytes_max
        bytes_max = self.options.producer.batch_bytes_max
        return bytes_max if largest is None else min(bytes_max, largest - ENTRY_OVERHEAD_BYTES)

    @property
    def producer_name(self) -> str:
        return f"{self.name}.{self.spark_partition}.{self.epoch // EPOCHS}" if self.name else ""


@dataclass
class Written:
    """What a task has written; `repeated` rows of it had been written before."""

    rows: int = 0
    bytes: int = 0
    repeated: int = 0


class _Registered(Schema[bytes]):
    """Bytes of a schema that the topic has: its producers say so, and each message its version."""

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


class _Partition:
    """One topic partition: its producer, and the entry that is being filled."""

    def __init__(self, topic: str, producer: Producer[bytes], epoch: int) -> None:
        self.topic = topic
        self.producer = producer
        self.ids = SequenceIds(epoch)
        self.messages: list[OutgoingMessage] = []
        self.bytes = 0
        self.first_row = 0

    def heed_record(self) -> None:
        """What the broker said at its last attachments. Raises `EpochOver`, `ReplayDiffers`."""
        for sequence_id in self.producer.recorded_sequence_ids:
            self.ids.recorded(sequence_id)

    def opens(self, row: int) -> None:
        self.messages, self.bytes, self.first_row = [], 0, row


def run(plan: TaskPlan, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write a task's rows; returns when all are stored. Raises a `QuireError` that names topic and rows."""
    return asyncio.run(_Task(plan).run(iter(batches)))


class _Task:
    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._settings = plan.options.producer
        tls = plan.options.tls
        self._client = Client(plan.url, tls=tls, authentication=presenting(plan.options.credentials, tls))
        self._targets: dict[int, _Partition] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._bytes_in_flight = 0
        self._turn = plan.spark_partition
        """Where rows without a key go: another one after each entry."""
        self._hash = HASHES[self._settings.hashing]
        schema = plan.target.schema
        self._encode = None if schema is None else Encoder(schema).encode
        self._schema = BYTES if schema is None else _Registered(schema)
        self._written = Written()

    async def run(self, batches: Iterator[pa.RecordBatch]) -> Written:
        try:
            await (self._all_sorted if self._plan.options.sorts else self._all)(batches)
            await self._finish()
            return self._written
        except RowRefused as error:
            raise QuireError(self._where(error.row, 1, self._plan.options.topic) + str(error)) from None
        except (ReplayDiffers, EpochOver) as error:
            raise type(error)(f"{self._replay()}{error}") from None
        finally:
            for target in self._targets.values():
                await target.producer.close(flush=False)
            await self._client.close()

    async def _all(self, batches: Iterator[pa.RecordBatch]) -> None:
        first_row = 0
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            await self._take(read(batch, first_row, self._encode), first_row)
            first_row += batch.num_rows

    async def _all_sorted(self, batches: Iterator[pa.RecordBatch]) -> None:
        held: list[Row] = []
        size = 0
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            first = len(held)
            held += read(batch, first, self._encode)
            size += sum(message.size for message, _ in held[first:])
            if size > SORTED_BYTES_MAX:
                raise ConfigurationError(
                    f"row_order=content keeps a task's rows in memory, and Spark partition "
                    f"{self._plan.spark_partition} has more than {SORTED_BYTES_MAX // MIB} MiB of them: write smaller "
                    "micro-batches, or more partitions"
                )
        held.sort(key=_contents)
        await self._take(iter(held), 0)

    async def _take(self, rows: Iterator[Row], first_row: int) -> None:
        bytes_max, messages_max = self._plan.entry_bytes, self._settings.batch_messages_max
        by_key = self._plan.options.by_key
        for row, (one, named) in enumerate(rows, first_row):
            partition = self._choose(one, named, row)
            target = self._targets.get(partition) or await self._open(partition)
            size = one.size
            held = target.messages
            if held and (target.bytes + size > bytes_max or (by_key and held[0].key != one.key)):
                await self._send(target)
            if not target.messages:
                target.opens(row)
            target.messages.append(one)
            target.bytes += size
            if len(target.messages) == messages_max:
                await self._send(target)

    def _choose(self, one: OutgoingMessage, named: int | None, row: int) -> int:
        """Which partition of the topic a row goes to: depends on nothing but the rows."""
        partitions = self._plan.target.partitions or 1
        if named is not None:
            if not 0 <= named < partitions:
                raise RowRefused(row, f"its partition is {named}, and the topic has {partitions}")
            return named
        if partitions == 1:
            return 0
        return (self._turn if one.key is None else self._hash(one.key)) % partitions

    # -- Topic partitions ------------------------------------------------------------------------------

    async def _open(self, partition: int) -> _Partition:
        plan = self._plan
        topic = (
            partition_name(plan.options.topic, partition) if plan.target.partitions else plan.options.topic
        )
        made = _Partition(topic, await self._producer(topic), plan.epoch)
        self._targets[partition] = made
        made.heed_record()
        return made

    async def _producer(self, topic: str) -> Producer[bytes]:
        """Attached; waits while another one has the name."""
        plan = self._plan
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
        """The target's open entry, once there is room for it."""
        messages, size, first_row = target.messages, target.bytes, target.first_row
        target.opens(first_row + len(messages))
        largest = self._plan.target.entry_bytes_max
        if largest is not None and size > largest - ENTRY_OVERHEAD_BYTES:
            raise PublishFailed(
                f"{self._where(first_row, len(messages), target.topic)}{size} bytes are too large: by its policy "
                f"maxMessageSize the topic takes entries of {largest} bytes"
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
            await self._settle()  # at once where this one could not be encoded: nothing may follow it

    async def _settle(self) -> None:
        """The oldest entry has its receipt, or the task fails."""
        one = self._in_flight.popleft()
        self._bytes_in_flight -= one.bytes
        timeout_s = self._plan.options.send_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                receipt = await one.publication
        except TimeoutError:
            raise PublishUnknown(
                f"{self._where(one.first_row, one.rows, one.topic)}no receipt within {timeout_s:g} s; whether they are "
                "stored is not known"
            ) from None
        except (PublishFailed, PublishUnknown) as error:
            raise type(error)(self._where(one.first_row, one.rows, one.topic) + str(error)) from None
        self._written.rows += one.rows
        self._written.bytes += one.bytes
        if receipt.message_id.ledger_id < 0:
            self._written.repeated += one.rows

    async def _finish(self) -> None:
        for target in self._targets.values():
            if target.messages:
                await self._send(target)
        while self._in_flight:
            await self._settle()
        for target in self._targets.values():
            target.heed_record()
            target.ids.end()

    # -- What errors say -------------------------------------------------------------------------------

    def _where(self, first_row: int, rows: int, topic: str) -> str:
        which = f"row {first_row}" if rows == 1 else f"rows {first_row} to {first_row + rows - 1}"
        return f"{which} of Spark partition {self._plan.spark_partition} for {topic}: "

    def _replay(self) -> str:
        plan = self._plan
        topic = plan.options.topic
        return f"Spark partition {plan.spark_partition} of epoch {plan.epoch} is written again to {topic}: "


def _contents(row: Row) -> tuple[object, ...]:
    """All that makes a row; its key first, so that the entries of `batching=by_key` are large."""
    one, partition = row
    properties = sorted(one.properties.items())
    return (
        one.key or "",
        one.payload or b"",
        one.payload is None,
        one.event_time_ms,
        one.ordering_key or b"",
        properties,
        -1 if partition is None else partition,
    )
