"""A producer as its user sees it: one name, one topic, all its partitions.

    async with client.producer("orders") as producer:
        receipt = await producer.send(b"...", key="42")         # stored: the receipt says where
        publication = await producer.enqueue(b"...")            # taken; waits only while the window is full
        await producer.flush()                                  # everything taken so far is stored, or this raises

`send` waits for its receipt, so one task that only sends gets one message per batch; `enqueue` (or `send_nowait`,
which raises `QueueFull` instead of waiting) is for throughput. A cancelled `send` or `enqueue` leaves the producer
as it was: its message was either not taken, or goes its way.

Leaving the block normally flushes. Leaving it by an exception gives up what has no receipt yet.
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
    """What a message may have besides its payload."""

    key: str | bytes | None
    """Chooses the partition; what Key_Shared and compaction go by."""
    properties: Mapping[str, str]
    event_time_ms: int
    ordering_key: bytes | None
    """Goes before the key for Key_Shared."""
    deliver_at_ms: int | None
    """Shared subscriptions get the message no earlier. Such a message is not batched."""
    sequence_id: int | None
    """For deduplication over restarts; must grow. Otherwise the producer counts by itself."""


class Producer(Generic[T]):
    """Made by `Client.producer`; begins with `async with` (or `start`)."""

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

        `value` is what the schema says (bytes without one); None is a null value, a delete on a compacted topic.
        """
        return await (await self.enqueue(value, **fields))

    async def enqueue(self, value: T | None, **fields: Unpack[MessageFields]) -> Publication:
        """Take a message for publishing; wait only while too much is in flight. Raises `PublishFailed`."""
        while self._window.is_full:
            await self._room()
        return self._add(self._message(value, fields))

    async def _room(self) -> None:
        for one in self._partitions:
            one.close_batch()
        await self._window.room()

    def send_nowait(self, value: T | None, **fields: Unpack[MessageFields]) -> Publication:
        """Take a message for publishing. Raises `QueueFull` when too much is in flight, `PublishFailed`."""
        if self._window.is_full:
            raise QueueFull(f"{self._window.messages} messages for {self.topic} wait for their receipts")
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
        return self._router.choose(one, self._partitions).add(one)

    def send_entry(
        self, messages: Sequence[OutgoingMessage], first_sequence_id: int, last_sequence_id: int
    ) -> Publication:
        """Publish messages as one entry with these numbers, at once: of their last message.

        For who must send the same entries again, byte for byte in what they say, after a crash: a broker that drops
        duplicates does so by whole entries. It never waits, whatever is in flight, and is for a single partition.
        Raises `PublishFailed`.
        """
        [only] = self._partitions
        return only.add_entry(messages, first_sequence_id, last_sequence_id)

    async def flush(self) -> None:
        """Return when all that was taken before is stored.

        Raises the first `PublishFailed` or `PublishUnknown` since the last flush of a message whose publication
        nobody awaited.
        """
        for one in self._partitions:
            one.close_batch()
        for one in self._partitions:
            await one.settle_all()
        self.check()

    def check(self) -> None:
        """Raise what `flush` would raise, without waiting: has a message failed so far?"""
        errors = [error for one in self._partitions if (error := one.unseen_error()) is not None]
        if errors:
            raise type(errors[0])(str(errors[0]))

    # -- What it knows --

    @property
    def topic_epoch(self) -> int | None:
        """Which holder of exclusive access to the topic it is, counted over the topic's life; None without it."""
        return self._partitions[0].topic_epoch if self._partitions else None

    @property
    def name(self) -> str:
        """The user's, or the one the broker gave."""
        return self._name

    @property
    def partition_count(self) -> int:
        """0 when the topic has no partitions."""
        return len(self._partitions) if self._partitions[0].topic != self.topic else 0

    @property
    def last_sequence_id(self) -> int:
        """The highest in use, the broker's record of earlier producers of this name included; -1: none."""
        return max(one.last_sequence_id for one in self._partitions)

    @property
    def recorded_sequence_ids(self) -> Sequence[int]:
        """What the broker had as `last_sequence_id` at the last attachments, of a single partition; the newest last."""
        [only] = self._partitions
        return tuple(only.recorded)

    @property
    def in_flight(self) -> int:
        """Messages taken and without a receipt."""
        return self._window.messages

    @property
    def acknowledged(self) -> int:
        """Messages that are stored, since it was started."""
        return sum(one.acknowledged for one in self._partitions)

    # -- Beginning and end --

    async def start(self) -> None:
        """Find the topic's partitions and attach to all. Raises what a broker refuses, or `Unavailable`.

        With `wait-for-exclusive` it returns when its turn has come, however long that takes.
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
        """New partitions take messages once they are attached."""
        while True:
            await asyncio.sleep(self._client.settings.partitions_poll_ms / 1000)
            try:
                count = await self._client.partitions(self.topic)
                here = len(self._partitions)
                if count > here:
                    names = [partition_name(self.topic, i) for i in range(here, count)]
                    self._partitions += await self._attach(names)
                    _log.info("%s has grown to %d partitions", self.topic, count)
            except QuireError as error:
                _log.debug("asking whether %s has grown: %s", self.topic, error)

    async def close(self, *, flush: bool = True) -> None:
        """End it, after a flush unless told otherwise. Raises what the flush raises, once all is closed."""
        self._client.unregister(self)
        try:
            if flush and self._is_open:
                await self.flush()
        finally:
            self._is_open = False
            await asyncio.gather(*(one.close() for one in self._partitions))
            await self._tasks.stop()
