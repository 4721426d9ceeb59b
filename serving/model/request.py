"""Parsed SUBSCRIBE command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from quire.runtime.errors import QuireError
from quire.serving.policy.resolved import SUBSCRIPTION_TYPES
from quire.wire import pulsar_pb2 as pb

Done = Callable[[QuireError | None], None]
"""Callback, called once: with None when the change is durable, otherwise with the error."""


class SubscriptionKind(IntEnum):
    """Type of a subscription, numbered as CommandSubscribe.SubType."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def label(self) -> str:
        """Pulsar's name of the type, for `stats`."""
        return _LABELS[self]


_LABELS = dict(zip(SubscriptionKind, SUBSCRIPTION_TYPES, strict=True))


class KeySharing(NamedTuple):
    """Distribution of keys in a Key_Shared subscription, the same for all of its consumers."""

    is_sticky: bool = False
    """True if each consumer requests ranges of slots; otherwise the broker splits the slots among the consumers."""
    out_of_order: bool = False
    """True if messages of a key may be sent to its new owner while the former owner has unacknowledged ones."""

    def __str__(self) -> str:
        order = "out of order delivery allowed" if self.out_of_order else "in order"
        return f"{'sticky ranges' if self.is_sticky else 'auto split'}, {order}"


AUTO_SPLIT = KeySharing()


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """Fields of a SUBSCRIBE command.

    `key_ranges` are slot ranges, both ends included, for sticky sharing only. `start` applies to readers (non-durable
    subscriptions) only; `initial_earliest` and `start_rollback_s` apply to new subscriptions only.
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
    """True to read only the last message of each key, up to the compaction horizon."""

    @classmethod
    def of(cls, command: pb.CommandSubscribe, address: str = "") -> SubscribeRequest:
        """Parse a SUBSCRIBE command that was received from `address`."""
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
    """Return the position at which a reader starts, without the other fields of its message id, which may be large."""
    if not command.HasField("start_message_id"):
        return None
    start = command.start_message_id
    return pb.MessageIdData(ledgerId=start.ledgerId, entryId=start.entryId)
