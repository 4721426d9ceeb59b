"""Services that all topics of a broker share: stores, clock, cache, budgets."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from quire.ledger.ledgers import Ledgers
from quire.metadata.store import MetadataStore
from quire.runtime.budget import ByteBudget, OwnerBudget
from quire.runtime.clock import Clock
from quire.runtime.limits import HELD_SHARE_OF_BYTES_IN_FLIGHT, KEPT_BYTES_MAX
from quire.runtime.slices import Slices
from quire.runtime.tasks import Tasks
from quire.runtime.threads import DaemonThreads
from quire.security.configuration import COUNTED, Limits
from quire.security.security import Security
from quire.security.tls import FollowedContext
from quire.serving.model.tracing import Tracing
from quire.serving.policy.rate_limiter import BrokerLimiters
from quire.serving.settings import BrokerSettings
from quire.serving.topic.tail_cache import TailCache
from quire.serving.topic.tenant_shares import TenantShares
from quire.serving.topic.turn import Turn
from quire.tiering.archive import Archive

HELPERS: Final = 2
"""Number of threads for work whose duration clients determine. More would compete with the event loop for the GIL."""

TIME_SEARCHES_MAX: Final = 4
"""Maximum number of concurrent searches by publish time, each of which holds a chunk in memory; further ones wait."""


@dataclass(slots=True)
class Services:
    """Shared services of one broker.

    `archive` is None without tiered storage, `to_brokers` without TLS between brokers.
    """

    settings: BrokerSettings
    store: MetadataStore
    ledgers: Ledgers
    archive: Archive | None
    clock: Clock
    to_brokers: FollowedContext | None = None
    turn: Turn = field(init=False)
    budget: ByteBudget = field(init=False)
    shares: TenantShares = field(init=False)
    held: ByteBudget = field(init=False)
    """Budget for messages that wait in sessions until their topics accept them."""
    kept: OwnerBudget = field(default_factory=lambda: OwnerBudget(KEPT_BYTES_MAX))
    """Budget for properties and topic lists that sessions keep."""
    tail_cache: TailCache = field(init=False)
    limiters: BrokerLimiters = field(init=False)
    tasks: Tasks = field(default_factory=lambda: Tasks("broker"))
    slices: Slices = field(default_factory=Slices)
    """Time slices of the event loop for long-running work."""
    time_searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TIME_SEARCHES_MAX))
    helpers: DaemonThreads = field(default_factory=lambda: DaemonThreads(HELPERS, "quire-helper"))
    """Threads that decode clients' payloads and perform other long-running work."""
    tracing: Tracing | None = None
    """Tracing of messages; None if it is disabled."""
    security: Security | None = None
    """Security of the cluster; None if it is disabled: then every client may perform every action."""
    limits_met: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTED, 0)))
    """Number of requests rejected because a limit was reached (`errors.TooMany`), by limit."""

    @property
    def limits(self) -> Limits:
        """Limits that isolate tenants from each other; the defaults if security is disabled."""
        return Limits() if self.security is None else self.security.configuration.limits

    def __post_init__(self) -> None:
        self.turn = Turn(self.clock, self.ledgers.at_end_of_turn)
        self.budget = ByteBudget(self.settings.bytes_in_flight_max)
        self.shares = TenantShares(self.budget)
        self.held = ByteBudget(self.budget.limit_bytes // HELD_SHARE_OF_BYTES_IN_FLIGHT)
        self.tail_cache = TailCache(self.settings.tail_cache_bytes)
        self.limiters = BrokerLimiters.of(self.settings, self.clock)
