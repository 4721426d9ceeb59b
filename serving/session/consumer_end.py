"""Session's side of one consumer: handles SUBSCRIBE, and writes the subscription's messages to the client."""

from __future__ import annotations

from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.network import network_of
from quire.serving.model.ports import NotAllowed
from quire.serving.model.request import SubscribeRequest
from quire.serving.session.bounds import counted_bytes
from quire.serving.session.connection import Connection
from quire.serving.session.lane import Lane
from quire.serving.session.permissions import may_produce, permit
from quire.serving.session.requests import retry_until_deadline
from quire.serving.subscription.subscription import Attachment
from quire.serving.topic.topic import AnyTopic
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.commands import Command


class ConsumerEnd:
    """Session's side of one consumer (a `ConsumerPort`). Keeps the fields of SUBSCRIBE that are needed later."""

    __slots__ = (
        "attached",
        "connection",
        "consumer_id",
        "is_closed",
        "is_counted",
        "lane",
        "read_compacted",
        "subscription_name",
        "topic",
        "topic_name",
        "type_name",
    )

    def __init__(self, connection: Connection, body: pb.CommandSubscribe) -> None:
        self.connection = connection
        self.consumer_id = body.consumer_id
        self.topic_name = body.topic
        self.subscription_name = body.subscription
        self.type_name = pb.CommandSubscribe.SubType.Name(body.subType)
        self.read_compacted = body.read_compacted
        self.lane = Lane(connection, counted_bytes(body.metadata))
        self.topic: AnyTopic | None = None
        self.attached: Attachment | None = None
        self.is_closed = False
        self.is_counted = False
        """True once the topic's subscribe rate has admitted the request, which may be attempted several times."""

    @property
    def wants_index(self) -> bool:
        return self.connection.peer.wants_index

    @property
    def client_version(self) -> str:
        """Client version from CONNECT, for `stats`."""
        return self.connection.peer.client_version

    # -- ConsumerPort, called by the subscription --------------------------------------------------------

    def deliver(self, parts: list[Buffer]) -> None:
        self.connection.outbound.write_many(parts)

    def writable(self) -> bool:
        return self.connection.outbound.is_writable

    def active_changed(self, is_active: bool) -> None:
        self.connection.write(commands.active_consumer_change(self.consumer_id, active=is_active))

    def reached_end(self) -> None:
        if self.connection.peer.knows_end_of_topic:
            self.connection.write(commands.reached_end_of_topic(self.consumer_id))

    def close(self) -> None:
        """Send CLOSE_CONSUMER, unless SUBSCRIBE is still in progress; its response then contains the error."""
        if self.attached is not None:
            self.unregister()
            self.connection.write(commands.close_consumer(self.consumer_id, commands.NO_REQUEST))

    # -- called by the connection ------------------------------------------------------------------------

    def resumed(self) -> None:
        attached = self.attached
        if attached is not None and attached.consumer.is_open:
            attached.subscription.pump.wake_soon()

    def detach(self) -> None:
        """Detach the consumer from its subscription, because the connection or the consumer is being closed."""
        attached = self.attached
        self.unregister()
        if attached is not None:
            attached.subscription.detach(attached.consumer)

    async def open(self, body: pb.CommandSubscribe) -> None:
        """Load the topic, attach the consumer and answer SUBSCRIBE. The connection may be closed when this returns."""
        connection = self.connection
        try:
            topic, attached = await retry_until_deadline(
                lambda: self._enter(body), lambda: connection.is_closed
            )
        except QuireError as error:
            connection.refuse_request("SUBSCRIBE", body.request_id, error)
            self.unregister()
            return
        if connection.is_closed:
            attached.subscription.detach(attached.consumer)
            return
        self.topic, self.attached = topic, attached
        connection.write(commands.success(body.request_id))
        attached.subscription.tell_end()

    def ask_again(self, body: pb.CommandSubscribe) -> None:
        """Answer a repeated SUBSCRIBE: the client timed out waiting for the first, or considers the consumer lost."""
        connection = self.connection
        if self.attached is None:
            code, text = (
                pb.ServiceNotReady,
                f"consumer {self.consumer_id} of this connection is still being created",
            )
        elif (body.topic, body.subscription) != (self.topic_name, self.subscription_name):
            code, text = (
                pb.ConsumerBusy,
                f"consumer id {self.consumer_id} of this connection is in use for another subscription",
            )
        elif self.lane.is_busy:
            self.lane.put_off(Command(pb.BaseCommand.SUBSCRIBE, body))
            return
        else:
            connection.write(commands.success(body.request_id))
            return
        connection.write(commands.error(body.request_id, code, text))

    async def _enter(self, body: pb.CommandSubscribe) -> tuple[AnyTopic, Attachment]:
        context = self.connection.context
        await permit(self.connection, pb.BaseCommand.SUBSCRIBE, body, body.subscription)
        topic = await context.topics.open(body.topic, create=body.force_topic_creation)
        if body.read_compacted and not topic.topic_name.is_persistent:
            raise NotAllowed(f"readCompacted is not supported: topic {topic.name} is non-persistent")
        request = SubscribeRequest.of(body, self.connection.peer.address)
        context.topics.check_subscribe(topic, request)
        self._count(topic, request)
        if body.HasField("schema"):
            may_add = await may_produce(self.connection, body.topic)
            await context.topics.admit_consumer_schema(topic, body.schema, may_add=may_add)
        attached = await context.topics.subscribe(topic, request, self)
        if topic.is_closed or not attached.consumer.is_open:
            attached.subscription.detach(attached.consumer)
            raise Unavailable(
                f"topic {topic.name} or its subscription was closed while the consumer was being attached"
            )
        return topic, attached

    def _count(self, topic: AnyTopic, request: SubscribeRequest) -> None:
        """Count the request once. Raises `NotAllowed` if the consumer exceeds the topic's subscribe rate."""
        limiter = topic.applied.subscribe_limiter
        if limiter is None or self.is_counted:
            return
        consumer = network_of(request.address), request.consumer_name, request.consumer_id
        if not limiter.admits(consumer):
            raise NotAllowed(
                f"Subscribe limited by subscribe rate limit per consumer: topic {topic.name} admits "
                f"{limiter.rate.subscriptions} requests of a consumer in {limiter.rate.period_s} s; try later"
            )
        self.is_counted = True

    def acknowledge(self, ids: list[pb.MessageIdData]) -> None:
        """Acknowledge individual messages; the client requested no response."""
        if (attached := self.attached) is not None:
            attached.subscription.pump.acknowledge(attached.consumer, ids)

    @property
    def is_open(self) -> bool:
        """True while the consumer is attached to its subscription."""
        return self.attached is not None

    def revoke(self) -> None:
        """Close the consumer, because its role lost the permission to consume.

        The client reconnects and is rejected.
        """
        attached = self.attached
        self.close()
        if attached is not None:
            attached.subscription.detach(attached.consumer)

    def close_on_request(self, request_id: int) -> None:
        self.connection.write(commands.success(request_id))
        self.detach()

    def unregister(self) -> None:
        """Remove this consumer from its connection; commands waiting in its lane then find no consumer."""
        self.is_closed = True
        self.attached = None  # ends a reference cycle (`runtime.weak`)
        self.connection.forget_consumer(self.consumer_id, self)
        self.lane.close()
