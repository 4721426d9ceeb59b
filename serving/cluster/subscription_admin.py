"""What an operator asks of the subscriptions of a topic, or of all partitions of one.

Of a partitioned topic a subscription is one thing: made on all partitions, deleted and moved on all that have it, and
not found only where none has it. What names a single entry can be asked of a partition alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from quire.runtime.errors import NotFound
from quire.serving.cluster.fan_out import FanOut, TopicRequest
from quire.serving.cluster.partitioned import Partitioned, create_subscription
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.topic_loader import subscriptions_of
from quire.serving.model.ports import EARLIEST, LATEST, Position
from quire.serving.names import TopicName, check_name
from quire.serving.subscription.cursor.cursor import NO_PROPERTIES
from quire.serving.subscription.peek import unacknowledged_entry
from quire.serving.subscription.subscription import Subscription
from quire.serving.topic.finding import position_of
from quire.serving.topic.log import LedgerLog
from quire.wire import commands


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
        """Make a request about one subscription, which not every partition need have."""
        if not await self._fan_out.whole(topic, request, (NotFound,)):
            raise NotFound(f"topic {topic} has no subscription {name}")

    # -- there or not ----------------------------------------------------------------------------------

    async def names(self, topic: TopicName) -> list[str]:
        """Of the durable subscriptions."""
        listed = await self._fan_out.whole(topic, self._partitioned.list_subscriptions())
        return sorted({name for names in listed for name in names})

    async def create(
        self, topic: TopicName, name: str, start: Position, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> None:
        """Raises `AlreadyExists`."""
        check_name("the subscription name", name)
        if await self._is_partitioned(topic):
            await self._partitioned.make(topic, name, start, properties)
        else:
            opened = await self._registry.open(topic, create=True)
            await create_subscription(opened, name, start, properties)

    async def _is_partitioned(self, topic: TopicName) -> bool:
        """A topic that is not there yet is none that has partitions."""
        try:
            return await self._registry.catalogue.partitions(topic) > 0
        except NotFound:
            return False

    async def delete(self, topic: TopicName, name: str, *, force: bool = False) -> None:
        """Raises `NotFound`, and `ConsumerBusy` when it has consumers, unless `force`."""
        await self._of_one(topic, name, self._deletion(name, force=force))

    def _deletion(self, name: str, *, force: bool = False) -> TopicRequest[None]:
        async def here(one: TopicName) -> None:
            await subscriptions_of(await self._registry.open(one)).delete(name, force=force)

        return TopicRequest(here, "DELETE", f"{_path(name)}?force={str(force).lower()}")

    # -- looked at and moved ---------------------------------------------------------------------------

    async def peek(self, topic: TopicName, name: str, number: int) -> tuple[Position, bytes]:
        """The `number`th entry (from 1) that the subscription has to acknowledge. Raises `NotFound`."""
        await self._fan_out.refuse_parent(topic, "a look at messages")
        subscription = await self._open(topic, name)
        return await unacknowledged_entry(
            (await self._registry.open_persistent(topic)).log, subscription.cursor, number
        )

    async def reset_cursor(self, topic: TopicName, name: str, to: Position | int) -> None:
        """To a position (inclusive) or to a publish time in ms."""

        async def here(one: TopicName) -> None:
            subscription = await self._open(one, name)
            if isinstance(to, int):
                await subscription.seek_time(to)
            else:
                await subscription.seek(commands.message_id(*to))

        path = f"{_path(name)}/resetcursor"
        if isinstance(to, int):
            await self._of_one(topic, name, TopicRequest(here, "POST", f"{path}/{to}"))
            return
        if to not in (EARLIEST, LATEST):
            await self._fan_out.refuse_parent(topic, "a reset to an entry")
        body = {"ledgerId": to.ledger_id, "entryId": to.entry_id}
        await self._of_one(topic, name, TopicRequest(here, "POST", path, body))

    async def skip(self, topic: TopicName, name: str, count: int | None) -> None:
        """`None`: all of the backlog."""
        if count is None:
            await self._of_one(topic, name, self._skip_all(name))
            return
        await self._fan_out.refuse_parent(topic, "a number of messages to skip")
        loaded = await self._registry.open_persistent(topic)
        await self._skip_some(loaded.log, await self._open(topic, name), count)

    def _skip_all(self, name: str) -> TopicRequest[None]:
        async def here(one: TopicName) -> None:
            await (await self._open(one, name)).skip_all()

        return TopicRequest(here, "POST", f"{_path(name)}/skip_all")

    async def _skip_some(self, log: LedgerLog, subscription: Subscription, count: int) -> None:
        """Acknowledge whole entries from the mark-delete position on until `count` messages are skipped."""
        first = log.next_position(subscription.mark_delete)
        wanted = await log.index_of(first) + count
        if wanted >= log.confirmed_index:
            await subscription.skip_all()
            return
        position = await position_of(log, wanted)
        await subscription.skip_up_to(Position(position.ledger_id, position.entry_id - 1))

    async def expire_up_to(self, topic: TopicName, name: str, position: Position) -> None:
        """Acknowledge everything up to and with an entry, in one subscription. Raises `NotFound`."""
        await self._fan_out.refuse_parent(topic, "an entry to expire messages up to")
        await (await self._open(topic, name)).skip_up_to(position)

    async def expire(self, topic: TopicName, name: str | None, older_than_ms: int) -> None:
        """Acknowledge what is older, in one subscription or (`None`) in all. Raises `NotFound`."""

        async def here(one: TopicName) -> None:
            if name is not None:
                await self._open(one, name)
            opened = await self._registry.open_persistent(one)
            await opened.upkeep.expire(opened, older_than_ms, name)

        seconds = f"expireMessages/{older_than_ms // 1000}"
        if name is None:
            await self._fan_out.whole(topic, TopicRequest(here, "POST", f"/all_subscription/{seconds}"))
        else:
            await self._of_one(topic, name, TopicRequest(here, "POST", f"{_path(name)}/{seconds}"))

    # -- what clients or operators wrote down of it --------------------------------------------------------

    async def properties(self, topic: TopicName, name: str) -> dict[str, str]:
        """Of a partitioned topic those of any partition that has the subscription. Raises `NotFound`."""

        async def here(one: TopicName) -> dict[str, str]:
            return dict((await self._open(one, name)).cursor.properties)

        found = await self._fan_out.whole(topic, TopicRequest(here, "GET", _properties(name)), (NotFound,))
        if not found:
            raise NotFound(f"topic {topic} has no subscription {name}")
        return found[0]

    async def set_properties(self, topic: TopicName, name: str, properties: Mapping[str, str]) -> None:
        """Instead of those that it has. Raises `NotFound`."""

        async def here(one: TopicName) -> None:
            await (await self._open(one, name)).set_properties(properties)

        request = TopicRequest(here, "PUT", _properties(name), dict(properties))
        await self._of_one(topic, name, request)

    # -- of a whole namespace --------------------------------------------------------------------------

    async def clear_backlog(self, tenant: str, namespace: str, name: str | None) -> None:
        """Skip everything, in one subscription of each topic that has it, or (`None`) in all of all topics."""
        topics = await self._kept(tenant, namespace)
        if name is not None:
            await self._fan_out.each(topics, self._skip_all(name), (NotFound,))
            return
        listed = await self._fan_out.each(topics, self._partitioned.list_subscriptions(), (NotFound,))
        for subscription in {one for names in listed.found.values() for one in names}:
            having = [topic for topic, names in listed.found.items() if subscription in names]
            await self._fan_out.each(having, self._skip_all(subscription), (NotFound,))

    async def delete_everywhere(self, tenant: str, namespace: str, name: str) -> None:
        """Delete the subscription from each topic that has it. Raises `ConsumerBusy` where it has consumers."""
        await self._fan_out.each(await self._kept(tenant, namespace), self._deletion(name), (NotFound,))

    async def _kept(self, tenant: str, namespace: str) -> list[TopicName]:
        """The topics that keep messages, partitions each, as far as they were used."""
        listed, _ = await self._registry.catalogue.names(tenant, namespace, "persistent")
        return list(await self._registry.records.find_all(map(TopicName.parse, listed)))


def _properties(subscription: str) -> str:
    return f"{_path(subscription)}/properties"


def _path(subscription: str) -> str:
    return f"/subscription/{quote(subscription, safe='')}"
