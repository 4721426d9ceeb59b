"""Dead letter topics for messages that a consumer cannot process, and retry topics to receive them again later.

    a message's last delivery   redelivery_count == max_redeliver_count; if not acknowledged, it becomes a dead letter
    dead letter                 published to TOPIC-SUBSCRIPTION-DLQ, then acknowledged
    `reconsume_later`           published to TOPIC-SUBSCRIPTION-RETRY with a delay, then acknowledged; the consumer
                                reads that topic too; after `max_redeliver_count` retries it becomes a dead letter

The names of topics and properties are [Pulsar's](https://pulsar.apache.org/docs/concepts-messaging/#dead-letter-topic),
so a consumer of another Pulsar client can process the letters. A letter has the key, the properties, the event time and
the schema of the message. Its properties REAL_TOPIC and ORIGIN_MESSAGE_ID contain the message's origin, RECONSUMETIMES
the number of retries, and DELAY_TIME the delay in ms.

Only shared and key-shared subscriptions count redeliveries, so only they can have dead letters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from quire.client.context import Context
from quire.client.entry import Entry
from quire.client.messages import Message
from quire.client.nack import Ids, Place, Redelivery
from quire.client.producer import Producer
from quire.client.routing import full_name, parent_name
from quire.client.schema import Schema
from quire.client.settings import ProducerSettings
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.tasks import Tasks
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage

REAL_TOPIC: Final = "REAL_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"

_log = logging.getLogger(__name__)

_SINGLY: Final = ProducerSettings(batching=False, chunking=True)


@dataclass(frozen=True)
class DeadLetterPolicy:
    """Policy for messages that are redelivered too often. By default, topics are named as in Pulsar."""

    max_redeliver_count: int
    """Number of redeliveries after which an unacknowledged message becomes a dead letter."""
    dead_letter_topic: str = ""
    initial_subscription: str = ""
    """Name of a subscription to create on the dead letter topic, so that its messages are retained until read."""
    retries: bool = False
    """Allow `reconsume_later`: the consumer also reads the retry letter topic."""
    retry_letter_topic: str = ""


class _AsItIs(Schema[bytes]):
    """Schema of a payload that another producer encoded; its bytes are published unchanged."""

    def __init__(self, info: pb.Schema | None) -> None:
        self._info = info if info is not None and info.type != pb.Schema.AutoConsume else None

    @property
    def info(self) -> pb.Schema | None:
        return self._info

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, payload: bytes, key: bytes | None, writer: pb.Schema | None) -> bytes:
        return payload


class DeadLetters:
    """Publisher of one consumer's dead letters and retry letters. Each producer is created with its first letter."""

    def __init__(
        self, client: Context, policy: DeadLetterPolicy, topic: str, subscription: str, schema: Schema[Any]
    ) -> None:
        if policy.max_redeliver_count < 1:
            raise ConfigurationError("max_redeliver_count must be at least 1")
        self.retry_letter_topic = full_name(policy.retry_letter_topic or f"{topic}-{subscription}-RETRY")
        dead = policy.dead_letter_topic or (f"{topic}-{subscription}-DLQ" if policy.retries else "")
        self._dead_letter_topic = full_name(dead) if dead else ""
        """Full name of the dead letter topic; if empty, each topic of the consumer has its own."""
        self._subscription = subscription
        self._client = client
        self._policy = policy
        self._schema = _AsItIs(schema.info)
        self._producers: dict[str, Producer[bytes]] = {}
        self._lock = asyncio.Lock()

    def is_last_chance(self, redelivery_count: int) -> bool:
        return redelivery_count >= self._policy.max_redeliver_count

    def is_dead(self, redelivery_count: int) -> bool:
        """Return whether the message exceeds the maximum, because its consumer left during the last delivery."""
        return redelivery_count > self._policy.max_redeliver_count

    @property
    def topics(self) -> list[str]:
        """Names of the dead letter and retry letter topics that do not depend on a message's topic."""
        retry = [self.retry_letter_topic] if self._policy.retries else []
        return [self._dead_letter_topic, *retry] if self._dead_letter_topic else retry

    def dead_letter_topic(self, message: Message[Any]) -> str:
        """Return the full name of the dead letter topic for the message."""
        return self._dead_letter_topic or f"{parent_name(message.topic)}-{self._subscription}-DLQ"

    async def bury(self, message: Message[Any]) -> None:
        """Publish the message to its dead letter topic. Raises the errors of `Producer.send`."""
        await self._send(self.dead_letter_topic(message), message, _origin(message), None)

    async def retry(self, message: Message[Any], delay_ms: int, properties: Mapping[str, str]) -> None:
        """Publish the message to the retry topic, or after too many retries to the dead letter topic.

        Raises the errors of `Producer.send`.
        """
        if not self._policy.retries:
            raise ConfigurationError("reconsume_later needs a dead letter policy with retries")
        times = int(message.properties.get(RECONSUME_TIMES, "0")) + 1
        delay_ms = max(0, delay_ms)
        written = {
            **_origin(message),
            **properties,
            RECONSUME_TIMES: str(times),
            DELAY_TIME: str(delay_ms),
        }
        if times > self._policy.max_redeliver_count:
            await self._send(self.dead_letter_topic(message), message, written, None)
        else:
            due_ms = self._client.clock.now_ms() + delay_ms
            await self._send(self.retry_letter_topic, message, written, due_ms)

    async def _send(
        self, topic: str, message: Message[Any], properties: Mapping[str, str], deliver_at_ms: int | None
    ) -> None:
        producer = await self._producer(topic)
        one = message._decoded
        letter = OutgoingMessage(
            one.payload,
            one.key,
            properties,
            one.event_time_ms,
            one.ordering_key,
            deliver_at_ms,
            key_is_base64=one.key_is_base64,
        )
        await producer._add(letter)

    async def _producer(self, topic: str) -> Producer[bytes]:
        async with self._lock:
            if topic not in self._producers:
                subscription = self._policy.initial_subscription if topic != self.retry_letter_topic else ""
                made = Producer(
                    self._client, topic, self._schema, settings=_SINGLY, initial_subscription=subscription
                )
                await made.start()
                self._producers[topic] = made
            return self._producers[topic]

    async def close(self) -> None:
        producers, self._producers = self._producers, {}
        for producer in producers.values():
            await producer.close()


class LastChances:
    """Tracks the messages of one partition that are at their last delivery, and publishes them as dead letters."""

    def __init__(
        self,
        letters: DeadLetters | None,
        tasks: Tasks,
        ack: Callable[[Entry, int], None],
        redelivery: Redelivery,
    ) -> None:
        self._letters = letters
        self._tasks = tasks
        self._ack = ack
        self._redelivery = redelivery
        self._messages: dict[Place, list[Message[Any]]] = {}

    def living(self, entry: Entry, messages: list[Message[Any]]) -> list[Message[Any]]:
        """Return the messages to hand out; publish those above the maximum count as dead letters instead."""
        if self._letters is None or not messages or not self._letters.is_dead(entry.redelivery_count):
            return messages
        self._tasks.start(self._bury(messages), "dead letters")
        return []

    def taken(self, message: Message[Any]) -> None:
        """Remember a message that was handed to the application for the last time."""
        if self._letters is not None and self._letters.is_last_chance(message.redelivery_count):
            self._messages.setdefault(message._entry.place, []).append(message)

    def bury(self, due: dict[Place, Ids]) -> None:
        """Remove the entries at their last delivery from `due`, and publish their messages as dead letters."""
        for place in [one for one in due if one in self._messages]:
            del due[place]
            self._tasks.start(self._bury(self._messages.pop(place)), "dead letters")

    def forget(self, place: Place) -> None:
        """Forget an entry after it was acknowledged."""
        self._messages.pop(place, None)

    def forget_all(self) -> None:
        """Forget all messages, because the broker redelivers them."""
        self._messages.clear()

    async def _bury(self, messages: list[Message[Any]]) -> None:
        """Publish the unacknowledged messages among these as dead letters, then acknowledge them."""
        assert self._letters is not None
        for message in messages:
            entry, index = message._entry, message._decoded.batch_index
            if not entry.unacked >> max(index, 0) & 1:
                continue
            try:
                await self._letters.bury(message)
            except QuireError as error:
                _log.warning(
                    "message %s of %s will be redelivered, as publishing its dead letter failed: %s",
                    message.id,
                    message.topic,
                    error,
                )
                self._redelivery.nack(entry.place, entry.ids, entry.redelivery_count)
                return
            self._ack(entry, index)


def _origin(message: Message[Any]) -> dict[str, str]:
    """Return the message's properties, with its original topic and id added."""
    return {REAL_TOPIC: message.topic, ORIGIN_MESSAGE_ID: _plain_id(message), **message.properties}


def _plain_id(message: Message[Any]) -> str:
    """Format a message id as the Java client does: with the batch index only for a message of a batch."""
    one = message.id
    index = f":{one.batch_index}" if one.batch_index >= 0 else ""
    return f"{one.ledger_id}:{one.entry_id}:{one.partition}{index}"
