"""What topics, subscriptions and sessions know of each other, and nothing more.

A *session* is one client connection. A *topic* is one loaded partition: it takes entries, answers blocks. A
*subscription* reads its topic, keeps a cursor and dispatches messages to *consumers*, each of which belongs to a
session. `topic/` and `subscription/` know each other by this file alone, and neither knows `session/`; `cluster/` joins
topics and subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import NamedTuple, Protocol

from pyroaring import BitMap

from quire.runtime.errors import QuireError, TooMany, Unavailable
from quire.serving.model.tracing import Tracing
from quire.serving.policy.rate_limiter import DispatchLimits
from quire.serving.policy.resolved import TopicPolicies
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import BlockHeader, Buffer


class ConsumerBusy(QuireError):
    """Another consumer has what this one asked for alone."""

    server_error = pb.ConsumerBusy


class TooManyConsumers(TooMany):
    server_error = pb.ConsumerBusy


class TooManySubscriptions(TooMany):
    server_error = pb.NotAllowedError


class NotAllowed(QuireError):
    """The request can never be granted in this way."""

    server_error = pb.NotAllowedError


def was_unloaded(topic: str) -> Unavailable:
    """What those hear who still have something of a topic that another incarnation, or another broker, serves."""
    return Unavailable(f"topic {topic} was unloaded; look it up again")


class Position(NamedTuple):
    """An entry of a topic. Positions of one topic compare in the topic's order (ledger ids only grow)."""

    ledger_id: int
    entry_id: int


EARLIEST = Position(-1, -1)
LATEST = Position(2**63 - 1, 2**63 - 1)


Done = Callable[[], None]


class SegmentView(NamedTuple):
    """One segment as subscriptions count it. `last_entry` is the last *confirmed* one, -1 when empty."""

    ledger_id: int
    last_entry: int
    first_index: int
    messages: int
    bytes: int
    first_clock_ms: int = 0
    last_clock_ms: int = 0
    """When the broker took its first and its last block; 0: that is not told."""


class TopicPort(Protocol):
    """A loaded topic, as its subscriptions see it."""

    name: str

    @property
    def tracing(self) -> Tracing | None:
        """Who is told of entries that were dispatched, if anybody."""
        ...

    @property
    def policies(self) -> TopicPolicies:
        """What holds for it now."""
        ...

    @property
    def dispatch_limits(self) -> DispatchLimits | None:
        """What brakes its subscriptions; None: nothing."""
        ...

    @property
    def is_terminated(self) -> bool:
        """It takes no more messages, for good."""
        ...

    @property
    def last_confirmed(self) -> Position:
        """The last entry that may be dispatched; `(ledger, -1)` when the last ledger is empty and all are."""
        ...

    @property
    def confirmed_index(self) -> int:
        """Topic-wide index behind the last confirmed message: the number of messages ever confirmed."""
        ...

    def segments(self) -> Sequence[SegmentView]:
        """Oldest first, the active one last."""
        ...

    def first_position(self) -> Position:
        """The oldest entry that is still here (or the next to be written, when there is none)."""
        ...

    def next_position(self, position: Position) -> Position:
        """The position behind `position`, in the next segment if that one ends there. May not be written yet."""
        ...

    def cached(self, position: Position) -> Sequence[Buffer]:
        """Blocks from the tail cache, the first contains `position`; empty when it is not cached (or not written)."""
        ...

    async def read(self, position: Position, bytes_max: int) -> Sequence[Buffer]:
        """Whole confirmed blocks from the one that contains `position`, within one segment.

        Empty when `position` is not confirmed yet. Raises `NotFound` when its segment was trimmed,
        `CorruptionError`, `Unavailable`.
        """
        ...

    async def index_of(self, position: Position) -> int:
        """Topic-wide index of the first message of the entry at `position` (of the next entry, when not written)."""
        ...

    async def find_time(self, time_ms: int) -> Position:
        """Where reading must begin so that no message published at `time_ms` or later is missed."""
        ...

    async def last_message(self) -> tuple[Position, int]:
        """The last entry that a reader will get, and its last message's index in the batch, -1 when it is none.

        (-1, -1) and -1 when there is nothing. Raises `NotFound`, `CorruptionError`, `Unavailable`.
        """
        ...

    async def compacted_view(self) -> CompactedPort | None:
        """The topic for readers of compacted data; None when it was never compacted. Raises `Unavailable`."""
        ...


class CompactedPort(TopicPort, Protocol):
    """A topic as readers of compacted data see it: with gaps, which nobody is to get."""

    def gaps(self) -> Sequence[tuple[int, BitMap]]:
        """(ledger id, entries), in the topic's order."""
        ...

    def left_of(self, ledger_id: int, first: int, stop: int) -> Sequence[tuple[Position, int, int]]:
        """Batches among entries that were read of which not all is left: (position, bits that are, messages)."""
        ...


class ConsumerPort(Protocol):
    """The session's end of one consumer: what a subscription does to it."""

    @property
    def wants_index(self) -> bool:
        """Each entry is to come with its broker entry metadata: the topic-wide index, and when it was taken."""
        ...

    def deliver(self, parts: list[Buffer]) -> None:
        """Write MESSAGE frames, already made, to the connection: once per turn at most is best."""
        ...

    def writable(self) -> bool:
        """False while the connection's write buffer is full; `Consumer.resumed` is called when it drains."""
        ...

    def active_changed(self, is_active: bool) -> None:
        """Failover: this consumer became, or ceased to be, the active one."""
        ...

    def reached_end(self) -> None:
        """The topic was terminated, and the subscription has acknowledged all of it."""
        ...

    def close(self) -> None:
        """Send CLOSE_CONSUMER: the client will look up and subscribe again."""
        ...


class SubscriptionPort(Protocol):
    """A subscription, as its topic sees it."""

    name: str

    @property
    def mark_delete(self) -> Position:
        """Everything up to and with it is acknowledged; trimming may go this far."""
        ...

    @property
    def is_durable(self) -> bool: ...

    @property
    def consumers(self) -> Sequence[object]: ...

    def tell_end(self) -> None:
        """Tell the consumers if the topic takes no more messages and all is acknowledged."""
        ...

    async def skip_up_to(self, position: Position) -> None:
        """Acknowledge all entries up to and with `position`; durable when it returns."""
        ...


class SubscriptionsPort(Protocol):
    """All subscriptions of one topic, as the topic sees them."""

    names: Sized
    """As they are at any moment."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[SubscriptionPort]: ...

    def confirmed(self, blocks: Sequence[tuple[Buffer, BlockHeader]]) -> None:
        """Blocks of the topic were confirmed, all that were in this turn and in order; the tail cache has them."""
        ...

    def close(self) -> None:
        """The topic is unloaded: CLOSE_CONSUMER to every consumer."""
        ...

    def policies_changed(self) -> None:
        """Others hold from now on."""
        ...

    def compacted(self) -> None:
        """There is a new result of compaction: who reads compacted data must come again."""
        ...

    async def delete(self, name: str) -> None:
        """Raises `NotFound`, and `ConsumerBusy` when it has consumers."""
        ...

    async def forget(self) -> None:
        """The topic is deleted: its cursors are, too."""
        ...
