"""Policies as operators change them: of a topic or of a namespace, and then applied by every broker.

A change returns when it holds on every broker that answers, so for clients that connect then. A broker that does not
answer follows by its watch, as soon as it can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire.metadata.records import IcebergPolicy, Policies
from quire.serving.cluster.fan_out import FanOut
from quire.serving.cluster.policy_updates import PolicyUpdates
from quire.serving.cluster.registry import Registry
from quire.serving.names import TopicName
from quire.serving.policy.resolved import TopicPolicies
from quire.wire import topic_name

APPLY_S: Final = 5.0
"""How long a change of a policy waits for other brokers to apply it."""

_log = logging.getLogger(__name__)


class PolicyAdmin:
    def __init__(self, registry: Registry, updates: PolicyUpdates, fan_out: FanOut) -> None:
        self._registry = registry
        self._updates = updates
        self._fan_out = fan_out

    async def of_topic(self, name: TopicName) -> Policies:
        """What the topic itself prescribes (of a partition: its parent). Raises `NotFound`."""
        await self._fan_out.partitions(name)
        return await self._registry.policies.own(name)

    async def applied(self, name: TopicName) -> TopicPolicies:
        """What holds for the topic: its own policies over its namespace's over the broker's defaults."""
        await self._fan_out.partitions(name)
        return await self._registry.policies.of(name)

    async def applied_in(self, tenant: str, namespace: str) -> TopicPolicies:
        """What holds for a topic of the namespace that has no policies of its own. Raises `NotFound`."""
        return await self._registry.policies.of_namespace(tenant, namespace)

    async def with_iceberg(self) -> dict[TopicName, IcebergPolicy]:
        """All topics of the cluster for which an Iceberg table is kept, none of its partitions apart."""
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
        """Replace what the topic prescribes. Raises `NotFound`, `Unavailable`."""
        await self._fan_out.partitions(name)
        await self._registry.policies.change(name, change)
        await self._applied_everywhere(name.tenant, name.namespace, f"?topic={topic_name.escaped(str(name))}")

    async def change_namespace(
        self, tenant: str, namespace: str, change: Callable[[Policies], Policies]
    ) -> None:
        """Replace what the namespace prescribes. Raises as `change_topic`."""
        await self._registry.catalogue.namespaces.change(tenant, namespace, change)
        await self._applied_everywhere(tenant, namespace)

    async def _applied_everywhere(self, tenant: str, namespace: str, which: str = "") -> None:
        """Return when every broker that answers has applied what was written."""
        self._look_again(tenant, namespace)
        path = f"/quire/v1/policies/{topic_name.escaped(tenant, namespace)}"
        others = self._fan_out.others("PUT", path + which, timeout_s=APPLY_S)
        answers, _ = await asyncio.gather(others, self._updates.apply(tenant, namespace))
        for why in answers.silent:
            _log.warning("the policies of %s/%s may hold later there: %s", tenant, namespace, why)

    async def refresh(self, tenant: str, namespace: str, name: TopicName | None) -> None:
        """What another broker has written holds here when this returns. Raises `NotFound`, `Unavailable`."""
        await self._registry.policies.refresh(tenant, namespace, name)
        self._look_again(tenant, namespace)
        await self._updates.apply(tenant, namespace)

    def _look_again(self, tenant: str, namespace: str) -> None:
        """Permissions are policies: whoever is here already may have lost his."""
        if self._registry.guard is not None:
            self._registry.guard.look_again(tenant, namespace)
