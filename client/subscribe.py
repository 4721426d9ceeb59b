"""Subscription options of a consumer, and the SUBSCRIBE command for them."""

from __future__ import annotations

from dataclasses import dataclass

from quire.client.messages import EARLIEST, MessageId
from quire.wire import pulsar_pb2 as pb


@dataclass(frozen=True)
class SubscribeAs:
    """Subscription options. A new or non-durable subscription begins at `start`."""

    subscription: str
    type: pb.CommandSubscribe.SubType
    name: str
    start: MessageId
    start_inclusive: bool = False
    durable: bool = True
    compacted: bool = False
    priority: int = 0
    """Priority level on shared subscriptions: level 1 gets messages only while no consumer of level 0 has permits."""
    key_ranges: tuple[tuple[int, int], ...] = ()
    """Key-shared: the hash ranges for this consumer, both ends inclusive; if empty, the broker assigns hashes."""
    create: bool = True
    """Create the topic if it does not exist."""

    @property
    def dispatches_singly(self) -> bool:
        """True for shared and key-shared subscriptions, where the broker redelivers single entries."""
        return self.type in (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared)

    def request(
        self, topic: str, consumer_id: int, request_id: int, start: MessageId, inclusive: bool
    ) -> pb.CommandSubscribe:
        """Return the SUBSCRIBE for one topic.

        A non-durable subscription begins after `start`, or at it if `inclusive`.
        """
        earliest = start == EARLIEST
        body = pb.CommandSubscribe(
            topic=topic,
            subscription=self.subscription,
            subType=self.type,
            consumer_id=consumer_id,
            request_id=request_id,
            consumer_name=self.name,
            durable=self.durable,
            read_compacted=self.compacted,
            priority_level=self.priority,
            force_topic_creation=self.create,
            initialPosition=pb.CommandSubscribe.Earliest if earliest else pb.CommandSubscribe.Latest,
        )
        if not self.durable:
            # The broker starts at the entry if the id has a batch index, and after it otherwise.
            if inclusive and start.entry_id >= 0:
                start = start._replace(batch_index=max(0, start.batch_index))
            body.start_message_id.CopyFrom(start.to_wire())
        if self.type == pb.CommandSubscribe.Key_Shared:
            body.keySharedMeta.keySharedMode = pb.STICKY if self.key_ranges else pb.AUTO_SPLIT
            for first, last in self.key_ranges:
                body.keySharedMeta.hashRanges.add(start=first, end=last)
        return body
