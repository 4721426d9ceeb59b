"""What each tenant has of a broker's byte budget: bytes that its producers sent and that are not answered yet.

While topics of others are loaded here, too, a tenant may have one part in `TENANT_SHARE_OF_BYTES_IN_FLIGHT`; then its
producers wait, as those of a topic do that has its own part (`publish`). So no tenant alone stops all the others, with
however many topics. A tenant that is alone has the whole budget.

A share lasts as long as topics of its tenant are loaded, for their publishers are what keeps it.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from quire.runtime.budget import ByteBudget
from quire.runtime.limits import TENANT_SHARE_OF_BYTES_IN_FLIGHT, TOPIC_SHARE_OF_BYTES_IN_FLIGHT
from quire.serving.model.ports import Done


class TenantShare:
    """Publishers count in `held_bytes` themselves, and in `budget`, whenever they take a run."""

    __slots__ = ("__weakref__", "_all", "_drained", "budget", "bytes_max", "held_bytes", "topic_bytes_max")

    def __init__(self, budget: ByteBudget, all: TenantShares) -> None:
        self._all = all
        self._drained: list[Done] = []
        self.budget: Final = budget
        self.bytes_max: Final = budget.limit_bytes // TENANT_SHARE_OF_BYTES_IN_FLIGHT
        self.topic_bytes_max: Final = budget.limit_bytes // TOPIC_SHARE_OF_BYTES_IN_FLIGHT
        """What one topic may have."""
        self.held_bytes = 0

    @property
    def is_full(self) -> bool:
        """The tenant has its part, and there are others."""
        return self.held_bytes >= self.bytes_max and len(self._all) > 1

    def when_drained(self, done: Done) -> None:
        """Call `done` once when half of its part is answered, or was dropped."""
        self._all.waits += 1
        self._drained.append(done)

    def give_back(self, byte_count: int) -> None:
        self.held_bytes -= byte_count
        assert self.held_bytes >= 0
        budget = self.budget  # as its `give_back` does it, without a call for each block
        budget.held_bytes -= byte_count
        if budget.waiting:
            budget.look_again()
        if self._drained and 2 * self.held_bytes <= self.bytes_max:
            drained, self._drained = self._drained, []
            for done in drained:
                done()


class TenantShares:
    """Of all tenants that have loaded topics on this broker."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._by_tenant: WeakValueDictionary[str, TenantShare] = WeakValueDictionary()
        self.waits = 0
        """How often a producer had to wait because its tenant has its part."""

    def __len__(self) -> int:
        return len(self._by_tenant)

    def of(self, tenant: str) -> TenantShare:
        found = self._by_tenant.get(tenant)
        if found is None:
            found = self._by_tenant[tenant] = TenantShare(self._budget, self)
        return found
