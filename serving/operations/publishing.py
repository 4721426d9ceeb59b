"""Publishing of single messages for operators, through the topic's publisher like the messages of every producer.

A message is admitted as that of a producer with shared access: quotas, limits of producers, publish rates, the size
limit and back-pressure apply. It is acknowledged when its receipt is written, so when it is durable. If the topic is
closed in between, the outcome is unknown: the message may have been stored.

The value is text. If the topic has a schema, the text is encoded by the newest version (`schema/writing`), and a value
that does not match is refused. A message of a partitioned topic is published to the partition of its key, as by
Pulsar's Java client, or to a random one; its owner may be another broker.
"""

from __future__ import annotations

import asyncio
import random
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct, to_builtins

from quire.runtime.errors import (
    ConfigurationError,
    DiskFull,
    InUse,
    LimitExceeded,
    OutcomeUnknown,
    Unavailable,
)
from quire.serving.model.ports import was_unloaded
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import FanOut
from quire.serving.operations.sender import Sender, SenderNames
from quire.serving.ownership.peers import reader_of
from quire.serving.ownership.port import NotOwner
from quire.serving.registry.registry import Registry
from quire.serving.schema.registry import Version, to_wire
from quire.serving.topic.lifecycle.quota import BacklogExceeded, BacklogHeld
from quire.serving.topic.producers import EncryptionRequired, ProducerBusy, ProducerFenced, Stage
from quire.serving.topic.services import Services
from quire.serving.topic.topic import PersistentTopic
from quire.wire import topic_name
from quire.wire.hashing import java_string_hash
from quire.wire.message import OutgoingMessage, encode_one

if TYPE_CHECKING:
    from quire.serving.schema.writing import Written

ROOM_S: Final = 10.0
RECEIPT_S: Final = 15.0
"""Time limits, in seconds, of the wait for room, and for the receipt: less than brokers wait for each other."""

DELAY_S_MAX: Final = 10 * 365 * 86_400


class NewMessage(Struct, rename="camel", forbid_unknown_fields=True):
    """Message to be published. A `value` of null is a deletion, for compaction."""

    value: str | None
    key: str | None = None
    properties: dict[str, str] = {}
    event_time_ms: int = 0
    delay_s: float = 0.0
    """Delay of the delivery to Shared and Key_Shared subscriptions, in seconds."""


class Published(Struct, rename="camel"):
    """Durable message: the partition or topic that has it, and its position there as `ledger:entry`."""

    topic: str
    message_id: str
    schema_version: int | None
    """Version of the schema by which the value was encoded; null without a schema."""


class Publishing:
    def __init__(self, registry: Registry, services: Services, fan_out: FanOut) -> None:
        self._registry = registry
        self._services = services
        self._fan_out = fan_out
        self._names = SenderNames()

    async def publish(self, name: TopicName, message: NewMessage, address: str = "") -> Published:
        """Publish a message and return its position. `address` is the caller's, for the list of producers.

        Raises `NotFound`, `NotOwner`, `ConfigurationError` for an unsuitable message or topic, `InUse` if the topic
        admits no such producer, `Unavailable` if the message was not stored, and `OutcomeUnknown`.
        """
        _check(message)
        count = await self._fan_out.partitions(name)
        if not count:
            return await self._publish(name, message, address)
        key = await self._key(name, message)
        index = random.randrange(count) if key is None else java_string_hash(key) % count
        partition = name.of_partition(index)
        try:
            return await self._publish(partition, message, address)
        except NotOwner as elsewhere:
            return await self._publish_there(partition, message, elsewhere)

    async def _key(self, name: TopicName, message: NewMessage) -> str | None:
        """Return the message's key, in base64 if the schema takes it from the value."""
        value = await self._encoded(message, await self._registry.schemas.find(name))
        return message.key if value is None or value.key is None else b64encode(value.key).decode()

    async def _encoded(self, message: NewMessage, schema: Version | None) -> Written | None:
        value = await self._services.helpers.run(partial(_written, message, schema))
        if value is not None and value.key is not None and message.key is not None:
            raise ConfigurationError("the topic's schema has the key in the value: omit the message's key")
        return value

    async def _publish_there(
        self, partition: TopicName, message: NewMessage, elsewhere: NotOwner
    ) -> Published:
        """Publish through the partition's owner."""
        path = f"/quire/v1/topics/{topic_name.path(str(partition))}/messages"
        try:
            said = await self._fan_out.peers.ask("POST", elsewhere, path, to_builtins(message))
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{error}; the message may be stored: look for it before you publish it again"
            ) from error
        return reader_of(Published)(said)

    async def _publish(self, name: TopicName, message: NewMessage, address: str) -> Published:
        if not name.is_persistent:
            raise ConfigurationError(f"publish to non-persistent topic {name} with a client; REST cannot")
        # A partition that was never used has no record yet.
        await self._registry.open(name, create=name.parent is not None)
        topic = await self._registry.open_persistent(name)
        schema = await self._registry.schemas.find(name.parent or name)
        value = await self._encoded(message, schema)
        producer, sequence_id = self._names.take()
        sender = Sender(producer, self._services.clock.now_ms(), address)
        entry = self._entry(topic, sender, sequence_id, message, value, schema)
        await _admit(topic, sender)
        try:
            await self._wait_for_room(topic, sender)
            position = await sender.send(topic, entry, RECEIPT_S)
        finally:
            topic.producers.leave(sender)
        self._names.give_back(producer, sequence_id)
        return Published(topic.name, position, None if schema is None else schema.number)

    def _entry(
        self,
        topic: PersistentTopic,
        sender: Sender,
        sequence_id: int,
        message: NewMessage,
        value: Written | None,
        schema: Version | None,
    ) -> bytes:
        now_ms = self._services.clock.now_ms()
        outgoing = OutgoingMessage(
            payload=None if value is None else value.payload,
            key=message.key,
            properties=message.properties,
            event_time_ms=message.event_time_ms,
            deliver_at_ms=now_ms + int(1000 * message.delay_s) if message.delay_s else None,
        )
        if value is not None and value.key is not None:
            outgoing.key, outgoing.key_is_base64 = b64encode(value.key).decode(), True
        version = None if schema is None else to_wire(schema.number)
        entry = encode_one(outgoing, sender.name, sequence_id, now_ms, schema_version=version)
        most = topic.applied.policies.message_bytes_max
        if 0 < most < len(entry):
            raise LimitExceeded(
                f"a message of {len(entry)} bytes is too large: the limit of {topic.name} is {most} bytes"
            )
        return entry

    async def _wait_for_room(self, topic: PersistentTopic, sender: Sender) -> None:
        """Wait until the topic accepts a message. Raises `Unavailable` if it takes too long, or the topic is closed."""
        publisher = topic.log.publisher
        try:
            async with asyncio.timeout(ROOM_S):
                while True:
                    limiter = topic.applied.publish_limiter
                    if publisher.is_full:
                        await _called(publisher.when_drained)
                    elif limiter is not None and not limiter.is_open():
                        await _called(limiter.wait)
                    else:
                        break
        except TimeoutError:
            raise Unavailable(
                f"topic {topic.name} accepts no messages now, because its publish rate or its share of memory "
                "is used up; try again"
            ) from None
        if topic.is_closed or sender.admission.stage is not Stage.INSIDE:
            raise was_unloaded(topic.name)


async def _admit(topic: PersistentTopic, sender: Sender) -> None:
    """Admit the sender. Raises the errors of `Topic.admit` as those that REST knows."""
    try:
        await topic.admit(sender)
    except (ProducerBusy, ProducerFenced, EncryptionRequired) as error:
        raise InUse(str(error)) from error
    except (BacklogHeld, BacklogExceeded, DiskFull) as error:
        raise Unavailable(str(error)) from error


def _check(message: NewMessage) -> None:
    if not 0 <= message.delay_s <= DELAY_S_MAX:
        raise ConfigurationError(f"delayS must be 0 to {DELAY_S_MAX} seconds, not {message.delay_s}")
    if not 0 <= message.event_time_ms < 1 << 63:
        raise ConfigurationError(f"eventTimeMs must be in ms since 1970, not {message.event_time_ms}")


def _written(message: NewMessage, schema: Version | None) -> Written | None:
    from quire.serving.schema.writing import written  # a broker starts before the first message with a schema

    if message.value is None:
        return None
    return written(message.value, None if schema is None else schema.definition)


async def _called(wait: Callable[[Callable[[], None]], None]) -> None:
    """Return when `wait` calls back."""
    come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    wait(lambda: None if come.done() else come.set_result(None))
    await come
