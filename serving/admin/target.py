"""What the REST interface asks of the broker. `serving.broker.Broker` implements it.

Topics are named in full (`persistent://tenant/namespace/name`). Methods raise `NotFound`, `AlreadyExists`,
`ConfigurationError` (a request that cannot be), `Unavailable` and other `QuireError`s; `app` maps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from quire.ledger.bookies import Bookies
from quire.ledger.losses import Losses
from quire.metadata.records import Policies
from quire.runtime.threads import DaemonThreads
from quire.serving.cluster.port import Owner, Ownership
from quire.serving.model.ports import Position
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.schema.registry import Schemas
from quire.serving.settings import BrokerSettings
from quire.wire.block import Buffer


class AdminTarget(Protocol):
    """One broker, as its REST interface sees it."""

    settings: BrokerSettings
    namespaces: Namespaces
    bookies: Bookies
    losses: Losses
    ownership: Ownership
    helpers: DaemonThreads
    """For what takes long because of what clients sent."""

    @property
    def cluster(self) -> str: ...

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` for clients."""
        ...

    @property
    def http_url(self) -> str: ...

    def why_not_ready(self) -> Sequence[str]:
        """Reasons why this broker should get no traffic now; empty when it should."""
        ...

    def warnings(self) -> Sequence[str]:
        """What a person should look at though the broker serves."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Counters and gauges by their full name (`quire_serving_entries_in_total`)."""
        ...

    async def look_up(self, topic: str, *, take: bool) -> Owner:
        """The broker that serves the topic or, with `owns` False, should be asked for it."""
        ...

    async def take_bundle(self, bundle: str, topics: Sequence[str]) -> None:
        """Own a bundle that is nobody's and load these topics of it. Raises `NotOwner`, `Unavailable`."""
        ...

    # -- topics
    async def list_topics(
        self, tenant: str, namespace: str, domain: str = "persistent", *, here: bool = False
    ) -> list[str]:
        """Full names, partitions listed one by one, parents of partitions not.

        Of topics that keep nothing, those that are in use: on any broker or, with `here`, on this one.
        """
        ...

    async def list_partitioned(
        self, tenant: str, namespace: str, domain: str = "persistent"
    ) -> list[str]: ...

    async def create_topic(self, topic: str, properties: Mapping[str, str] | None = None) -> None: ...

    async def create_partitioned(
        self, topic: str, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None: ...

    async def update_partitions(self, topic: str, partitions: int) -> None: ...

    async def partitions(self, topic: str) -> int:
        """0 for a topic without partitions. Raises `NotFound` when there is neither."""
        ...

    async def client_partitions(self, topic: str, *, create: bool) -> int:
        """The same as a client asks it: with `create` also 0 for a topic that its use would create."""
        ...

    async def delete_topic(
        self, topic: str, *, force: bool = False, parent_generation: int | None = None
    ) -> None:
        """`parent_generation`: it goes with its parent, unless it is another one's partition."""
        ...

    async def delete_partitioned(self, topic: str, *, force: bool = False) -> None: ...

    async def properties(self, topic: str) -> dict[str, str]:
        """What somebody wrote down of the topic; of a partition its parent's."""
        ...

    async def change_properties(
        self, topic: str, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None: ...

    async def create_missed_partitions(self, topic: str) -> None: ...

    async def unload_namespace(self, tenant: str, namespace: str) -> None: ...

    async def unload_bundle(self, bundle: str) -> None: ...

    async def unload_topic(self, topic: str) -> None: ...

    async def topic_policies(self, topic: str) -> Policies:
        """What the topic itself prescribes (of a partition: its parent)."""
        ...

    async def applied_policies(self, topic: str) -> TopicPolicies:
        """What holds for the topic."""
        ...

    @property
    def schemas(self) -> Schemas: ...

    async def policies_of(self, name: TopicName) -> TopicPolicies:
        """What holds for a topic, or would if it were there. Raises `NotFound` for an unknown namespace."""
        ...

    async def change_topic_policies(self, topic: str, change: Callable[[Policies], Policies]) -> None:
        """Replace what the topic prescribes. Raises `NotFound`."""
        ...

    async def change_namespace_policies(
        self, tenant: str, namespace: str, change: Callable[[Policies], Policies]
    ) -> None:
        """Replace what the namespace prescribes. Raises `NotFound`."""
        ...

    async def refresh_policies(self, tenant: str, namespace: str, topic: str | None) -> None:
        """What another broker has written holds here when this returns."""
        ...

    async def terminate_topic(self, topic: str) -> Position: ...

    async def terminate_partitions(self, topic: str) -> dict[int, Position]:
        """The last position of each partition, by its number."""
        ...

    async def compact_topic(self, topic: str) -> None:
        """Begin to compact it. Raises `AlreadyExists` while that is under way."""
        ...

    async def compaction_status(self, topic: str) -> dict[str, Any]:
        """As Pulsar's: `status` and `lastError`."""
        ...

    async def position_of_index(self, topic: str, index: int) -> Position:
        """The entry that holds the message with this topic-wide index."""
        ...

    async def position_at_time(self, topic: str, time_ms: int) -> Position:
        """The first entry that was published at `time_ms` or later."""
        ...

    async def last_position(self, topic: str) -> Position: ...

    async def stats(self, topic: str) -> dict[str, Any]:
        """As Pulsar's `stats`."""
        ...

    async def internal_stats(self, topic: str) -> dict[str, Any]:
        """As Pulsar's `internalStats`; each of `ledgers` has a `state` and an `archive`."""
        ...

    async def partitioned_internal_stats(self, topic: str) -> dict[str, Any]:
        """As Pulsar's `partitioned-internalStats`."""
        ...

    async def explain(self, topic: str) -> dict[str, Any]:
        """Why each segment is still here, and when it will go."""
        ...

    # -- subscriptions
    async def subscriptions(self, topic: str) -> list[str]: ...

    async def create_subscription(
        self, topic: str, name: str, start: Position, properties: Mapping[str, str]
    ) -> None: ...

    async def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None: ...

    async def peek(self, topic: str, name: str, number: int) -> tuple[Position, bytes]:
        """The `number`th entry (from 1) that the subscription has to acknowledge. Raises `NotFound`."""
        ...

    async def message(self, topic: str, position: Position) -> bytes:
        """The entry at a position. Raises `NotFound`."""
        ...

    async def expire_up_to(self, topic: str, name: str, position: Position) -> None:
        """Acknowledge everything up to and with an entry."""
        ...

    async def reset_cursor(self, topic: str, name: str, to: Position | int) -> None:
        """To a position (inclusive) or to a publish time in ms."""
        ...

    async def skip_messages(self, topic: str, name: str, count: int | None) -> None:
        """`None`: all of the backlog."""
        ...

    async def expire_messages(self, topic: str, name: str | None, older_than_ms: int) -> None:
        """`None`: of all subscriptions."""
        ...

    async def clear_backlog(self, tenant: str, namespace: str, name: str | None) -> None:
        """Of one subscription of each topic that has it, or (`None`) of all."""
        ...

    async def delete_subscriptions(self, tenant: str, namespace: str, name: str) -> None:
        """That subscription of each topic that has it."""
        ...

    # -- bytes, for Spark
    async def segments(self, topic: str) -> dict[str, Any]:
        """The JSON of `GET /quire/v1/topics/…/segments`; see `quire.spark_source.plan`."""
        ...

    async def blocks(self, topic: str, position: Position, bytes_max: int) -> Iterable[Buffer]:
        """Whole confirmed blocks from the one that contains `position`. Raises `NotFound` when it was trimmed."""
        ...

    # -- the archive
    async def archive_run(self, *, seal: bool, here: bool) -> dict[str, Any]:
        """In the whole cluster; with `here`, what this broker owns."""
        ...

    async def archive_status(self, *, here: bool) -> dict[str, Any]:
        """As `archive_run`; without `here` with the number of segments in each state."""
        ...

    async def archive_verify(self, *, delete_orphans: bool) -> dict[str, Any]: ...

    async def archive_repair(self, *, here: bool) -> dict[str, Any]:
        """Upload again what is damaged in the archive and still on bookies; `here` as in `archive_run`."""
        ...
