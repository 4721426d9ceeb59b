"""What an operator asks of a broker's topics: the part of `AdminTarget` that concerns them and their subscriptions.

Everything here is off the data path. Names are full or short; errors are those of `quire.runtime.errors`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

from quire.metadata.records import Policies
from quire.runtime.errors import ConfigurationError, InUse, NotFound, QuireError
from quire.serving import statistics
from quire.serving.names import TopicName
from quire.serving.ownership.port import NotOwner, Ownership
from quire.serving.peers import Peers, topic_path
from quire.serving.policy.namespaces import Namespaces
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.ports import EARLIEST, LATEST, Position
from quire.serving.registry import Registry
from quire.serving.schema.registry import Schemas
from quire.serving.subscription import seek
from quire.serving.subscription.peek import unacknowledged_entry
from quire.serving.subscription.subscription import Subscription
from quire.serving.topic.non_persistent import AnyTopic
from quire.serving.topic.services import Services
from quire.serving.topic.topic import Topic
from quire.serving.topic_factory import subscriptions_of
from quire.wire import commands
from quire.wire.block import Buffer

HOLD_S: Final = 5.0
"""How long a change of a policy waits for other brokers to heed it."""

_log = logging.getLogger(__name__)


class Operations:
    """See the top of the file. `Broker` adds the process to it."""

    registry: Registry
    services: Services
    peers: Peers
    ownership: Ownership
    namespaces: Namespaces
    http_url: str

    async def _ask_others(
        self, method: str, path: str, timeout_s: float
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """What the cluster's other brokers answer, and why some do not."""
        others = [row["httpUrl"] for row in self.ownership.brokers() if row["httpUrl"] != self.http_url]
        found = await self.peers.ask_all(method, others, path, timeout_s=timeout_s)
        silent = [str(one) for one in found if isinstance(one, QuireError)]
        return [one for one in found if not isinstance(one, QuireError)], silent

    async def _topic(self, name: str) -> Topic:
        return await self.registry.open_persistent(TopicName.parse(name))

    async def _any_topic(self, name: str) -> AnyTopic:
        return await self.registry.open(TopicName.parse(name))

    # -- topics ----------------------------------------------------------------------------------------

    async def list_topics(self, tenant: str, namespace: str, domain: str = "persistent") -> list[str]:
        """Full names, partitions listed one by one, parents of partitions not. Raises `NotFound`."""
        return (await self.registry.catalogue.names(tenant, namespace, domain))[0]

    async def list_partitioned(self, tenant: str, namespace: str, domain: str = "persistent") -> list[str]:
        """Full names of the topics that have partitions."""
        return (await self.registry.catalogue.names(tenant, namespace, domain))[1]

    async def create_topic(self, topic: str) -> None:
        """Raises `AlreadyExists`."""
        await self.registry.create(TopicName.parse(topic))

    async def create_partitioned(self, topic: str, partitions: int) -> None:
        """Raises `AlreadyExists`."""
        if partitions < 1:
            raise ConfigurationError("a partitioned topic has at least one partition")
        await self.registry.create(TopicName.parse(topic), partitions)

    async def update_partitions(self, topic: str, partitions: int) -> None:
        """There can only be more. Raises `NotFound`."""
        await self.registry.records.grow(TopicName.parse(topic), partitions)

    async def partitions(self, topic: str) -> int:
        """0 for a topic without partitions. Raises `NotFound` when there is neither."""
        name = TopicName.parse(topic)
        try:
            return await self.registry.catalogue.partitions(name)
        except NotFound:
            # A partition that nobody has used yet is there all the same.
            if name.parent is None or name.partition >= await self.registry.catalogue.partitions(name.parent):
                raise
            return 0

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Raises `NotFound`, and `InUse` while somebody uses it, unless `force`."""
        name = TopicName.parse(topic)
        if await self.registry.catalogue.partitions(name):
            raise ConfigurationError(f"{name} has partitions; delete it as a partitioned topic")
        loaded = self.registry.find(name)
        if loaded is not None and not force:
            _refuse_if_used(loaded)
        await self.registry.delete(name)

    async def delete_partitioned(self, topic: str, *, force: bool = False) -> None:
        """Delete all partitions, then their parent."""
        name = TopicName.parse(topic)
        count = await self.registry.catalogue.partitions(name)
        if not count:
            raise NotFound(f"{name} has no partitions")
        for partition in map(name.of_partition, range(count)):
            loaded = self.registry.find(partition)
            if loaded is not None and not force:
                _refuse_if_used(loaded)
        for partition in map(name.of_partition, range(count)):
            if await self._is_used(partition):
                await self._delete_partition(partition, force=force)
        await self.registry.delete_parent(name)

    async def _is_used(self, partition: TopicName) -> bool:
        """Partitions are made when they are first used; of those that keep nothing only their brokers know."""
        return not partition.is_persistent or await self.registry.records.find(partition) is not None

    async def _delete_partition(self, partition: TopicName, *, force: bool) -> None:
        try:
            await self.registry.delete(partition)
        except NotOwner as error:
            await self.peers.ask("DELETE", error, f"{topic_path(partition)}?force={str(force).lower()}")

    async def take_bundle(self, bundle: str, topics: Sequence[str]) -> None:
        """Own a bundle that is nobody's and load these topics of it. Raises `NotOwner`, `Unavailable`."""
        await self.ownership.take(bundle)
        await self.registry.warm(map(TopicName.parse, topics))

    async def unload_topic(self, topic: str) -> None:
        """Close it here; its clients look it up again. Raises `NotOwner`, `NotFound`."""
        name = TopicName.parse(topic)
        await self.partitions(topic)
        if self.registry.find(name) is None:
            await self.registry.require(name)
        await self.registry.unload(name)

    async def topic_policies(self, topic: str) -> Policies:
        """What the topic itself prescribes (of a partition: its parent). Raises `NotFound`."""
        await self.partitions(topic)
        return await self.registry.policies.own(TopicName.parse(topic))

    async def applied_policies(self, topic: str) -> TopicPolicies:
        """What holds for the topic: its own policies over its namespace's over the broker's defaults."""
        await self.partitions(topic)
        return await self.registry.policies.of(TopicName.parse(topic))

    @property
    def schemas(self) -> Schemas:
        return self.registry.schemas

    async def policies_of(self, name: TopicName) -> TopicPolicies:
        """What holds for a topic, or would if it were there. Raises `NotFound` for an unknown namespace."""
        return await self.registry.policies.of(name)

    async def change_topic_policies(self, topic: str, change: Callable[[Policies], Policies]) -> None:
        """Replace what the topic prescribes; see `_hold`. Raises `NotFound`, `VersionConflict`, `Unavailable`."""
        await self.partitions(topic)
        name = TopicName.parse(topic)
        await self.registry.policies.change(name, change)
        await self._hold(name.tenant, name.namespace, f"?topic={quote(str(name), safe='')}")

    async def change_namespace_policies(
        self, tenant: str, namespace: str, change: Callable[[Policies], Policies]
    ) -> None:
        """Replace what the namespace prescribes; see `_hold`. Raises as `change_topic_policies`."""
        await self.namespaces.change(tenant, namespace, change)
        await self._hold(tenant, namespace)

    async def _hold(self, tenant: str, namespace: str, which: str = "") -> None:
        """Policies that were written hold on every broker that answers: for who connects when this has returned.

        One that does not answer follows by its watch, as soon as it can.
        """
        path = "/quire/v1/policies/" + "/".join(quote(part, safe="") for part in (tenant, namespace))
        others = self._ask_others("PUT", path + which, HOLD_S)
        (_, silent), _ = await asyncio.gather(others, self.registry.apply_policies(tenant, namespace))
        for why in silent:
            _log.warning("the policies of %s/%s may hold later there: %s", tenant, namespace, why)

    async def refresh_policies(self, tenant: str, namespace: str, topic: str | None) -> None:
        """What another broker has written holds here when this returns. Raises `NotFound`, `Unavailable`."""
        name = None if topic is None else TopicName.parse(topic)
        await self.registry.policies.refresh(tenant, namespace, name)
        await self.registry.apply_policies(tenant, namespace)

    async def terminate_topic(self, topic: str) -> Position:
        """No more messages, for good. Answers the last position."""
        return await (await self._topic(topic)).terminate()

    async def terminate_partitions(self, topic: str) -> dict[int, Position]:
        """The same for every partition; answers the last position of each."""
        name = TopicName.parse(topic)
        last = {}
        for number in range(await self.registry.catalogue.partitions(name)):
            partition = name.of_partition(number)
            try:
                last[number] = await self.terminate_topic(str(partition))
            except NotOwner as error:
                said = await self.peers.ask("POST", error, f"{topic_path(partition)}/terminate")
                last[number] = Position(said["ledgerId"], said["entryId"])
        return last

    async def compact_topic(self, topic: str) -> None:
        """Begin to compact it, or all of its partitions. Raises `AlreadyExists` while that is under way."""
        name = TopicName.parse(topic)
        count = await self.partitions(topic)
        if not count:
            (await self._topic(topic)).compaction.start()
        for partition in map(name.of_partition, range(count)):
            if await self._is_used(partition):
                await self._compact_partition(partition)

    async def _compact_partition(self, partition: TopicName) -> None:
        try:
            (await self._topic(str(partition))).compaction.start()
        except NotOwner as error:
            await self.peers.ask("PUT", error, f"{topic_path(partition)}/compaction")

    async def compaction_status(self, topic: str) -> dict[str, Any]:
        """As Pulsar's: `status` and `lastError`."""
        compaction = (await self._topic(topic)).compaction
        return {"status": str(compaction.status), "lastError": compaction.error}

    async def position_of_index(self, topic: str, index: int) -> Position:
        """The entry that holds the message with this topic-wide index. Raises `NotFound` when there is none."""
        loaded = await self._topic(topic)
        first = loaded.segments()[0].first_index if loaded.segments() else 0
        if not first <= index < loaded.confirmed_index:
            raise NotFound(
                f"{loaded.name} has messages {first} to {loaded.confirmed_index - 1}, and not {index}"
            )
        return await loaded.position_of(index)

    async def position_at_time(self, topic: str, time_ms: int) -> Position:
        """The first entry that was published at `time_ms` or later; behind the last one when there is none."""
        return await seek.position_at_time(await self._topic(topic), time_ms)

    async def last_position(self, topic: str) -> Position:
        return (await self._topic(topic)).last_confirmed

    # -- statistics ------------------------------------------------------------------------------------

    async def stats(self, topic: str) -> dict[str, Any]:
        """As Pulsar's `stats`; of a partitioned topic the sums of its partitions."""
        name = TopicName.parse(topic)
        count = await self.partitions(topic)
        if count:
            return await self._partitioned_stats(name, count)
        loaded = await self.registry.open(name)
        return await statistics.of_topic(loaded, self.services.clock.monotonic())

    async def _partitioned_stats(self, name: TopicName, count: int) -> dict[str, Any]:
        partitions = {}
        for partition in map(name.of_partition, range(count)):
            if await self._is_used(partition):
                partitions[str(partition)] = await self._partition_stats(partition)
        return statistics.of_partitions(partitions, count)

    async def _partition_stats(self, partition: TopicName) -> dict[str, Any]:
        try:
            return await self.stats(str(partition))
        except NotOwner as error:
            found: dict[str, Any] = await self.peers.ask("GET", error, f"{topic_path(partition)}/stats")
            return found

    async def internal_stats(self, topic: str) -> dict[str, Any]:
        """As Pulsar's `internalStats`; each of `ledgers` has a `state` and an `archive`."""
        return await statistics.internal(await self._topic(topic), self.services.ledgers)

    async def explain(self, topic: str) -> dict[str, Any]:
        """Why each segment is still here, and when it will go; see `quire.serving.topic.explain`."""
        return statistics.explained(await self._topic(topic), self.services)

    # -- subscriptions ---------------------------------------------------------------------------------

    async def subscriptions(self, topic: str) -> list[str]:
        """Names of the durable subscriptions."""
        found = subscriptions_of(await self._any_topic(topic))
        return sorted(one.name for one in found if one.is_durable)

    async def create_subscription(self, topic: str, name: str, start: Position) -> None:
        """Raises `AlreadyExists`."""
        loaded = await self.registry.open(TopicName.parse(topic), create=True)
        if start in (EARLIEST, LATEST):
            await subscriptions_of(loaded).create(name, earliest=start == EARLIEST)
        else:
            await subscriptions_of(loaded).create(name, at=commands.message_id(*start))

    async def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None:
        await subscriptions_of(await self._any_topic(topic)).delete(name, force=force)

    async def peek(self, topic: str, name: str, number: int) -> tuple[Position, bytes]:
        """The `number`th entry (from 1) that the subscription has to acknowledge. Raises `NotFound`."""
        subscription = await self._subscription(topic, name)
        return await unacknowledged_entry(await self._topic(topic), subscription.cursor, number)

    async def reset_cursor(self, topic: str, name: str, to: Position | int) -> None:
        """To a position (inclusive) or to a publish time in ms."""
        subscription = await self._subscription(topic, name)
        if isinstance(to, int):
            await subscription.seek_time(to)
        else:
            await subscription.seek(commands.message_id(*to))

    async def skip_messages(self, topic: str, name: str, count: int | None) -> None:
        """`None`: all of the backlog."""
        subscription = await self._subscription(topic, name)
        if count is None:
            await subscription.skip_all()
        else:
            await self._skip_some(await self._topic(topic), subscription, count)

    async def expire_messages(self, topic: str, name: str | None, older_than_ms: int) -> None:
        """Acknowledge what is older, in one subscription or (`None`) in all. Raises `NotFound`."""
        if name is not None:
            await self._subscription(topic, name)
        await (await self._topic(topic)).upkeep.expire(older_than_ms, name)

    async def _skip_some(self, topic: Topic, subscription: Subscription, count: int) -> None:
        """Acknowledge whole entries from the mark-delete position on until `count` messages are skipped."""
        first = topic.next_position(subscription.mark_delete)
        wanted = await topic.index_of(first) + count
        if wanted >= topic.confirmed_index:
            await subscription.skip_all()
            return
        position = await topic.position_of(wanted)
        await subscription.skip_up_to(Position(position.ledger_id, position.entry_id - 1))

    async def _subscription(self, topic: str, name: str) -> Subscription:
        found = subscriptions_of(await self._any_topic(topic)).get(name)
        if found is None:
            raise NotFound(f"topic {topic} has no subscription {name}")
        return found

    # -- bytes, for Spark ------------------------------------------------------------------------------

    async def segments(self, topic: str) -> dict[str, Any]:
        """The JSON of `GET /quire/v1/topics/…/segments`; see `quire.spark_source.plan`."""
        name = TopicName.parse(topic)
        count = await self.partitions(topic)
        if count:
            return {"topic": str(name), "partitions": count, "segments": [], "end": None}
        return await statistics.plan(await self.registry.open_persistent(name), self.services.ledgers)

    async def blocks(self, topic: str, position: Position, bytes_max: int) -> Iterable[Buffer]:
        """Whole confirmed blocks from the one that contains `position`. Raises `NotFound` when it was trimmed."""
        return await (await self._topic(topic)).read(position, bytes_max)


def _refuse_if_used(topic: AnyTopic) -> None:
    if topic.producers.all() or any(one.consumers for one in subscriptions_of(topic)):
        raise InUse(f"{topic.name} has producers or consumers; close them, or delete it by force")
