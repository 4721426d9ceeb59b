"""What a SUBSCRIBE asks for, in our words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from quire.runtime.errors import QuireError
from quire.wire import pulsar_pb2 as pb

Done = Callable[[QuireError | None], None]
"""Called once: None when it is durable, else why it is not."""


class SubscriptionKind(IntEnum):
    """The numbers of CommandSubscribe.SubType."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def label(self) -> str:
        """Pulsar's word for it, in `stats`."""
        return _LABELS[self]


_LABELS = {
    SubscriptionKind.EXCLUSIVE: "Exclusive",
    SubscriptionKind.SHARED: "Shared",
    SubscriptionKind.FAILOVER: "Failover",
    SubscriptionKind.KEY_SHARED: "Key_Shared",
}


class KeySharing(NamedTuple):
    """How the keys of a Key_Shared subscription are shared: what all of its consumers must agree on."""

    is_sticky: bool = False
    """Whether consumers name the slots that they want; else these are split among them."""
    out_of_order: bool = False
    """Whether a key may go to its new owner while the former one still holds messages of it."""

    def __str__(self) -> str:
        order = "out of order delivery allowed" if self.out_of_order else "in order"
        return f"{'sticky ranges' if self.is_sticky else 'auto split'}, {order}"


AUTO_SPLIT = KeySharing()


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """`key_ranges` are slots, both ends inclusive, for sticky sharing only.

    `start` is for readers (not durable) only; `initial_earliest` and `start_rollback_s` for new subscriptions.
    """

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
    sharing: KeySharing = AUTO_SPLIT
    key_ranges: Sequence[tuple[int, int]] = ()
    read_compacted: bool = False
    """Up to where the topic was compacted, only the last message of each key."""

    @classmethod
    def of(cls, command: pb.CommandSubscribe, address: str = "") -> SubscribeRequest:
        """The request in a SUBSCRIBE that came from `address`."""
        return cls(
            subscription=command.subscription,
            kind=SubscriptionKind(command.subType),
            consumer_id=command.consumer_id,
            consumer_name=command.consumer_name,
            priority_level=command.priority_level,
            durable=command.durable,
            start=_start_of(command),
            initial_earliest=command.initialPosition == pb.CommandSubscribe.Earliest,
            start_rollback_s=command.start_message_rollback_duration_sec,
            properties={item.key: item.value for item in command.subscription_properties},
            metadata={item.key: item.value for item in command.metadata},
            address=address,
            sharing=KeySharing(
                is_sticky=command.keySharedMeta.keySharedMode == pb.STICKY,
                out_of_order=command.keySharedMeta.allowOutOfOrderDelivery,
            ),
            read_compacted=command.read_compacted,
            key_ranges=[(one.start, one.end) for one in command.keySharedMeta.hashRanges],
        )


def _start_of(command: pb.CommandSubscribe) -> pb.MessageIdData | None:
    """The message that a reader begins at, and nothing else of what its id says: it is kept, and may be large."""
    if not command.HasField("start_message_id"):
        return None
    said = command.start_message_id
    return pb.MessageIdData(ledgerId=said.ledgerId, entryId=said.entryId)
