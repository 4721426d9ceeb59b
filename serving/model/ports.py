"""Interfaces between topics, subscriptions and sessions.

A *session* is one client connection. A *topic* is one loaded partition: it stores entries and returns blocks. A
*subscription* reads its topic, keeps a cursor and dispatches messages to *consumers*, each of which belongs to a
session. `topic/` and `subscription/` use each other only through these interfaces, and neither imports `session/`.
`registry/topic_loader` connects topics to subscriptions.
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
    """Rejection of a request that conflicts with other consumers of the subscription."""

    server_error = pb.ConsumerBusy


class TooManyConsumers(TooMany):
    server_error = pb.ConsumerBusy


class TooManySubscriptions(TooMany):
    server_error = pb.NotAllowedError


class NotAllowed(QuireError):
    """Permanent rejection of a request that is not supported or not permitted."""

    server_error = pb.NotAllowedError


class SubscriptionNotFound(QuireError):
    """Rejection of a consumer whose subscription does not exist and must not be created."""

    server_error = pb.SubscriptionNotFound


class EmptyName(QuireError):
    """Rejection of a request without a subscription name, with the same error code as Pulsar's brokers."""

    server_error = pb.ProducerBusy

    def __init__(self) -> None:
        super().__init__("Empty subscription name: specify a name")


def was_unloaded(topic: str) -> Unavailable:
    """Return the error for a request to an unloaded topic, which may be loaded again, here or on another broker."""
    return Unavailable(f"topic {topic} was unloaded; look it up again")


class Position(NamedTuple):
    """Position of an entry. Positions of one topic have the order of its entries, because ledger ids only increase."""

    ledger_id: int
    entry_id: int


EARLIEST = Position(-1, -1)
LATEST = Position(2**63 - 1, 2**63 - 1)


Done = Callable[[], None]


class SegmentView(NamedTuple):
    """Segment of a topic, with the numbers from which subscriptions compute their backlogs.

    `last_entry` is the id of the last *confirmed* entry; -1 if there is none.
    """

    ledger_id: int
    last_entry: int
    first_index: int
    messages: int
    bytes: int
    first_clock_ms: int = 0
    last_clock_ms: int = 0
    """Broker's clock, in ms since 1970, at the segment's first and last block; 0 if unknown."""


class TopicPort(Protocol):
    """Port from a subscription to its loaded topic."""

    name: str

    @property
    def tracing(self) -> Tracing | None:
        """Tracing of dispatched entries; None if tracing is disabled."""
        ...

    @property
    def policies(self) -> TopicPolicies:
        """Effective policies of the topic."""
        ...

    @property
    def dispatch_limits(self) -> DispatchLimits | None:
        """Dispatch rates of the topic's subscriptions; None if they are unlimited."""
        ...

    @property
    def is_terminated(self) -> bool:
        """True if the topic was terminated, and accepts no more messages."""
        ...

    @property
    def last_confirmed(self) -> Position:
        """Position of the last entry that may be dispatched; `(ledger id, -1)` if the topic is empty."""
        ...

    @property
    def confirmed_index(self) -> int:
        """Topic-wide index of the message after the last confirmed one: the number of messages ever confirmed."""
        ...

    def segments(self) -> Sequence[SegmentView]:
        """List the segments, oldest first, the active one last."""
        ...

    def first_position(self) -> Position:
        """Return the position of the oldest retained entry or, if there is none, of the next entry to be written."""
        ...

    def next_position(self, position: Position) -> Position:
        """Return the position after `position`, which may be in the next segment or not written yet."""
        ...

    def cached(self, position: Position) -> Sequence[Buffer]:
        """Return cached blocks from the block that contains `position` on; empty if that block is not cached."""
        ...

    async def read(self, position: Position, bytes_max: int) -> Sequence[Buffer]:
        """Read whole confirmed blocks from the one that contains `position` on, within one segment.

        Returns an empty sequence if `position` is not confirmed yet. Raises `NotFound` if its segment was trimmed,
        `CorruptionError`, `Unavailable`.
        """
        ...

    async def index_of(self, position: Position) -> int:
        """Return the topic-wide index of the first message of the entry at `position`, which may not be written yet."""
        ...

    async def find_time(self, time_ms: int) -> Position:
        """Return the position of the first entry published at or after `time_ms` (producer's clock), or the end.

        Raises `CorruptionError`, `Unavailable`.
        """
        ...

    async def last_message(self) -> tuple[Position, int]:
        """Return the last entry's position, and the batch index of its last message (-1 if the entry is not a batch).

        Returns (-1, -1) and -1 if there is no entry. Raises `NotFound`, `CorruptionError`, `Unavailable`.
        """
        ...

    async def compacted_view(self) -> CompactedPort | None:
        """Return the view for readers of compacted data; None if the topic was never compacted.

        Raises `Unavailable`.
        """
        ...


class CompactedPort(TopicPort, Protocol):
    """Compacted view of a topic, without the entries that compaction removed (gaps)."""

    def gaps(self) -> Sequence[tuple[int, BitMap]]:
        """List the removed entries: (ledger id, entries), in the topic's order."""
        ...

    def left_of(self, ledger_id: int, first: int, stop: int) -> Sequence[tuple[Position, int, int]]:
        """List the batches among entries `first` .. `stop`-1 from which compaction removed messages.

        For each: (position, bits of the remaining messages, batch size).
        """
        ...


class ConsumerPort(Protocol):
    """Port from a subscription to a consumer's session."""

    @property
    def wants_index(self) -> bool:
        """True if each entry is sent with broker entry metadata: topic-wide index and broker's clock."""
        ...

    def deliver(self, parts: list[Buffer]) -> None:
        """Write encoded MESSAGE frames to the connection; called at most once per event loop iteration, if possible."""
        ...

    def writable(self) -> bool:
        """Return whether the connection's write buffer has room."""
        ...

    def active_changed(self, is_active: bool) -> None:
        """Notify the client that this consumer became active or inactive (Failover)."""
        ...

    def reached_end(self) -> None:
        """Notify the client that the topic was terminated and the subscription has acknowledged all messages."""
        ...

    def close(self) -> None:
        """Send CLOSE_CONSUMER, so that the client looks the topic up and subscribes again."""
        ...


class SubscriptionPort(Protocol):
    """Port from a topic to a subscription."""

    name: str

    @property
    def mark_delete(self) -> Position:
        """Mark-delete position: all entries up to and including it are acknowledged, and may be trimmed."""
        ...

    @property
    def is_durable(self) -> bool: ...

    @property
    def consumers(self) -> Sequence[object]: ...

    @property
    def last_used_s(self) -> float:
        """Monotonic time, in seconds, of the last attach, detach or seek of a consumer; initially the load time."""
        ...

    def tell_end(self) -> None:
        """Notify the consumers if the topic is terminated and all its messages are acknowledged."""
        ...

    async def skip_up_to(self, position: Position) -> None:
        """Acknowledge all entries up to and including `position`. Returns when the change is durable."""
        ...


class SubscriptionsPort(Protocol):
    """Port from a topic to its subscriptions."""

    names: Sized
    """Live view of the names of the current subscriptions."""

    last_ended_s: float
    """Monotonic time, in seconds, at which a subscription last ended; initially the time of the topic's load."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[SubscriptionPort]: ...

    def confirmed(self, blocks: Sequence[tuple[Buffer, BlockHeader]]) -> None:
        """Dispatch blocks of the topic that were just confirmed, in order; the tail cache contains these blocks."""
        ...

    def close(self) -> None:
        """Send CLOSE_CONSUMER to every consumer, because the topic is unloaded."""
        ...

    def policies_changed(self) -> None:
        """Apply the topic's changed policies."""
        ...

    def compacted(self) -> None:
        """Disconnect readers of compacted data, because there is a new compaction result."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a subscription. Raises `NotFound`, and `ConsumerBusy` if it has consumers."""
        ...

    async def forget(self) -> None:
        """Delete the cursors of all subscriptions, because the topic is deleted."""
        ...
