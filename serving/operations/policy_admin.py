"""Changes of a topic's or namespace's policies, which every broker applies to its loaded topics.

A change returns after every broker that answers has applied it, so it holds for clients that connect afterwards. A
broker that does not answer applies it when its metadata watch fires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire.metadata.records import IcebergPolicy, Policies
from quire.runtime.errors import CorruptionError, NotFound, QuireError
from quire.runtime.tasks import Tasks
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import FanOut
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.registry.registry import Registry
from quire.serving.topic.topic import must_be_loaded_anew
from quire.wire import topic_name

APPLY_S: Final = 5.0
"""Time limit, in seconds, for other brokers to apply a changed policy, and for this one to apply a changed default."""

NAMESPACES_AT_ONCE: Final = 8
RETRY_S: Final = 1.0
TOPICS_A_TURN: Final = 500
"""Number of topics to which changed policies are applied in one event loop iteration."""

_log = logging.getLogger(__name__)


class PolicyAdmin:
    def __init__(self, registry: Registry, updates: PolicyUpdates, fan_out: FanOut) -> None:
        self._registry = registry
        self._updates = updates
        self._fan_out = fan_out

    async def own(self, name: TopicName) -> Policies:
        """Return the topic's own policies; for a partition, its parent's. Raises `NotFound`."""
        await self._fan_out.partitions(name)
        return await self._registry.policies.own(name)

    async def effective(self, name: TopicName) -> TopicPolicies:
        """Return the topic's effective policies: its own, then its namespace's, then the broker's defaults."""
        await self._fan_out.partitions(name)
        return await self._registry.policies.of(name)

    async def topics_with_iceberg(self) -> dict[TopicName, IcebergPolicy]:
        """Map each topic of the cluster that has an Iceberg table to its Iceberg policy.

        A partitioned topic is one item.
        """
        namespaces, found = self._registry.catalogue.namespaces, dict[TopicName, IcebergPolicy]()
        for tenant in await namespaces.tenants():
            for namespace in await namespaces.list(tenant):
                names = await self._registry.records.names(tenant, namespace.partition("/")[2])
                for name in {name for name in names if name.parent not in names}:
                    policy = (await self._registry.policies.of(name)).iceberg
                    if policy.catalog:
                        found[name] = policy
        return found

    async def change_topic(self, name: TopicName, change: Callable[[Policies], Policies]) -> None:
        """Change the topic's own policies. Raises `NotFound`, `Unavailable`."""
        await self._fan_out.partitions(name)
        await self._registry.policies.change(name, change)
        await self._apply_everywhere(name.tenant, name.namespace, f"?topic={topic_name.escaped(str(name))}")

    async def change_namespace(
        self, tenant: str, namespace: str, change: Callable[[Policies], Policies]
    ) -> None:
        """Change the namespace's policies. Raises `NotFound`, `VersionConflict`, `Unavailable`."""
        await self._registry.catalogue.namespaces.change(tenant, namespace, change)
        await self._apply_everywhere(tenant, namespace)

    async def _apply_everywhere(self, tenant: str, namespace: str, which: str = "") -> None:
        """Wait until every broker that answers has applied the written policies."""
        self._recheck_permissions(tenant, namespace)
        path = f"/quire/v1/policies/{topic_name.escaped(tenant, namespace)}"
        others = self._fan_out.ask_brokers("PUT", path + which, timeout_s=APPLY_S)
        answers, _ = await asyncio.gather(others, self._updates.apply(tenant, namespace))
        for why in answers.silent:
            _log.warning(
                "a broker will apply changed policies later: namespace=%s/%s error=%s", tenant, namespace, why
            )

    async def refresh(self, tenant: str, namespace: str, name: TopicName | None) -> None:
        """Read policies that another broker wrote, and apply them on this one. Raises `NotFound`, `Unavailable`."""
        await self._registry.policies.refresh(tenant, namespace, name)
        self._recheck_permissions(tenant, namespace)
        await self._updates.apply(tenant, namespace)

    def _recheck_permissions(self, tenant: str, namespace: str) -> None:
        """Check the permissions of connected clients again, because permissions are policies."""
        if self._registry.guard is not None:
            self._registry.guard.look_again(tenant, namespace)


class PolicyUpdates:
    def __init__(self, registry: Registry, tasks: Tasks) -> None:
        self._registry = registry
        self._tasks = tasks
        self._slots = asyncio.Semaphore(NAMESPACES_AT_ONCE)
        registry.policies.on_change(self._on_change)

    def _on_change(self, tenant: str, namespace: str) -> None:
        if self._registry.in_namespace(tenant, namespace):
            self._start_following(tenant, namespace)

    def _start_following(self, tenant: str, namespace: str) -> asyncio.Task[None]:
        return self._tasks.start(self._follow(tenant, namespace), f"policies of {tenant}/{namespace}")

    async def _follow(self, tenant: str, namespace: str) -> None:
        """Apply policies as `apply` does, with retries until the metadata store answers."""
        while True:
            try:
                async with self._slots:
                    await self.apply(tenant, namespace)
                return
            except QuireError as error:
                _log.warning(
                    "cannot apply policies, retrying: namespace=%s/%s error=%s", tenant, namespace, error
                )
                await asyncio.sleep(RETRY_S)

    async def apply_to_all(self) -> None:
        """Apply the current policies to all loaded topics in the background; return after `APPLY_S` at the latest.

        Each namespace has its own retries until the metadata store answers. Reloads of many topics take long.
        """
        loaded = {(one.topic_name.tenant, one.topic_name.namespace) for one in self._registry.all()}
        following = [self._start_following(*one) for one in loaded]
        if following:
            await asyncio.wait(following, timeout=APPLY_S)

    async def apply(self, tenant: str, namespace: str) -> None:
        """Apply the current policies to every topic of the namespace that is loaded or being loaded.

        Raises `Unavailable` if the policies cannot be read.
        """
        for count, name in enumerate(self._registry.in_namespace(tenant, namespace), 1):
            await self._apply_to(name)
            if count % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)

    async def _apply_to(self, name: TopicName) -> None:
        """Apply a topic's current policies, if it is loaded."""
        try:
            policies = await self._registry.policies.of(name)
        except NotFound:
            return  # The topic's namespace was deleted.
        except CorruptionError as error:
            _log.error(
                "cannot read a topic's policies, keeping the current ones: topic=%s error=%s", name, error
            )
            return
        topic = self._registry.find(name)
        if topic is not None:
            topic.apply(policies)
            if must_be_loaded_anew(topic, policies):
                await self._registry.unload(name)
