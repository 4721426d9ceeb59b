"""A consumer as its user sees it: one subscription on one topic or several, all their partitions.

    async with client.consumer("orders", "billing") as consumer:
        async for message in consumer:
            ...
            await consumer.ack(message)

Messages come at least once. Acks are gathered for some milliseconds and sent together; `flush_acks` waits for the
broker's word. A message that is not acknowledged comes again after a reconnect, to another consumer of a shared
subscription after this one is gone, or when it is negatively acknowledged.

Leaving the block sends what acks wait. The iteration ends when the consumer is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Generic, TypeVar

from quire.client.attachment import Attachment
from quire.client.context import Context
from quire.client.crypto import Decryptor, FindKey
from quire.client.dead_letter import DeadLetterPolicy, DeadLetters
from quire.client.errors import Closed
from quire.client.inbox import Inbox
from quire.client.messages import EARLIEST, LATEST, Message, MessageId
from quire.client.partition_consumer import PartitionConsumer, Shared
from quire.client.pattern import Follower, Pattern
from quire.client.routing import full_name, parent_name, partition_name
from quire.client.schema import Schema
from quire.client.settings import ConsumerSettings
from quire.client.subscribe import SubscribeAs
from quire.runtime.errors import ConfigurationError, NotFound, QuireError
from quire.runtime.tasks import Tasks
from quire.wire import pulsar_pb2 as pb

SUBSCRIPTION_TYPES: Final[dict[str, pb.CommandSubscribe.SubType]] = {
    "exclusive": pb.CommandSubscribe.Exclusive,
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key-shared": pb.CommandSubscribe.Key_Shared,
}

LOOK_AGAIN_S: Final = 0.5
"""A topic of a pattern that was not there may be there again, under the same name."""

_log = logging.getLogger(__name__)


T = TypeVar("T")


class Consumer(Generic[T]):
    """Made by `Client.consumer` or `Client.reader`; begins with `async with` (or `start`)."""

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
            raise ConfigurationError("a consumer needs a topic and the name of a subscription")
        self._pattern = topics if isinstance(topics, Pattern) else None
        self.topics = [] if isinstance(topics, Pattern) else [full_name(topic) for topic in topics]
        """Full names; of a pattern those that match just now."""
        self.subscription = how.subscription
        self._client = client
        self._inbox = Inbox()
        self._partitions: dict[str, PartitionConsumer] = {}
        self._counts: dict[str, int] = {}
        self._tasks = Tasks("client")
        self._is_open = False
        self._dead_letters = self._letters(dead_letter, how, schema) if dead_letter is not None else None
        if self._dead_letters is not None and dead_letter is not None and dead_letter.retries:
            self.topics.append(self._dead_letters.retry_letter_topic)
        self._how = how if self._pattern is None else replace(how, create=False)
        self._follower: Follower | None = None
        self._shared = Shared(
            settings,
            schema,
            Decryptor(keys) if keys is not None else None,
            self._dead_letters,
            self._inbox,
            self._failed,
            client.clock,
            self._tasks,
        )

    def _letters(self, policy: DeadLetterPolicy, how: SubscribeAs, schema: Schema[T]) -> DeadLetters:
        if not how.dispatches_singly:
            raise ConfigurationError("only shared and key-shared subscriptions have dead letters")
        if (
            not self.topics
            and policy.retries
            and not (policy.dead_letter_topic and policy.retry_letter_topic)
        ):
            raise ConfigurationError("retries of a pattern need the names of both letter topics")
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
        """The next message. Raises TimeoutError, `MessageUndecodable`, `Closed`, or why the consumer ended.

        Cancelled or timed out, it has taken no message.
        """
        message = self._inbox.pop()
        if message is not None:
            return message
        async with asyncio.timeout(timeout_s):
            return await self._inbox.wait()

    def receive_nowait(self) -> Message[T] | None:
        """The next message if one is here. Raises like `receive`."""
        return self._inbox.pop()

    # -- Answering --

    async def ack(self, message: Message[T] | MessageId) -> None:
        """Acknowledge one message; the broker learns of it within the ack delay."""
        if isinstance(message, Message):
            entry = message._entry
            entry.source.ack(entry, message._decoded.batch_index)
        else:
            self._partition_of(message).ack_id(message)

    async def ack_cumulative(self, message: Message[T] | MessageId) -> None:
        """Acknowledge a message and all before it in its partition. Not for shared subscriptions."""
        if self._how.dispatches_singly:
            raise ConfigurationError("a shared subscription takes single acks only")
        one = message.id if isinstance(message, Message) else message
        self._partition_of(one).ack_cumulative(one)

    async def nack(self, message: Message[T] | MessageId) -> None:
        """Have a message delivered again after the nack delay.

        Exclusive and failover subscriptions go back to their first unacknowledged message.
        """
        if isinstance(message, Message):
            self._partition_of(message.id).nack(message.id, message.redelivery_count)
        else:
            self._partition_of(message).nack(message, 0)

    async def reconsume_later(
        self, message: Message[T], delay_ms: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Have a message again after a delay, by way of the retry letter topic; then it is acknowledged here.

        It may have more `properties` then. Raises `PublishFailed` or `PublishUnknown`; then it is not acknowledged.
        """
        if self._dead_letters is None:
            raise ConfigurationError("reconsume_later needs a dead letter policy with retries")
        await self._dead_letters.retry(message, delay_ms, properties or {})
        await self.ack(message)

    async def flush_acks(self) -> None:
        """Return when the broker has answered all acks so far. Raises `OutcomeUnknown` if it cannot be known."""
        for one in self._all:
            await one.flush_acks()

    # -- The subscription --

    async def seek(self, to: MessageId | None = None, *, publish_time_ms: int | None = None) -> None:
        """Go to a message (it comes next), `EARLIEST`, `LATEST`, or a publish time; then all is as if new.

        When it returns, nothing is handed out any more that was delivered before, and what comes next may come.
        """
        if (to is None) == (publish_time_ms is None):
            raise ConfigurationError("seek to either a message or a time")
        everywhere = to is None or to[:2] in (EARLIEST[:2], LATEST[:2])
        those = self._all if everywhere or to is None else [self._partition_of(to)]
        outcomes = await asyncio.gather(
            *(one.seek(to, publish_time_ms) for one in those), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def last_message_id(self) -> MessageId:
        """The last message of the one topic; `EARLIEST` when it is empty."""
        (last,) = (await self.last_message_ids()).values()
        return last

    async def last_message_ids(self) -> dict[str, MessageId]:
        """The last message of each partition, by its full name."""
        return {topic: last for topic, (last, _) in (await self._ends()).items()}

    async def mark_deletes(self) -> dict[str, MessageId]:
        """Up to where the subscription is done with each partition, by its full name."""
        return {topic: mark for topic, (_, mark) in (await self._ends()).items()}

    @property
    def _has_arrivals(self) -> bool:
        return not self._inbox.is_empty

    async def backlogs(self) -> dict[str, int]:
        """Messages of each partition that nobody acknowledged, by its full name. Raises `Unavailable`."""
        return {one.topic: await one.backlog() for one in self._all}

    async def _ends(self) -> dict[str, tuple[MessageId, MessageId]]:
        """Of each partition its last message, and up to where the subscription is done with it."""
        return {one.topic: await one.ends() for one in self._all}

    async def unsubscribe(self) -> None:
        """Delete the subscription from all its topics, and close the consumer."""
        for one in self._all:
            await one.unsubscribe()
        await self.close()

    @property
    def has_ended(self) -> bool:
        """Every topic was terminated, and all their messages are acknowledged. Known of brokers that tell clients."""
        return bool(self._partitions) and all(one.has_ended for one in self._all)

    @property
    def is_active(self) -> bool:
        """Failover: whether this consumer gets the messages of at least one partition."""
        return any(one.is_active for one in self._all)

    @property
    def _all(self) -> list[PartitionConsumer]:
        if not self._is_open:
            raise Closed(f"the consumer of {', '.join(self.topics)} is not open")
        return list(self._partitions.values())

    def _partition_of(self, one: MessageId) -> PartitionConsumer:
        everything = self._all
        if one.topic in self._partitions:
            return self._partitions[one.topic]
        if len(everything) == 1 and not one.topic:
            return everything[0]
        raise ConfigurationError(f"message {one} belongs to no topic of this consumer")

    # -- Beginning and end --

    async def start(self) -> None:
        """Subscribe to all partitions. Raises what a broker refuses, or `Unavailable`."""
        self._client.register(self)
        try:
            if self._pattern is not None:
                self._follower = Follower(self._client, self._pattern, self._follow)
                self.topics += sorted(self._without_letters(await self._follower.first()))
            for topic in list(self.topics):
                await self._begin(topic, self._how if topic not in self._letter_topics else self._letters_how)
            for one in list(self._partitions.values()):
                assert one.attachment is not None
                try:
                    await one.attachment.ready()
                except NotFound:
                    if self._pattern is None:
                        raise  # else it has gone since its name was listed
        except BaseException:
            await self.close()
            raise
        self._is_open = True
        if self._pattern is not None and self._follower is not None:
            self._tasks.start(self._follower.run(), f"follow {self._pattern.text}")
        if self._pattern is not None or any(self._counts.values()):
            self._tasks.start(self._watch_growth(), "watch topics grow")

    async def _begin(self, topic: str, how: SubscribeAs) -> None:
        count = await self._client.partitions(topic, create=how.create)
        if count and not how.durable and how.start not in (EARLIEST, LATEST):
            raise ConfigurationError(
                f"{topic} has partitions: begin at EARLIEST or LATEST, then seek in each"
            )
        self._counts[topic] = count
        self._add([partition_name(topic, i) for i in range(count)] or [topic], how)

    def _add(self, names: Sequence[str], how: SubscribeAs) -> None:
        client = self._client
        for name in names:
            one = PartitionConsumer(name, client.next_id(), how, self._shared)
            one.attachment = Attachment(one, client.lookup, client.settings, client.rng)
            one.attachment.start(self._tasks)
            self._partitions[name] = one

    def _failed(self, one: PartitionConsumer, error: QuireError) -> None:
        """A partition will not be attached again. Of a pattern, that may be a topic that is gone."""
        if self._follower is None or not isinstance(error, NotFound):
            self._inbox.fail(error)
            return
        self._partitions.pop(one.topic, None)
        topic = parent_name(one.topic)
        if self._counts.pop(topic, None) is not None:
            self.topics.remove(topic)
        asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._follower.tell_again)

    async def _watch_growth(self) -> None:
        """New partitions are read from their first message: it may be older than our knowledge of them."""
        how = replace(self._how, start=EARLIEST, start_inclusive=True)
        while True:
            await asyncio.sleep(self._client.settings.partitions_poll_ms / 1000)
            for topic, here in list(self._counts.items()):
                try:
                    count = await self._client.partitions(topic) if here else 0
                except QuireError as error:
                    _log.debug("asking whether %s has grown: %s", topic, error)
                    continue
                if count > here and topic in self._counts:
                    self._add([partition_name(topic, i) for i in range(here, count)], how)
                    self._counts[topic] = count
                    _log.info("%s has grown to %d partitions", topic, count)

    async def _follow(self, names: set[str]) -> None:
        """These match the pattern now. What is new is read from its first message, and not made if it is gone.

        Raises what one of them met; those are begun when this is called again.
        """
        wanted = self._without_letters(names)
        for topic in set(self._counts) - wanted - set(self._letter_topics):
            del self._counts[topic]
            self.topics.remove(topic)
            gone = [name for name in self._partitions if parent_name(name) == topic]
            await asyncio.gather(*(self._partitions.pop(name).close() for name in gone))
        how = replace(self._how, start=EARLIEST, start_inclusive=True, create=False)
        failures: list[QuireError] = []
        for topic in sorted(wanted - set(self._counts)):
            try:
                await self._begin(topic, how)
            except QuireError as error:
                failures.append(error)
            else:
                self.topics.append(topic)
        if failures:
            raise failures[0]

    def _without_letters(self, names: set[str]) -> set[str]:
        """A pattern may match what this subscription buries: that is for others."""
        letters = tuple(f"-{self.subscription}{suffix}" for suffix in ("-DLQ", "-RETRY"))
        return {name for name in names if not name.endswith(letters)} - set(self._letter_topics)

    @property
    def _letters_how(self) -> SubscribeAs:
        """The retry letter topic is there once somebody reads it."""
        return replace(self._how, create=True)

    @property
    def _letter_topics(self) -> list[str]:
        return self._dead_letters.topics if self._dead_letters is not None else []

    async def close(self) -> None:
        """End it; acks that wait are sent first."""
        self._client.unregister(self)
        self._is_open = False
        self._inbox.fail(Closed(f"the consumer of {', '.join(self.topics)} was closed"))
        await asyncio.gather(*(one.close() for one in self._partitions.values()))
        await self._tasks.stop()
        if self._dead_letters is not None:
            await self._dead_letters.close()
