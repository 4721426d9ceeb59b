"""Requests of operators about subscriptions of a topic or of all its partitions.

A subscription of a partitioned topic is handled as a unit: it is created on all partitions, and deleted or moved on
each partition that has it; it is "not found" only if no partition has it. A request with the position of an entry is
only possible for a single partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.runtime.errors import ConfigurationError, NotFound
from quire.runtime.limits import BATCH_MESSAGES_MAX, METADATA_LOOKED_INTO_BYTES_MAX
from quire.serving.model.ports import EARLIEST, LATEST, Position
from quire.serving.names import TopicName, check_name
from quire.serving.operations.fan_out import FanOut, TopicRequest
from quire.serving.operations.partitioned import Partitioned, create_subscription
from quire.serving.registry.bundles import bundle_of
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.subscription.cursor.cursor import NO_PROPERTIES
from quire.serving.subscription.cursor.cursor_record import words_of
from quire.serving.subscription.peek import entry_at, unacknowledged_entry
from quire.serving.subscription.subscription import Subscription
from quire.serving.topic.lifecycle import upkeep
from quire.wire import commands, topic_name
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import Undecodable, is_batch, read_metadata


class SubscriptionAdmin:
    def __init__(self, registry: Registry, partitioned: Partitioned, fan_out: FanOut) -> None:
        self._registry = registry
        self._partitioned = partitioned
        self._fan_out = fan_out

    async def _open(self, topic: TopicName, name: str) -> Subscription:
        found = subscriptions_of(await self._registry.open(topic)).get(name)
        if found is None:
            raise NotFound(f"topic {topic} has no subscription {name}")
        return found

    async def _of_one(self, topic: TopicName, name: str, request: TopicRequest[None]) -> None:
        """Send a request about one subscription, which some partitions may lack.

        Raises `NotFound` if no partition has it.
        """
        if not await self._fan_out.ask_topic(topic, request, (NotFound,)):
            raise NotFound(f"topic {topic} has no subscription {name}")

    # -- creation and deletion --------------------------------------------------------------------------

    async def names(self, topic: TopicName) -> list[str]:
        """List the names of the durable subscriptions."""
        listed = await self._fan_out.ask_topic(topic, self._partitioned.list_subscriptions())
        return sorted({name for names in listed for name in names})

    async def create(
        self, topic: TopicName, name: str, start: Position, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> None:
        """Create a subscription. Raises `AlreadyExists`."""
        check_name("the subscription name", name)
        if await self._is_partitioned(topic):
            await self._partitioned.create_subscription(topic, name, start, properties)
        else:
            opened = await self._registry.open(topic, create=True)
            await create_subscription(opened, name, start, properties)

    async def _is_partitioned(self, topic: TopicName) -> bool:
        """Return whether the topic is partitioned.

        A missing topic is created if its namespace's policy is to create partitioned topics.
        """
        try:
            return await self._registry.catalogue.partitions_for_use(topic) > 0
        except NotFound:
            return False

    async def delete(self, topic: TopicName, name: str, *, force: bool = False) -> None:
        """Delete a subscription. Raises `NotFound`, and `ConsumerBusy` if it has consumers, unless `force`."""
        await self._of_one(topic, name, self._deletion(name, force=force))

    def _deletion(self, name: str, *, force: bool = False) -> TopicRequest[None]:
        async def here(one: TopicName) -> None:
            await subscriptions_of(await self._registry.open(one)).delete(name, force=force)

        return TopicRequest(here, "DELETE", f"{_path(name)}?force={str(force).lower()}")

    # -- peeking and moving ----------------------------------------------------------------------------

    async def peek(self, topic: TopicName, name: str, number: int) -> tuple[Position, bytes, int]:
        """Return the `number`th unacknowledged entry, from 1, with its position. Raises `NotFound`.

        The last item is the bit mask of unacknowledged messages of a partly acknowledged batch, otherwise 0.
        """
        await self._fan_out.refuse_parent(topic, "peeking")
        subscription = await self._open(topic, name)
        log = (await self._registry.open_persistent(topic)).log
        position, entry = await unacknowledged_entry(log, subscription.cursor, number)
        return position, entry, subscription.cursor.remaining(position)

    async def reset_cursor(self, topic: TopicName, name: str, to: Position | int, first: int = 0) -> None:
        """Seek to a position (inclusive) or a publish time in ms.

        If the position is that of a batch, `first` is the index of its first message to deliver.
        """

        async def here(one: TopicName) -> None:
            subscription = await self._open(one, name)
            if isinstance(to, int):
                await subscription.seek_time(to)
            else:
                await subscription.seek(await self._message_id(one, to, first))

        path = f"{_path(name)}/resetcursor"
        if isinstance(to, int):
            await self._of_one(topic, name, TopicRequest(here, "POST", f"{path}/{to}"))
            return
        if to not in (EARLIEST, LATEST):
            await self._fan_out.refuse_parent(topic, "resetting a cursor to an entry")
        body = {"ledgerId": to.ledger_id, "entryId": to.entry_id}
        await self._of_one(topic, name, TopicRequest(here, "POST", path, body))

    async def _message_id(self, topic: TopicName, to: Position, first: int) -> pb.MessageIdData:
        if first <= 0 or to in (EARLIEST, LATEST):
            return commands.message_id(*to)
        entry = await entry_at((await self._registry.open_persistent(topic)).log, to)
        try:
            metadata, _ = read_metadata(entry, METADATA_LOOKED_INTO_BYTES_MAX)
        except Undecodable as error:
            raise ConfigurationError(
                f"cannot count the messages of entry {to.ledger_id}:{to.entry_id}: {error}"
            ) from None
        size = min(metadata.num_messages_in_batch, BATCH_MESSAGES_MAX) if is_batch(metadata) else 1
        if first >= size:
            return commands.message_id(to.ledger_id, to.entry_id + 1)
        return commands.message_id(*to, ack_set=words_of((1 << size) - (1 << first)), batch_size=size)

    async def skip(self, topic: TopicName, name: str, count: int | None) -> None:
        """Acknowledge the first `count` unacknowledged messages or, if None, the whole backlog."""
        if count is None:
            await self._of_one(topic, name, self._skip_all(name))
            return
        await self._fan_out.refuse_parent(topic, "skipping a number of messages")
        await self._registry.open_persistent(topic)
        await (await self._open(topic, name)).skip(count)

    def _skip_all(self, name: str) -> TopicRequest[None]:
        async def here(one: TopicName) -> None:
            await (await self._open(one, name)).skip(None)

        return TopicRequest(here, "POST", f"{_path(name)}/skip_all")

    async def expire_before(self, topic: TopicName, name: str, end: Position, first: int = 0) -> None:
        """Acknowledge everything before an entry, and the messages before index `first` of its batch.

        Raises `NotFound`.
        """
        await self._fan_out.refuse_parent(topic, "expiring messages up to an entry")
        named = await self._message_id(topic, end, first)
        last = Position(named.ledgerId, named.entryId - 1)
        await (await self._open(topic, name)).skip_up_to(last, named)

    async def expire(self, topic: TopicName, name: str | None, older_than_ms: int) -> None:
        """Acknowledge messages older than `older_than_ms`, in one subscription or, if None, in all.

        Raises `NotFound`.
        """

        async def here(one: TopicName) -> None:
            if name is not None:
                await self._open(one, name)
            opened = await self._registry.open_persistent(one)
            await upkeep.expire(opened, older_than_ms, name)

        seconds = f"expireMessages/{older_than_ms // 1000}"
        if name is None:
            await self._fan_out.ask_topic(topic, TopicRequest(here, "POST", f"/all_subscription/{seconds}"))
        else:
            await self._of_one(topic, name, TopicRequest(here, "POST", f"{_path(name)}/{seconds}"))

    # -- properties ------------------------------------------------------------------------------------

    async def properties(self, topic: TopicName, name: str) -> dict[str, str]:
        """Return the properties of a subscription, from any partition that has it. Raises `NotFound`."""

        async def here(one: TopicName) -> dict[str, str]:
            return dict((await self._open(one, name)).cursor.properties)

        found = await self._fan_out.ask_topic(
            topic, TopicRequest(here, "GET", _properties(name)), (NotFound,)
        )
        if not found:
            raise NotFound(f"topic {topic} has no subscription {name}")
        return found[0]

    async def set_properties(self, topic: TopicName, name: str, properties: Mapping[str, str]) -> None:
        """Replace the properties. Raises `NotFound`."""

        async def here(one: TopicName) -> None:
            await (await self._open(one, name)).set_properties(properties)

        request = TopicRequest(here, "PUT", _properties(name), dict(properties))
        await self._of_one(topic, name, request)

    # -- namespaces ------------------------------------------------------------------------------------

    async def clear_backlog(self, tenant: str, namespace: str, name: str | None, bundle: str = "") -> None:
        """Skip the backlog of one subscription in each topic that has it or, if None, of all subscriptions.

        With `bundle`, only in its topics. Raises `NotFound` for an unknown namespace.
        """
        topics = await self._kept(tenant, namespace, bundle)
        if name is not None:
            await self._fan_out.ask_partitions(topics, self._skip_all(name), (NotFound,))
            return
        listed = await self._fan_out.ask_partitions(
            topics, self._partitioned.list_subscriptions(), (NotFound,)
        )
        for subscription in {one for names in listed.found.values() for one in names}:
            having = [topic for topic, names in listed.found.items() if subscription in names]
            await self._fan_out.ask_partitions(having, self._skip_all(subscription), (NotFound,))

    async def delete_everywhere(self, tenant: str, namespace: str, name: str, bundle: str = "") -> None:
        """Delete the subscription from each topic that has it; with `bundle`, only from its topics.

        Raises `ConsumerBusy` if it has consumers.
        """
        topics = await self._kept(tenant, namespace, bundle)
        await self._fan_out.ask_partitions(topics, self._deletion(name), (NotFound,))

    async def _kept(self, tenant: str, namespace: str, bundle: str) -> list[TopicName]:
        """List the used persistent topics of a namespace or, if given, of a bundle, with each partition."""
        listed, _ = await self._registry.catalogue.names(tenant, namespace, "persistent")
        names = list(map(TopicName.parse, listed))
        if bundle:
            record = await self._registry.catalogue.namespaces.get(tenant, namespace)
            names = [one for one in names if bundle_of(record, one) == bundle]
        return list(await self._registry.records.find_all(names))


def _properties(subscription: str) -> str:
    return f"{_path(subscription)}/properties"


def _path(subscription: str) -> str:
    return f"/subscription/{topic_name.escaped_subscription(subscription)}"
