"""The subscriptions of one topic, by name (signatures; the code follows)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from quire.runtime.clock import Clock
from quire.runtime.errors import QuireError
from quire.serving.ports import ConsumerPort, Position, TopicPort
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import BlockHeader, Buffer

Done = Callable[[QuireError | None], None]


class SubscriptionKind(IntEnum):
    """The numbers of CommandSubscribe.SubType."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """What a SUBSCRIBE asks for."""

    subscription: str
    kind: SubscriptionKind
    consumer_id: int
    consumer_name: str = ""
    priority_level: int = 0
    durable: bool = True
    start: pb.MessageIdData | None = None
    initial_earliest: bool = False
    start_rollback_s: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    address: str = ""

    @classmethod
    def of(cls, command: pb.CommandSubscribe, address: str = "") -> SubscribeRequest: ...


class Consumer:
    """One consumer, as its session calls it. After `close` every call is a no-op."""

    consumer_id: int
    subscription: Subscription

    def flow(self, permits: int) -> None: ...
    def ack(self, ids: Iterable[pb.MessageIdData], *, cumulative: bool = False, done: Done | None = None) -> None:
        """`done` only when a request id came: called when the acknowledgement is durable (or has failed)."""

    def redeliver(self, ids: Iterable[pb.MessageIdData] = ()) -> None: ...
    def resumed(self) -> None:
        """The connection's write buffer has drained."""

    def close(self) -> None:
        """CLOSE_CONSUMER came, or the connection is gone. Calls nothing on its port."""

    def stats(self) -> dict[str, Any]: ...


class Subscription:
    """One subscription (a SubscriptionPort)."""

    name: str

    def confirmed(self, block: Buffer, header: BlockHeader) -> None: ...
    @property
    def mark_delete(self) -> Position: ...
    @property
    def is_durable(self) -> bool: ...
    async def seek(self, to: pb.MessageIdData) -> None:
        """Closes all consumers (their ports' `close`), then moves the cursor; durable when it returns."""

    async def seek_time(self, time_ms: int) -> None: ...
    async def unsubscribe(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy when others are connected."""

    async def skip_all(self) -> None: ...
    async def stats(self) -> dict[str, Any]: ...


class Subscriptions:
    """All of one topic. The topic makes one when it loads."""

    def __init__(self, topic: TopicPort, store: CursorStore, generation: int, clock: Clock, partition: int = -1): ...
    def load(self) -> None:
        """Take up the durable subscriptions that the store knows for this topic and generation."""

    def confirmed(self, block: Buffer, header: BlockHeader) -> None: ...
    def __iter__(self) -> Iterator[Subscription]: ...
    def get(self, name: str) -> Subscription | None: ...
    async def subscribe(self, request: SubscribeRequest, port: ConsumerPort) -> Consumer:
        """Durable when it returns. Raises ConsumerBusy, NotAllowed, NotFound, Unavailable."""

    async def create(self, name: str, *, earliest: bool = False, at: pb.MessageIdData | None = None) -> Subscription:
        """For the admin API. Raises AlreadyExists."""

    async def delete(self, name: str, *, force: bool = False) -> None: ...
    def close(self) -> None:
        """The topic is unloaded: CLOSE_CONSUMER to every consumer."""

    async def forget(self) -> None:
        """The topic is deleted: its cursors are, too."""

    async def stats(self) -> dict[str, dict[str, Any]]: ...


class CursorStore:
    """serving/subscription/cursor_store.py: all cursors of one bundle in its state log.

    Records begin with the byte b"C", so that one log can serve others, too: hand those records to `apply`.
    """

    def apply(self, record: bytes) -> None: ...
    def snapshot(self) -> Iterator[bytes]: ...
    def attach(self, log: Any) -> None:
        """The opened StateLog; from now on changes are appended to it."""
