"""Producer of one topic with all its partitions, under one producer name.

    async with client.producer("orders") as producer:
        receipt = await producer.send(b"...", key="42")         # stored: the receipt has the id
        publication = await producer.enqueue(b"...")            # queued; waits only while the window is full
        await producer.flush()                                  # all messages so far are stored, else this raises

`send` waits for the receipt, so a single task that only calls `send` publishes batches of one message. `enqueue` (or
`send_nowait`, which raises `QueueFull` instead of waiting) is for throughput. Cancelling `send` or `enqueue` does not
affect other messages; its own message was either not queued, or is published.

Leaving the `async with` block normally flushes. Leaving it by an exception fails the messages without a receipt.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, TypedDict, TypeVar, Unpack

from quire.client.attachment import Attachment
from quire.client.batch import Publication, Window
from quire.client.context import Context
from quire.client.crypto import Encryption, Encryptor
from quire.client.errors import Closed, QueueFull
from quire.client.messages import Receipt
from quire.client.partition_producer import PartitionProducer, PublishAs
from quire.client.routing import Router, full_name, partition_name
from quire.client.schema import BYTES, Schema
from quire.client.settings import ProducerSettings
from quire.runtime.errors import QuireError
from quire.runtime.tasks import Tasks
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage

ACCESS_MODES: Final[dict[str, pb.ProducerAccessMode]] = {
    "shared": pb.ProducerAccessMode.Shared,
    "exclusive": pb.ProducerAccessMode.Exclusive,
    "exclusive-with-fencing": pb.ProducerAccessMode.ExclusiveWithFencing,
    "wait-for-exclusive": pb.ProducerAccessMode.WaitForExclusive,
}

T = TypeVar("T")

_log = logging.getLogger(__name__)


class MessageFields(TypedDict, total=False):
    """Optional fields of a message."""

    key: str | bytes | None
    """Selects the partition; used by key-shared subscriptions and compaction."""
    properties: Mapping[str, str]
    event_time_ms: int
    ordering_key: bytes | None
    """Used instead of the key by key-shared subscriptions."""
    deliver_at_ms: int | None
    """Time in ms before which shared subscriptions do not deliver the message. Such a message is not batched."""
    sequence_id: int | None
    """For deduplication across restarts; must increase. By default the producer numbers the messages."""


class Producer(Generic[T]):
    """Producer, created by `Client.producer`; it attaches in `async with` (or `start`)."""

    def __init__(
        self,
        client: Context,
        topic: str,
        schema: Schema[T],
        *,
        settings: ProducerSettings,
        name: str = "",
        access: str = "shared",
        encryption: Encryption | None = None,
        initial_subscription: str = "",
    ) -> None:
        settings.validate()
        self.topic = full_name(topic)
        self._client = client
        self._schema = schema
        self._name = name
        self._how = PublishAs(ACCESS_MODES[access], schema.info, initial_subscription)
        self._settings = settings
        self._encryptor = Encryptor(encryption) if encryption is not None else None
        self._window = Window(settings.in_flight_messages_max, settings.in_flight_bytes_max)
        self._router = Router(
            settings.hashing, client.rng.randrange(1 << 30), single=settings.routing == "single"
        )
        self._partitions: list[PartitionProducer] = []
        self._tasks = Tasks("client")
        self._is_open = False

    async def __aenter__(self) -> Producer[T]:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=kind is None)

    # -- Publishing --

    async def send(self, value: T | None, **fields: Unpack[MessageFields]) -> Receipt:
        """Publish a message and wait until it is stored. Raises `PublishFailed` or `PublishUnknown`.

        `value` has the schema's type (bytes without a schema). None is a null value, which marks the key as deleted for
        compaction.
        """
        return await (await self.enqueue(value, **fields))

    async def enqueue(self, value: T | None, **fields: Unpack[MessageFields]) -> Publication:
        """Queue a message for publishing, waiting only while too much is in flight. Raises `PublishFailed`."""
        while self._window.is_full:
            await self._room()
        return self._add(self._message(value, fields))

    async def _room(self) -> None:
        for one in self._partitions:
            one.gathering.close_batch()
        await self._window.room()

    def send_nowait(self, value: T | None, **fields: Unpack[MessageFields]) -> Publication:
        """Queue a message for publishing without waiting.

        Raises `QueueFull` if too much is in flight, or `PublishFailed`.
        """
        if self._window.is_full:
            raise QueueFull(
                f"{self._window.messages} messages for {self.topic} are in flight, which is the limit"
            )
        return self._add(self._message(value, fields))

    def _message(self, value: T | None, fields: MessageFields) -> OutgoingMessage:
        payload: Any = value
        if value is not None and not (type(value) is bytes and self._schema is BYTES):
            payload = self._schema.encode(value)
            if (own_key := self._schema.key_of(value)) is not None:
                fields["key"] = own_key
        made = OutgoingMessage(payload, **fields)  # type: ignore[arg-type]
        key: Any = made.key
        if type(key) is bytes:
            made.key, made.key_is_base64 = b64encode(key).decode(), True
        return made

    def _add(self, one: OutgoingMessage) -> Publication:
        if not self._is_open:
            raise Closed(f"the producer of {self.topic} is not open")
        return self._router.choose(one, self._partitions).gathering.add(one)

    def send_entry(
        self, messages: Sequence[OutgoingMessage], first_sequence_id: int, last_sequence_id: int
    ) -> Publication:
        """Publish messages at once as one entry with these sequence ids; return the publication of the last message.

        It is for applications that resend the same entries after a crash: a broker with deduplication recognizes
        duplicates by whole entries. It never waits, whatever is in flight, and requires a producer with one partition.
        Raises `PublishFailed`.
        """
        [only] = self._partitions
        return only.gathering.add_entry(messages, first_sequence_id, last_sequence_id)

    async def flush(self) -> None:
        """Wait until all messages queued before are stored.

        Raises the first `PublishFailed` or `PublishUnknown` since the last flush of a message whose publication was not
        awaited.
        """
        for one in self._partitions:
            one.gathering.close_batch()
        for one in self._partitions:
            await one.settle_all()
        self.check()

    def check(self) -> None:
        """Raise the error of a failed message as `flush` does, but without waiting."""
        errors = [error for one in self._partitions if (error := one.in_flight.unseen_error()) is not None]
        if errors:
            raise type(errors[0])(str(errors[0]))

    # -- State --

    @property
    def topic_epoch(self) -> int | None:
        """Topic epoch, which increases with each new exclusive producer; None without exclusive access."""
        return self._partitions[0].topic_epoch if self._partitions else None

    @property
    def name(self) -> str:
        """Name of the producer, given by the application or else by the broker."""
        return self._name

    @property
    def partition_count(self) -> int:
        """Number of partitions; 0 if the topic is not partitioned."""
        return len(self._partitions) if self._partitions[0].topic != self.topic else 0

    @property
    def last_sequence_id(self) -> int:
        """Highest sequence id of this producer, or of earlier producers of this name at the broker; -1 for none."""
        return max(one.gathering.last_sequence_id for one in self._partitions)

    @property
    def recorded_sequence_ids(self) -> Sequence[int]:
        """The broker's `last_sequence_id` at each of the last attachments, newest last. Requires a single partition."""
        [only] = self._partitions
        return tuple(only.recorded)

    @property
    def in_flight(self) -> int:
        """Number of messages without a receipt."""
        return self._window.messages

    @property
    def acknowledged(self) -> int:
        """Number of messages that were stored since the producer started."""
        return sum(one.in_flight.acknowledged for one in self._partitions)

    # -- Beginning and end --

    async def start(self) -> None:
        """Look up the topic's partitions and attach to all. Raises the broker's error, or `Unavailable`.

        With `wait-for-exclusive` it waits without a timeout until the producer has the exclusive access.
        """
        self._client.register(self)
        try:
            count = await self._client.partitions(self.topic)
            names = [partition_name(self.topic, i) for i in range(count)] or [self.topic]
            self._partitions = await self._attach(names)
        except BaseException:
            await self.close(flush=False)
            raise
        self._name = self._partitions[0].name
        self._is_open = True
        if count:
            self._tasks.start(self._watch_growth(), f"watch {self.topic} grow")

    async def _attach(self, topics: list[str]) -> list[PartitionProducer]:
        made = [self._partition(topic) for topic in topics]
        try:
            for one in made:
                assert one.attachment is not None
                await one.attachment.ready(has_timeout=self._how.access_mode != pb.WaitForExclusive)
        except BaseException:
            for one in made:
                await one.close()
            raise
        return made

    def _partition(self, topic: str) -> PartitionProducer:
        client = self._client
        made = PartitionProducer(
            topic,
            client.next_id(),
            self._name,
            self._how,
            self._settings,
            self._window,
            client.clock,
            self._encryptor,
        )
        made.attachment = Attachment(made, client.lookup, client.settings, client.rng)
        made.attachment.start(self._tasks)
        return made

    async def _watch_growth(self) -> None:
        """Poll for new partitions; each gets messages once its producer is attached."""
        while True:
            await asyncio.sleep(self._client.settings.partitions_poll_ms / 1000)
            try:
                count = await self._client.partitions(self.topic)
                here = len(self._partitions)
                if count > here:
                    names = [partition_name(self.topic, i) for i in range(here, count)]
                    self._partitions += await self._attach(names)
                    _log.info("topic %s grew to %d partitions", self.topic, count)
            except QuireError as error:
                _log.debug("polling the partition count of %s failed: %s", self.topic, error)

    async def close(self, *, flush: bool = True) -> None:
        """Close the producer, after a flush unless `flush` is False. Raises the flush's error after closing."""
        self._client.unregister(self)
        try:
            if flush and self._is_open:
                await self.flush()
        finally:
            self._is_open = False
            await asyncio.gather(*(one.close() for one in self._partitions))
            await self._tasks.stop()
