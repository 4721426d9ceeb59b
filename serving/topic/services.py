"""What all parts of a broker share: stores, clock, cache, budget. One object, so that a topic takes one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from quire.ledger.ledgers import Ledgers
from quire.metadata.store import MetadataStore
from quire.runtime.budget import ByteBudget
from quire.runtime.clock import Clock
from quire.runtime.limits import HELD_SHARE_OF_BYTES_IN_FLIGHT
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
"""Threads for what clients can make long. More would only take the interpreter from the event loop more often."""


@dataclass(slots=True)
class Services:
    """`archive` is None where none is configured; `to_brokers`, where other brokers are called without TLS."""

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
    """For what waits in sessions until its topic takes it."""
    tail_cache: TailCache = field(init=False)
    limiters: BrokerLimiters = field(init=False)
    tasks: Tasks = field(default_factory=lambda: Tasks("broker"))
    slices: Slices = field(default_factory=Slices)
    """The turns of the event loop for long work."""
    helpers: DaemonThreads = field(default_factory=lambda: DaemonThreads(HELPERS, "quire-helper"))
    """They do all that decodes what clients sent, or may take long."""
    tracing: Tracing | None = None
    """None: nobody asks for traces."""
    security: Security | None = None
    """None: everybody may do everything."""
    limits_met: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTED, 0)))
    """How often something was refused because there is too much of it, by limits (`errors.TooMany`)."""

    @property
    def limits(self) -> Limits:
        """What keeps tenants apart."""
        return Limits() if self.security is None else self.security.configuration.limits

    def __post_init__(self) -> None:
        self.turn = Turn(self.clock, self.ledgers.at_end_of_turn)
        self.budget = ByteBudget(self.settings.bytes_in_flight_max)
        self.shares = TenantShares(self.budget)
        self.held = ByteBudget(self.budget.limit_bytes // HELD_SHARE_OF_BYTES_IN_FLIGHT)
        self.tail_cache = TailCache(self.settings.tail_cache_bytes)
        self.limiters = BrokerLimiters.of(self.settings, self.clock)
