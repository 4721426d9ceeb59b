"""What every topic of a broker shares: stores, clock, cache, budget. One object, so that a topic takes one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from quire.ledger.ledgers import Ledgers
from quire.metadata.store import MetadataStore
from quire.runtime.budget import ByteBudget
from quire.runtime.clock import Clock
from quire.runtime.tasks import Tasks
from quire.runtime.threads import DaemonThreads
from quire.serving.policy.rate_limiter import BrokerLimiters
from quire.serving.settings import BrokerSettings
from quire.serving.topic.publish import Turn
from quire.serving.topic.tail_cache import TailCache
from quire.tiering.archive import Archive

HELPERS: Final = 2
"""Threads for what clients can make long. More would only take the interpreter from the event loop more often."""


@dataclass(slots=True)
class Services:
    """`archive` is None where none is configured."""

    store: MetadataStore
    ledgers: Ledgers
    archive: Archive | None
    clock: Clock
    settings: BrokerSettings
    turn: Turn
    budget: ByteBudget
    tail_cache: TailCache
    tasks: Tasks
    limiters: BrokerLimiters
    shed_at: float = 0.0
    """When the last of the topics that were dropped comes apart, by the loop's time."""
    helpers: DaemonThreads = field(default_factory=lambda: DaemonThreads(HELPERS, "quire-helper"))
    """They do all that decodes what clients sent, or may take long."""
