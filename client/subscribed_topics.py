"""Topics of one consumer, with all their partitions.

The consumer attaches to new partitions, and with a pattern to new topics. It leaves deleted topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quire.client.attachment import Attachment
from quire.client.context import Context
from quire.client.deliveries import Shared
from quire.client.errors import Closed
from quire.client.messages import EARLIEST, LATEST, MessageId
from quire.client.partition_consumer import PartitionConsumer
from quire.client.pattern import Follower, Pattern
from quire.client.routing import parent_name, partition_name
from quire.client.subscribe import SubscribeAs
from quire.runtime.errors import ConfigurationError, NotFound, QuireError

LOOK_AGAIN_S: Final = 0.5
"""Seconds until a missing topic of a pattern is looked up again, because it may be created again."""

_log = logging.getLogger(__name__)


class SubscribedTopics:
    """Topics and partitions of one consumer. `names` are full names; for a pattern, of the matching topics."""

    def __init__(
        self,
        client: Context,
        names: list[str],
        pattern: Pattern | None,
        how: SubscribeAs,
        shared: Shared,
    ) -> None:
        self.names = names
        self.is_open = False
        self._client = client
        self._pattern = pattern
        self._how = how if pattern is None else replace(how, create=False)
        self._shared = shared
        self._partitions: dict[str, PartitionConsumer] = {}
        self._counts: dict[str, int] = {}
        self._follower: Follower | None = None

    @property
    def partitions(self) -> list[PartitionConsumer]:
        if not self.is_open:
            raise Closed(f"the consumer of {', '.join(self.names)} is not open")
        return list(self._partitions.values())

    def partition_of(self, one: MessageId) -> PartitionConsumer:
        everything = self.partitions
        if one.topic in self._partitions:
            return self._partitions[one.topic]
        if len(everything) == 1 and not one.topic:
            return everything[0]
        raise ConfigurationError(f"message {one} is not from a topic of this consumer")

    @property
    def has_ended(self) -> bool:
        """True if every topic is terminated and all its messages are acknowledged.

        Requires a broker that reports the end of a topic.
        """
        return bool(self._partitions) and all(one.has_ended for one in self.partitions)

    async def start(self) -> None:
        """Subscribe to all partitions. Raises the broker's error, or `Unavailable`."""
        if self._pattern is not None:
            self._follower = Follower(self._client, self._pattern, self._follow)
            self.names += sorted(self._without_letters(await self._follower.first()))
        for topic in list(self.names):
            await self._begin(topic, self._how if topic not in self._letter_topics else self._letters_how)
        for one in list(self._partitions.values()):
            assert one.attachment is not None
            try:
                await one.attachment.ready()
            except NotFound:
                if self._pattern is None:
                    raise  # with a pattern, the topic may have been deleted after it was listed
        self.is_open = True
        if self._pattern is not None and self._follower is not None:
            self._shared.tasks.start(self._follower.run(), f"follow {self._pattern.text}")
        if self._pattern is not None or any(self._counts.values()):
            self._shared.tasks.start(self._watch_growth(), "watch topics grow")

    async def _begin(self, topic: str, how: SubscribeAs) -> None:
        count = await self._client.partitions(topic, create=how.create)
        if count and not how.durable and how.start not in (EARLIEST, LATEST):
            raise ConfigurationError(
                f"{topic} is partitioned: a reader must start at EARLIEST or LATEST, "
                "and may then seek in each partition"
            )
        self._counts[topic] = count
        self._add([partition_name(topic, i) for i in range(count)] or [topic], how)

    def _add(self, names: Sequence[str], how: SubscribeAs) -> None:
        client = self._client
        for name in names:
            one = PartitionConsumer(name, client.next_id(), how, self._shared, self._failed)
            one.attachment = Attachment(one, client.lookup, client.settings, client.rng)
            one.attachment.start(self._shared.tasks)
            self._partitions[name] = one

    def _failed(self, one: PartitionConsumer, error: QuireError) -> None:
        """Handle the final failure of a partition; with a pattern, its topic may have been deleted."""
        if self._follower is None or not isinstance(error, NotFound):
            self._shared.inbox.fail(error)
            return
        self._partitions.pop(one.topic, None)
        topic = parent_name(one.topic)
        if self._counts.pop(topic, None) is not None:
            self.names.remove(topic)
        asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._follower.tell_again)

    async def _watch_growth(self) -> None:
        """Poll for new partitions. Each is read from its first message, which may precede the poll."""
        how = replace(self._how, start=EARLIEST, start_inclusive=True)
        while True:
            await asyncio.sleep(self._client.settings.partitions_poll_ms / 1000)
            for topic, here in list(self._counts.items()):
                try:
                    count = await self._client.partitions(topic) if here else 0
                except QuireError as error:
                    _log.debug("polling the partition count of %s failed: %s", topic, error)
                    continue
                if count > here and topic in self._counts:
                    self._add([partition_name(topic, i) for i in range(here, count)], how)
                    self._counts[topic] = count
                    _log.info("topic %s grew to %d partitions", topic, count)

    async def _follow(self, names: set[str]) -> None:
        """Subscribe to the topics that match the pattern now, and leave topics that no longer do.

        New topics are read from their first message. Topics that do not exist are not created. Raises the first
        failure; the next call retries the failed topics.
        """
        wanted = self._without_letters(names)
        for topic in set(self._counts) - wanted - set(self._letter_topics):
            del self._counts[topic]
            self.names.remove(topic)
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
                self.names.append(topic)
        if failures:
            raise failures[0]

    def _without_letters(self, names: set[str]) -> set[str]:
        """Exclude this subscription's own dead letter and retry topics, which the pattern may match."""
        letters = tuple(f"-{self._how.subscription}{suffix}" for suffix in ("-DLQ", "-RETRY"))
        return {name for name in names if not name.endswith(letters)} - set(self._letter_topics)

    @property
    def _letters_how(self) -> SubscribeAs:
        """Subscribe options of the retry letter topic, which its first consumer creates."""
        return replace(self._how, create=True)

    @property
    def _letter_topics(self) -> list[str]:
        return self._shared.dead_letters.topics if self._shared.dead_letters is not None else []

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self._partitions.values()))
