"""What an operator asks of the subscriptions of a topic, or of all partitions of one: a part of `Operations`.

Of a partitioned topic a subscription is one thing: made on all partitions, deleted and moved on all that have it, and
not found only where none has it. What names a single entry can be asked of a partition alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import quote

from quire.runtime.errors import NotFound
from quire.serving.cluster.fan_out import FanOut, Refusals, TopicRequest
from quire.serving.cluster.partitioned import Partitioned, create_subscription
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.topic_factory import subscriptions_of
from quire.serving.model.ports import EARLIEST, LATEST, NotAllowed, Position
from quire.serving.names import TopicName, check_name
from quire.serving.subscription.cursor.cursor import NO_PROPERTIES
from quire.serving.subscription.peek import entry_at, unacknowledged_entry
from quire.serving.subscription.subscription import Subscription
from quire.serving.topic.topic import Topic
from quire.wire import commands

T = TypeVar("T")


class SubscriptionOperations:
    """See the top of the file."""

    registry: Registry
    partitioned: Partitioned
    fan_out: FanOut

    async def partitions(self, topic: str) -> int:
        """0 for a topic without partitions. Raises `NotFound` when there is neither."""
        name = TopicName.parse(topic)
        try:
            return await self.registry.catalogue.partitions(name)
        except NotFound:
            # A partition that nobody has used yet is there all the same.
            if name.parent is None:
                raise
            await self.registry.catalogue.covering(name)
            return 0

    async def _parts(self, topic: str) -> list[TopicName] | None:
        """The partitions that were used, None for a topic that has none."""
        name = TopicName.parse(topic)
        if not await self.partitions(topic):
            return None
        return await self.fan_out.used(name, await self.partitioned.record(name))

    async def _of_each(self, topic: str, request: TopicRequest[T], refusals: Refusals = ()) -> list[T]:
        """What the topic answers, or its partitions do. `FanOut.each` says which refusals are none."""
        parts = await self._parts(topic)
        if parts is None:
            return [await request.here(topic)]
        return list((await self.fan_out.each(parts, request, refusals)).some().values())

    async def _refuse_parent(self, topic: str, what: str) -> None:
        """Raise `NotAllowed` for a topic that has partitions."""
        if await self.partitions(topic):
            raise NotAllowed(
                f"{what} of the partitioned topic {topic} is not allowed; ask one of its partitions"
            )

    async def _topic(self, name: str) -> Topic:
        return await self.registry.open_persistent(TopicName.parse(name))

    async def _subscription(self, topic: str, name: str) -> Subscription:
        found = subscriptions_of(await self.registry.open(TopicName.parse(topic))).get(name)
        if found is None:
            raise NotFound(f"topic {topic} has no subscription {name}")
        return found

    # -- there or not ----------------------------------------------------------------------------------

    async def subscriptions(self, topic: str) -> list[str]:
        """Names of the durable subscriptions."""
        listed = await self._of_each(topic, self.partitioned.list_subscriptions())
        return sorted({name for names in listed for name in names})

    async def create_subscription(
        self, topic: str, name: str, start: Position, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> None:
        """Raises `AlreadyExists`."""
        check_name("the subscription name", name)
        parsed = TopicName.parse(topic)
        if await self._is_partitioned(parsed):
            await self.partitioned.make(parsed, name, start, properties)
        else:
            opened = await self.registry.open(parsed, create=True)
            await create_subscription(opened, name, start, properties)

    async def _is_partitioned(self, name: TopicName) -> bool:
        """A topic that is not there yet is none that has partitions."""
        try:
            return await self.registry.catalogue.partitions(name) > 0
        except NotFound:
            return False

    async def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None:
        """Raises `NotFound`, and `ConsumerBusy` when it has consumers, unless `force`."""
        await self._of_one(topic, name, self._deletion(name, force=force))

    def _deletion(self, name: str, *, force: bool = False) -> TopicRequest[None]:
        async def here(one: str) -> None:
            await subscriptions_of(await self.registry.open(TopicName.parse(one))).delete(name, force=force)

        return TopicRequest(here, "DELETE", f"{_path(name)}?force={str(force).lower()}")

    async def _of_one(self, topic: str, name: str, request: TopicRequest[None]) -> None:
        """Make a request about one subscription, which not every partition need have."""
        if not await self._of_each(topic, request, (NotFound,)):
            raise NotFound(f"topic {topic} has no subscription {name}")

    # -- looked at and moved ---------------------------------------------------------------------------

    async def peek(self, topic: str, name: str, number: int) -> tuple[Position, bytes]:
        """The `number`th entry (from 1) that the subscription has to acknowledge. Raises `NotFound`."""
        await self._refuse_parent(topic, "a look at messages")
        subscription = await self._subscription(topic, name)
        return await unacknowledged_entry(await self._topic(topic), subscription.cursor, number)

    async def reset_cursor(self, topic: str, name: str, to: Position | int) -> None:
        """To a position (inclusive) or to a publish time in ms."""

        async def here(one: str) -> None:
            subscription = await self._subscription(one, name)
            if isinstance(to, int):
                await subscription.seek_time(to)
            else:
                await subscription.seek(commands.message_id(*to))

        path = f"{_path(name)}/resetcursor"
        if isinstance(to, int):
            await self._of_one(topic, name, TopicRequest(here, "POST", f"{path}/{to}"))
            return
        if to not in (EARLIEST, LATEST):
            await self._refuse_parent(topic, "a reset to an entry")
        body = {"ledgerId": to.ledger_id, "entryId": to.entry_id}
        await self._of_one(topic, name, TopicRequest(here, "POST", path, body))

    async def message(self, topic: str, position: Position) -> bytes:
        """The entry at a position. Raises `NotFound`."""
        await self._refuse_parent(topic, "a look at messages")
        return await entry_at(await self._topic(topic), position)

    async def skip_messages(self, topic: str, name: str, count: int | None) -> None:
        """`None`: all of the backlog."""
        if count is None:
            await self._of_one(topic, name, self._skip_all(name))
            return
        await self._refuse_parent(topic, "a number of messages to skip")
        await self._skip_some(await self._topic(topic), await self._subscription(topic, name), count)

    def _skip_all(self, name: str) -> TopicRequest[None]:
        async def here(one: str) -> None:
            await (await self._subscription(one, name)).skip_all()

        return TopicRequest(here, "POST", f"{_path(name)}/skip_all")

    async def _skip_some(self, topic: Topic, subscription: Subscription, count: int) -> None:
        """Acknowledge whole entries from the mark-delete position on until `count` messages are skipped."""
        first = topic.next_position(subscription.mark_delete)
        wanted = await topic.index_of(first) + count
        if wanted >= topic.confirmed_index:
            await subscription.skip_all()
            return
        position = await topic.position_of(wanted)
        await subscription.skip_up_to(Position(position.ledger_id, position.entry_id - 1))

    async def expire_up_to(self, topic: str, name: str, position: Position) -> None:
        """Acknowledge everything up to and with an entry, in one subscription. Raises `NotFound`."""
        await self._refuse_parent(topic, "an entry to expire messages up to")
        await (await self._subscription(topic, name)).skip_up_to(position)

    async def expire_messages(self, topic: str, name: str | None, older_than_ms: int) -> None:
        """Acknowledge what is older, in one subscription or (`None`) in all. Raises `NotFound`."""

        async def here(one: str) -> None:
            if name is not None:
                await self._subscription(one, name)
            await (await self._topic(one)).upkeep.expire(older_than_ms, name)

        seconds = f"expireMessages/{older_than_ms // 1000}"
        if name is None:
            await self._of_each(topic, TopicRequest(here, "POST", f"/all_subscription/{seconds}"))
        else:
            await self._of_one(topic, name, TopicRequest(here, "POST", f"{_path(name)}/{seconds}"))

    # -- of a whole namespace --------------------------------------------------------------------------

    async def clear_backlog(self, tenant: str, namespace: str, name: str | None) -> None:
        """Skip everything, in one subscription of each topic that has it, or (`None`) in all of all topics."""
        topics = await self._kept(tenant, namespace)
        if name is not None:
            await self.fan_out.each(topics, self._skip_all(name), (NotFound,))
            return
        listed = await self.fan_out.each(topics, self.partitioned.list_subscriptions(), (NotFound,))
        for subscription in {one for names in listed.found.values() for one in names}:
            having = [topic for topic, names in listed.found.items() if subscription in names]
            await self.fan_out.each(having, self._skip_all(subscription), (NotFound,))

    async def delete_subscriptions(self, tenant: str, namespace: str, name: str) -> None:
        """Delete the subscription from each topic that has it. Raises `ConsumerBusy` where it has consumers."""
        await self.fan_out.each(await self._kept(tenant, namespace), self._deletion(name), (NotFound,))

    async def _kept(self, tenant: str, namespace: str) -> list[TopicName]:
        """The topics that keep messages, partitions each, as far as they were used."""
        listed, _ = await self.registry.catalogue.names(tenant, namespace, "persistent")
        return await self.registry.records.there(map(TopicName.parse, listed))


def _path(subscription: str) -> str:
    return f"/subscription/{quote(subscription, safe='')}"
