"""Consumer of one subscription on one or several topics, with all their partitions.

    async with client.consumer("orders", "billing") as consumer:
        async for message in consumer:
            ...
            await consumer.ack(message)

Messages are delivered at least once. Acks are sent together every 20 ms (`ack_delay_ms`); `flush_acks` waits for the
broker's response. An unacknowledged message is redelivered after a reconnect, to another consumer of a shared
subscription after this one disconnected, or after a negative acknowledgement.

Leaving the `async with` block sends waiting acks. The iteration ends when the consumer is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Generic, TypeVar

from quire.client.context import Context
from quire.client.crypto import Decryptor, FindKey
from quire.client.dead_letter import DeadLetterPolicy, DeadLetters
from quire.client.deliveries import Inbox, Shared
from quire.client.errors import Closed
from quire.client.messages import EARLIEST, LATEST, Message, MessageId
from quire.client.pattern import Pattern
from quire.client.routing import full_name
from quire.client.schema import Schema
from quire.client.settings import ConsumerSettings
from quire.client.subscribe import SubscribeAs
from quire.client.subscribed_topics import SubscribedTopics
from quire.runtime.errors import ConfigurationError
from quire.runtime.tasks import Tasks
from quire.wire import pulsar_pb2 as pb

SUBSCRIPTION_TYPES: Final[dict[str, pb.CommandSubscribe.SubType]] = {
    "exclusive": pb.CommandSubscribe.Exclusive,
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key-shared": pb.CommandSubscribe.Key_Shared,
}

T = TypeVar("T")


class Consumer(Generic[T]):
    """Consumer, created by `Client.consumer` or `Client.reader`; it subscribes in `async with` (or `start`)."""

    def __init__(
        self,
        client: Context,
        topics: Sequence[str] | Pattern,
        how: SubscribeAs,
        settings: ConsumerSettings,
        schema: Schema[T],
        *,
        keys: FindKey | None = None,
        dead_letter: DeadLetterPolicy | None = None,
    ) -> None:
        settings.validate()
        if not topics or not how.subscription:
            raise ConfigurationError("a consumer needs at least one topic and the name of a subscription")
        pattern = topics if isinstance(topics, Pattern) else None
        self.topics = [] if isinstance(topics, Pattern) else [full_name(topic) for topic in topics]
        """Full names of the topics; for a pattern, of the topics that match at present."""
        self.subscription = how.subscription
        self._how = how
        self._client = client
        self._inbox = Inbox()
        self._tasks = Tasks("client")
        self._dead_letters = self._letters(dead_letter, how, schema) if dead_letter is not None else None
        if self._dead_letters is not None and dead_letter is not None and dead_letter.retries:
            self.topics.append(self._dead_letters.retry_letter_topic)
        decryptor = Decryptor(keys) if keys is not None else None
        shared = Shared(
            settings, schema, decryptor, self._dead_letters, self._inbox, client.clock, self._tasks
        )
        self._subscribed = SubscribedTopics(client, self.topics, pattern, how, shared)

    def _letters(self, policy: DeadLetterPolicy, how: SubscribeAs, schema: Schema[T]) -> DeadLetters:
        if not how.dispatches_singly:
            raise ConfigurationError("a dead letter policy needs a shared or key-shared subscription")
        if (
            not self.topics
            and policy.retries
            and not (policy.dead_letter_topic and policy.retry_letter_topic)
        ):
            raise ConfigurationError(
                "retries with a topic pattern need dead_letter_topic and retry_letter_topic in the dead letter policy"
            )
        first = self.topics[0] if self.topics else ""
        return DeadLetters(self._client, policy, first, how.subscription, schema)

    async def __aenter__(self) -> Consumer[T]:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- Receiving --

    def __aiter__(self) -> Consumer[T]:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return self._inbox.pop() or await self._inbox.wait()
        except Closed:
            raise StopAsyncIteration from None

    async def receive(self, timeout_s: float | None = None) -> Message[T]:
        """Return the next message. Raises TimeoutError, `MessageUndecodable`, `Closed`, or the consumer's final error.

        If it is cancelled or times out, no message is lost.
        """
        message = self._inbox.pop()
        if message is not None:
            return message
        async with asyncio.timeout(timeout_s):
            return await self._inbox.wait()

    def receive_nowait(self) -> Message[T] | None:
        """Return the next message if one has arrived, else None. Raises like `receive`."""
        return self._inbox.pop()

    # -- Acknowledging --

    async def ack(self, message: Message[T] | MessageId) -> None:
        """Acknowledge one message; the ack is sent within the ack delay."""
        if isinstance(message, Message):
            entry = message._entry
            entry.source.ack(entry, message._decoded.batch_index)
        else:
            self._subscribed.partition_of(message).deliveries.ack_id(message)

    async def ack_cumulative(self, message: Message[T] | MessageId) -> None:
        """Acknowledge this message and all before it in its partition. Not for shared subscriptions."""
        if self._how.dispatches_singly:
            raise ConfigurationError(
                "a shared or key-shared subscription does not allow cumulative acks; acknowledge each message"
            )
        one = message.id if isinstance(message, Message) else message
        self._subscribed.partition_of(one).deliveries.ack_cumulative(one)

    async def nack(self, message: Message[T] | MessageId) -> None:
        """Request redelivery of a message after the nack delay.

        For exclusive and failover subscriptions, the broker redelivers from the first unacknowledged message on.
        """
        if isinstance(message, Message):
            self._subscribed.partition_of(message.id).deliveries.nack(message.id, message.redelivery_count)
        else:
            self._subscribed.partition_of(message).deliveries.nack(message, 0)

    async def reconsume_later(
        self, message: Message[T], delay_ms: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message to the retry letter topic, to be received again after `delay_ms`, and acknowledge it here.

        The new message also has `properties`. Raises `PublishFailed` or `PublishUnknown`; then it is not acknowledged.
        """
        if self._dead_letters is None:
            raise ConfigurationError("reconsume_later needs a dead letter policy with retries")
        await self._dead_letters.retry(message, delay_ms, properties or {})
        await self.ack(message)

    async def flush_acks(self) -> None:
        """Wait until the broker has answered all acks so far. Raises `OutcomeUnknown` if a response was lost."""
        for one in self._subscribed.partitions:
            await one.deliveries.acking.flush()

    # -- The subscription --

    async def seek(self, to: MessageId | None = None, *, publish_time_ms: int | None = None) -> None:
        """Move the subscription to a message (which is delivered next), `EARLIEST`, `LATEST`, or a publish time.

        Messages from there on are delivered again, acknowledged or not. After it returns, no message that was delivered
        before is returned by `receive`.
        """
        if (to is None) == (publish_time_ms is None):
            raise ConfigurationError("seek needs either a message id or publish_time_ms, and not both")
        if to is not None and not isinstance(to, MessageId):
            raise ConfigurationError(f"seek needs EARLIEST, LATEST or a message id, not {to!r}")
        everywhere = to is None or to[:2] in (EARLIEST[:2], LATEST[:2])
        those = (
            self._subscribed.partitions if everywhere or to is None else [self._subscribed.partition_of(to)]
        )
        outcomes = await asyncio.gather(
            *(one.seek(to, publish_time_ms) for one in those), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message, or `EARLIEST` if the topic is empty."""
        (last,) = (await self.last_message_ids()).values()
        return last

    async def last_message_ids(self) -> dict[str, MessageId]:
        """Return the id of each partition's last message, by the partition's full name."""
        return {topic: last for topic, (last, _) in (await self._ends()).items()}

    async def mark_deletes(self) -> dict[str, MessageId]:
        """Return the mark-delete position of each partition, by the partition's full name."""
        return {topic: mark for topic, (_, mark) in (await self._ends()).items()}

    @property
    def _has_arrivals(self) -> bool:
        return not self._inbox.is_empty

    async def backlogs(self) -> dict[str, int]:
        """Return the number of unacknowledged messages of each partition, by its full name. Raises `Unavailable`."""
        return {one.topic: await one.backlog() for one in self._subscribed.partitions}

    async def _ends(self) -> dict[str, tuple[MessageId, MessageId]]:
        """Return the last message and the mark-delete position of each partition."""
        return {one.topic: await one.ends() for one in self._subscribed.partitions}

    async def unsubscribe(self) -> None:
        """Delete the subscription from all its topics, and close the consumer."""
        for one in self._subscribed.partitions:
            await one.unsubscribe()
        await self.close()

    @property
    def has_ended(self) -> bool:
        """True if all topics are terminated, and all their messages are acknowledged.

        Requires a broker that reports the end of a topic.
        """
        return self._subscribed.has_ended

    @property
    def is_active(self) -> bool:
        """True if this consumer of a failover subscription is the active one of at least one partition."""
        return any(one.is_active for one in self._subscribed.partitions)

    # -- Beginning and end --

    async def start(self) -> None:
        """Subscribe to all partitions. Raises the broker's error, or `Unavailable`."""
        self._client.register(self)
        try:
            await self._subscribed.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the consumer, after sending waiting acks."""
        self._client.unregister(self)
        self._subscribed.is_open = False
        self._inbox.fail(Closed(f"the consumer of {', '.join(self.topics)} was closed"))
        await self._subscribed.close()
        await self._tasks.stop()
        if self._dead_letters is not None:
            await self._dead_letters.close()
