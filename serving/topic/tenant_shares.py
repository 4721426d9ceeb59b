"""Tenant shares of a broker's byte budget, which bounds the published bytes that are not answered yet.

While topics of several tenants are loaded, each tenant may hold 1/`TENANT_SHARE_OF_BYTES_IN_FLIGHT` of the budget.
Producers of a tenant that has used up its share wait, as do producers of a topic that has used up the topic's share
(`publish`). So a tenant with many topics cannot block the others. A single tenant may use the whole budget.

A share exists as long as topics of its tenant are loaded: their publishers hold the only references to it.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from quire.runtime.budget import ByteBudget
from quire.runtime.limits import TENANT_SHARE_OF_BYTES_IN_FLIGHT, TOPIC_SHARE_OF_BYTES_IN_FLIGHT
from quire.serving.model.ports import Done

RESUME_SHARE: Final = 0.5
"""Fraction of its byte share that a tenant may still hold when its producers resume."""


class TenantShare(ByteBudget):
    """Byte share of one tenant.

    Its publishers increase `held_bytes`, here and in `budget`, for each run that they queue.
    """

    __slots__ = ("__weakref__", "_all", "budget", "topic_bytes_max")

    def __init__(self, budget: ByteBudget, all: TenantShares) -> None:
        super().__init__(budget.limit_bytes // TENANT_SHARE_OF_BYTES_IN_FLIGHT, RESUME_SHARE)
        self._all = all
        self.budget: Final = budget
        self.topic_bytes_max: Final = budget.limit_bytes // TOPIC_SHARE_OF_BYTES_IN_FLIGHT
        """Maximum number of bytes that one topic may hold."""

    @property
    def is_full(self) -> bool:
        """True while the tenant has used up its share and other tenants have loaded topics."""
        return self.is_spent and len(self._all) > 1

    def when_free(self, callback: Done) -> None:
        """Call `callback` once, when at most half of the share is held."""
        self._all.waits += 1
        super().when_free(callback)

    def give_back(self, byte_count: int) -> None:
        self.held_bytes -= byte_count
        assert self.held_bytes >= 0
        budget = self.budget  # `ByteBudget.give_back`, inlined for both budgets to save calls
        budget.held_bytes -= byte_count
        if budget.has_waiters:
            budget.look_again()
        if self.has_waiters:
            self.look_again()


class TenantShares:
    """Shares of all tenants that have loaded topics on this broker."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._by_tenant: WeakValueDictionary[str, TenantShare] = WeakValueDictionary()
        self.waits = 0
        """Number of times that a producer had to wait because its tenant had used up its share."""

    def __len__(self) -> int:
        return len(self._by_tenant)

    def of(self, tenant: str) -> TenantShare:
        found = self._by_tenant.get(tenant)
        if found is None:
            found = self._by_tenant[tenant] = TenantShare(self._budget, self)
        return found
