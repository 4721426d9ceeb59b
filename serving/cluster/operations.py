"""What an operator asks of a broker's topics: the part of `AdminTarget` that concerns them.

Everything here is off the data path. Names are full or short; errors are those of `quire.runtime.errors`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote

from msgspec.structs import replace

from quire.metadata.records import Policies, TopicRecord
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound, QuireError
from quire.serving.cluster import statistics
from quire.serving.cluster.fan_out import TopicRequest
from quire.serving.cluster.partitioned import refuse_if_used
from quire.serving.cluster.peers import Peers
from quire.serving.cluster.port import NotOwner, Ownership
from quire.serving.cluster.subscription_operations import SubscriptionOperations
from quire.serving.model.ports import Position
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.schema.registry import Schemas
from quire.serving.subscription import seek
from quire.serving.topic.services import Services
from quire.wire.block import Buffer

HOLD_S: Final = 5.0
"""How long a change of a policy waits for other brokers to heed it."""

_log = logging.getLogger(__name__)


class Operations(SubscriptionOperations):
    """See the top of the file. `Broker` adds the process to it."""

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

    # -- topics ----------------------------------------------------------------------------------------

    async def list_topics(self, tenant: str, namespace: str, domain: str = "persistent") -> list[str]:
        """Full names, partitions listed one by one, parents of partitions not. Raises `NotFound`."""
        return (await self.registry.catalogue.names(tenant, namespace, domain))[0]

    async def list_partitioned(self, tenant: str, namespace: str, domain: str = "persistent") -> list[str]:
        """Full names of the topics that have partitions."""
        return (await self.registry.catalogue.names(tenant, namespace, domain))[1]

    async def create_topic(self, topic: str, properties: Mapping[str, str] | None = None) -> None:
        """Raises `AlreadyExists`."""
        await self.registry.create(TopicName.parse(topic), properties=properties)

    async def create_partitioned(
        self, topic: str, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Raises `AlreadyExists`."""
        if partitions < 1:
            raise ConfigurationError("a partitioned topic has at least one partition")
        await self.registry.create(TopicName.parse(topic), partitions, properties)

    async def update_partitions(self, topic: str, partitions: int) -> None:
        """There can only be more. Raises `NotFound`."""
        await self.partitioned.grow(TopicName.parse(topic), partitions)

    async def create_missed_partitions(self, topic: str) -> None:
        """Make those that nobody has used yet. Raises `NotFound`."""
        await self.partitioned.make_missed(TopicName.parse(topic))

    async def delete_topic(
        self, topic: str, *, force: bool = False, parent_generation: int | None = None
    ) -> None:
        """Raises `NotFound`, and `InUse` while somebody uses it, unless `force`.

        `parent_generation`: it goes with its parent, and is not deleted when it is another one's partition.
        """
        name = TopicName.parse(topic)
        if parent_generation is not None:
            await self.partitioned.delete_partition(name, parent_generation)
            return
        if await self.registry.catalogue.partitions(name):
            raise ConfigurationError(f"{name} has partitions; delete it as a partitioned topic")
        loaded = self.registry.find(name)
        if loaded is not None and not force:
            refuse_if_used(loaded)
        await self.registry.delete(name)

    async def delete_partitioned(self, topic: str, *, force: bool = False) -> None:
        """Delete all partitions, then their parent. Raises as `delete_topic`."""
        await self.partitioned.delete(TopicName.parse(topic), force=force)

    async def properties(self, topic: str) -> dict[str, str]:
        """What its creator, or somebody since, wrote down of it; of a partition its parent's. Raises `NotFound`."""
        holder = await self._holder(topic)
        record = await self.registry.records.find(holder)
        if record is None:
            raise NotFound(f"there is no topic {holder}")
        return record.properties

    async def change_properties(self, topic: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Replace them by `change` of them. Raises `NotFound`, `NotOwner`."""
        holder = await self._holder(topic)

        def changed(record: TopicRecord) -> TopicRecord:
            return replace(record, properties=change(record.properties))

        if await self.registry.catalogue.partitions(holder):
            await self.registry.records.change(holder, changed)
        else:
            await (await self._topic(str(holder))).segment_list.update(changed)

    async def _holder(self, topic: str) -> TopicName:
        """The topic whose record says what is written down of this one."""
        name = TopicName.parse(topic)
        await self.partitions(topic)
        if name.parent is not None:
            parent = await self.registry.records.find(name.parent)
            if parent is not None and name.partition < parent.extent:
                return name.parent
        return name

    async def take_bundle(self, bundle: str, topics: Sequence[str]) -> None:
        """Own a bundle that is nobody's and load these topics of it. Raises `NotOwner`, `Unavailable`."""
        await self.ownership.take(bundle)
        await self.registry.warm(map(TopicName.parse, topics))

    async def unload_namespace(self, tenant: str, namespace: str) -> None:
        """Have each of its bundles closed by its owner; the least loaded broker has it next. Raises `NotFound`."""
        edges = (await self.namespaces.get(tenant, namespace)).boundaries
        for low, high in pairwise(edges):
            await self.unload_bundle(f"{tenant}/{namespace}/{low}_{high}")

    async def unload_bundle(self, bundle: str) -> None:
        """One that is nobody's stays so."""
        try:
            await self.ownership.release(bundle, "an operator asked for it")
        except NotOwner as error:
            await self.peers.ask("PUT", error, f"/quire/v1/brokers/bundles/{quote(bundle)}/unload")
        except NotFound:
            pass

    async def unload_topic(self, topic: str) -> None:
        """Close it, or all its partitions; its clients look it up again. Raises `NotOwner`, `NotFound`."""

        async def here(one: str) -> None:
            name = TopicName.parse(one)
            if self.registry.find(name) is None:
                await self.registry.require(name)
            await self.registry.unload(name)

        await self._of_each(topic, TopicRequest(here, "PUT", "/unload"))

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
        """Replace what the topic prescribes; see `_hold`. Raises `NotFound`, `Unavailable`."""
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
        """No more messages, for good. Returns the last position."""
        await self._refuse_parent(topic, "an end")
        return await (await self._topic(topic)).terminate()

    async def terminate_partitions(self, topic: str) -> dict[int, Position]:
        """The same for every partition; returns the last position of each."""

        def read(said: dict[str, int]) -> Position:
            return Position(said["ledgerId"], said["entryId"])

        name = TopicName.parse(topic)
        record = await self.partitioned.record(name)
        names = [name.of_partition(index) for index in range(record.partitions)]
        request = TopicRequest(self.terminate_topic, "POST", "/terminate", read=read)
        last = await self.fan_out.each(names, request)
        return {one.partition: position for one, position in last.found.items()}

    async def compact_topic(self, topic: str) -> None:
        """Begin to compact it, or all of its partitions. Raises `AlreadyExists` while that is under way."""

        async def here(one: str) -> None:
            (await self._topic(one)).compaction.start()

        await self._of_each(topic, TopicRequest(here, "PUT", "/compaction"), (AlreadyExists,))

    async def compaction_status(self, topic: str) -> dict[str, Any]:
        """As Pulsar's: `status` and `lastError`; of a partitioned topic RUNNING before ERROR before SUCCESS."""

        async def here(one: str) -> dict[str, Any]:
            compaction = (await self._topic(one)).compaction
            return {"status": str(compaction.status), "lastError": compaction.error}

        found = await self._of_each(topic, TopicRequest(here, "GET", "/compaction"))
        for status in ("RUNNING", "ERROR", "SUCCESS"):
            for one in found:
                if one["status"] == status:
                    return one
        return found[0] if found else {"status": "NOT_RUN", "lastError": ""}

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

        async def here(one: str) -> dict[str, Any]:
            loaded = await self.registry.open(TopicName.parse(one))
            return await statistics.of_topic(loaded, self.services)

        if not await self.partitions(topic):
            return await here(topic)
        record, found = await self._of_partitions(topic, TopicRequest(here, "GET", "/stats"))
        return statistics.of_partitions(found, record)

    async def internal_stats(self, topic: str) -> dict[str, Any]:
        """As Pulsar's `internalStats`; each of `ledgers` has a `state` and an `archive`."""
        return await statistics.internal(await self._topic(topic), self.services)

    async def partitioned_internal_stats(self, topic: str) -> dict[str, Any]:
        """As Pulsar's `partitioned-internalStats`: those of each partition that was used. Raises `NotFound`."""
        record, found = await self._of_partitions(
            topic, TopicRequest(self.internal_stats, "GET", "/internalStats")
        )
        return {"metadata": statistics.metadata_of(record), "partitions": found}

    async def _of_partitions(
        self, topic: str, request: TopicRequest[dict[str, Any]]
    ) -> tuple[TopicRecord, dict[str, dict[str, Any]]]:
        """A topic's record, and what each of its used partitions answers, by its full name."""
        name = TopicName.parse(topic)
        record = await self.partitioned.record(name)
        answers = await self.fan_out.each(await self.fan_out.used(name, record), request, (NotFound,))
        return record, {str(one): said for one, said in answers.found.items()}

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
