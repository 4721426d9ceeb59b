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
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final

from quire.client.attachment import Attachment
from quire.client.context import Context
from quire.client.errors import Closed
from quire.client.inbox import Inbox
from quire.client.messages import EARLIEST, LATEST, Message, MessageId
from quire.client.partition_consumer import PartitionConsumer
from quire.client.routing import full_name, partition_name
from quire.client.settings import ConsumerSettings
from quire.client.subscribe import SubscribeAs
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.tasks import Tasks
from quire.wire import pulsar_pb2 as pb

SUBSCRIPTION_TYPES: Final[dict[str, pb.CommandSubscribe.SubType]] = {
    "exclusive": pb.CommandSubscribe.Exclusive,
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key-shared": pb.CommandSubscribe.Key_Shared,
}

_log = logging.getLogger(__name__)


class Consumer:
    """Made by `Client.consumer` or `Client.reader`; begins with `async with` (or `start`)."""

    def __init__(
        self, client: Context, topics: Sequence[str], how: SubscribeAs, settings: ConsumerSettings
    ) -> None:
        settings.validate()
        if not topics or not how.subscription:
            raise ConfigurationError("a consumer needs a topic and the name of a subscription")
        self.topics = [full_name(topic) for topic in topics]
        self.subscription = how.subscription
        self._client = client
        self._how = how
        self._settings = settings
        self._inbox = Inbox()
        self._partitions: dict[str, PartitionConsumer] = {}
        self._counts: dict[str, int] = {}
        self._tasks = Tasks("client")
        self._is_open = False

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- Receiving --

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        try:
            return self._inbox.pop() or await self._inbox.wait()
        except Closed:
            raise StopAsyncIteration from None

    async def receive(self, timeout_s: float | None = None) -> Message:
        """The next message. Raises TimeoutError, `MessageUndecodable`, `Closed`, or why the consumer ended.

        Cancelled or timed out, it has taken no message.
        """
        message = self._inbox.pop()
        if message is not None:
            return message
        async with asyncio.timeout(timeout_s):
            return await self._inbox.wait()

    def receive_nowait(self) -> Message | None:
        """The next message if one is here. Raises like `receive`."""
        return self._inbox.pop()

    # -- Answering --

    async def ack(self, message: Message | MessageId) -> None:
        """Acknowledge one message; the broker learns of it within the ack delay."""
        if isinstance(message, Message):
            entry = message._entry
            entry.source.ack(entry, message._decoded.batch_index)
        else:
            self._partition_of(message).ack_id(message)

    async def ack_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge a message and all before it in its partition. Not for shared subscriptions."""
        if self._how.deals_singly:
            raise ConfigurationError("a shared subscription takes single acks only")
        one = message.id if isinstance(message, Message) else message
        self._partition_of(one).ack_cumulative(one)

    async def nack(self, message: Message | MessageId) -> None:
        """Have a message delivered again after the nack delay.

        Exclusive and failover subscriptions go back to their first unacknowledged message.
        """
        one = message.id if isinstance(message, Message) else message
        self._partition_of(one).nack(one)

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

    async def _ends(self) -> dict[str, tuple[MessageId, MessageId]]:
        """Of each partition its last message, and up to where the subscription is done with it."""
        return {one.topic: await one.ends() for one in self._all}

    async def unsubscribe(self) -> None:
        """Delete the subscription from all its topics, and close the consumer."""
        for one in self._all:
            await one.unsubscribe()
        await self.close()

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
            for topic in self.topics:
                count = self._counts[topic] = await self._client.partitions(topic, create=self._how.create)
                names = [partition_name(topic, i) for i in range(count)] or [topic]
                self._add(names, self._how)
            for one in self._partitions.values():
                assert one.attachment is not None
                await one.attachment.ready()
        except BaseException:
            await self.close()
            raise
        self._is_open = True
        if any(self._counts.values()):
            self._tasks.start(self._watch_growth(), "watch topics grow")

    def _add(self, names: Sequence[str], how: SubscribeAs) -> None:
        client = self._client
        for name in names:
            one = PartitionConsumer(
                name,
                client.next_id(),
                how,
                self._settings,
                self._inbox,
                client.settings.operation_timeout_ms / 1000,
            )
            one.attachment = Attachment(one, client.lookup, client.settings, client.rng)
            one.attachment.start(self._tasks)
            self._partitions[name] = one

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
                if count > here:
                    self._add([partition_name(topic, i) for i in range(here, count)], how)
                    self._counts[topic] = count
                    _log.info("%s has grown to %d partitions", topic, count)

    async def close(self) -> None:
        """End it; acks that wait are sent first."""
        self._client.unregister(self)
        self._is_open = False
        self._inbox.fail(Closed(f"the consumer of {', '.join(self.topics)} was closed"))
        await asyncio.gather(*(one.close() for one in self._partitions.values()))
        await self._tasks.stop()
