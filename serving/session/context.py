"""Objects that all sessions of a broker share: budgets, limits, the clock, and access to topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from quire.runtime.budget import ByteBudget, OwnerBudget
from quire.runtime.clock import Clock
from quire.runtime.limits import MIB
from quire.runtime.slices import Share, Slices
from quire.runtime.tasks import Tasks
from quire.security.configuration import Limits
from quire.serving.operations.client_topics import ClientTopics
from quire.serving.policy.guard import Guard
from quire.serving.session.frame_room import FrameRoom
from quire.serving.settings import BrokerSettings
from quire.serving.topic.services import Services

READ_WEIGHT_MAX = 4 * MIB
"""Maximum bytes that all connections together read in one event loop iteration.

They take a few milliseconds, or thirty if each entry is for a different topic. Without this limit, the loop would read
every readable socket until it is empty.
"""


@dataclass(slots=True)
class SendCount:
    """Numbers of SENDs parsed by the fast path and by the general path of `quire.wire.frame`."""

    fast: int = 0
    slow: int = 0


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Objects that all sessions of a broker share. `guard` is None without authentication."""

    settings: BrokerSettings
    clock: Clock
    tasks: Tasks
    limits: Limits
    limits_met: Counter[str]
    """Number of requests rejected because of each limit, by the limit's name (`errors.TooMany`)."""
    topics: ClientTopics
    guard: Guard | None
    budget: ByteBudget
    held: ByteBudget
    """Budget for commands and SENDs that wait in lanes."""
    kept: OwnerBudget
    """Budget for properties and topic lists that sessions keep."""
    slices: Slices
    at_end_of_turn: Callable[[Callable[[], None]], object]
    frame_room: FrameRoom = field(default_factory=FrameRoom)
    read_share: Share = field(default_factory=lambda: Share(READ_WEIGHT_MAX))
    """Bytes, weighted, that may still be read from sockets in this event loop iteration."""
    sends_of_closed: SendCount = field(default_factory=SendCount)
    """Numbers of SENDs received on connections that have been closed."""

    @classmethod
    def of(cls, services: Services, topics: ClientTopics, guard: Guard | None) -> SessionContext:
        return cls(
            settings=services.settings,
            clock=services.clock,
            tasks=services.tasks,
            limits=services.limits,
            limits_met=services.limits_met,
            topics=topics,
            guard=guard,
            budget=services.budget,
            held=services.held,
            kept=services.kept,
            slices=services.slices,
            at_end_of_turn=services.ledgers.at_end_of_turn,
        )
