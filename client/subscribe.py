"""How a consumer subscribes: what its user chose, and the SUBSCRIBE that says so."""

from __future__ import annotations

from dataclasses import dataclass

from quire.client.messages import EARLIEST, MessageId
from quire.wire import pulsar_pb2 as pb


@dataclass(frozen=True)
class SubscribeAs:
    """`start` is where a subscription that is new begins, or any that is not durable."""

    subscription: str
    type: pb.CommandSubscribe.SubType
    name: str
    start: MessageId
    start_inclusive: bool = False
    durable: bool = True
    compacted: bool = False
    priority: int = 0
    """Of shared subscriptions: consumers of a level get messages when those of the levels before have no room."""
    key_ranges: tuple[tuple[int, int], ...] = ()
    """Key-shared: the hashes that this consumer wants, both ends inclusive; none: the broker dispatches them."""
    create: bool = True
    """A topic that is not there is made."""

    @property
    def dispatches_singly(self) -> bool:
        """The broker dispatches messages to several consumers, and takes single ones back."""
        return self.type in (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared)

    def request(
        self, topic: str, consumer_id: int, request_id: int, start: MessageId, inclusive: bool
    ) -> pb.CommandSubscribe:
        """The SUBSCRIBE for one topic; one that is not durable begins after `start`, or at it."""
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
            # With a batch index the broker begins *at* the entry, without one after it.
            if inclusive and start.entry_id >= 0:
                start = start._replace(batch_index=max(0, start.batch_index))
            body.start_message_id.CopyFrom(start.to_wire())
        if self.type == pb.CommandSubscribe.Key_Shared:
            body.keySharedMeta.keySharedMode = pb.STICKY if self.key_ranges else pb.AUTO_SPLIT
            for first, last in self.key_ranges:
                body.keySharedMeta.hashRanges.add(start=first, end=last)
        return body
