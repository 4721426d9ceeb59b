"""Consumers of one connection: SUBSCRIBE, FLOW, ACK, REDELIVER, SEEK and what else concerns one.

A consumer is named by a number that the client chose. FLOW and ACK are plain calls into the subscription room; what
must be durable before it is answered goes through the consumer's lane.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from quire.runtime.errors import NotFound, QuireError, Unavailable
from quire.runtime.limits import ENDS_PER_CONNECTION_MAX, KEY_RANGES_MAX
from quire.serving.model.ports import NotAllowed
from quire.serving.session.bounds import refused_names, refused_properties
from quire.serving.session.connection import Connection, Handler
from quire.serving.session.lane import Lane
from quire.serving.session.permissions import permit
from quire.serving.session.requests import retry_until_deadline
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.commands import Command
from quire.wire.packed_ids import PackedIds

if TYPE_CHECKING:
    from quire.serving.subscription.delivery.consumer import Consumer
    from quire.serving.topic.topic import AnyTopic


IDS_AT_ONCE_MAX: Final = 5_000
IDS_A_SLICE: Final = 250
"""Of a command that has more: a millisecond or two."""


class ConsumerEnd:
    """The session's end of one consumer (a `ConsumerPort`). Of its SUBSCRIBE it keeps only what is asked for later."""

    __slots__ = (
        "connection",
        "consumer",
        "consumer_id",
        "is_closed",
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
        self.lane = Lane(connection)
        self.topic: AnyTopic | None = None
        self.consumer: Consumer | None = None
        self.is_closed = False

    @property
    def wants_index(self) -> bool:
        return self.connection.peer.wants_index

    @property
    def client_version(self) -> str:
        """As CONNECT gave it; for `stats`."""
        return self.connection.peer.client_version

    # -- what the subscription does to it: ConsumerPort --------------------------------------------------

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
        """One that is still being let in has no answer yet: it is let in by whoever serves the topic then."""
        if self.consumer is not None:
            self._end()
            self.connection.write(commands.close_consumer(self.consumer_id, commands.NO_REQUEST))

    # -- what the connection does to it ----------------------------------------------------------------

    def resumed(self) -> None:
        if self.consumer is not None:
            self.consumer.resumed()

    def detach(self) -> None:
        """The connection is gone."""
        consumer = self.consumer
        self._end()
        if consumer is not None:
            consumer.close()

    async def open(self, body: pb.CommandSubscribe) -> None:
        """Find the topic, subscribe, answer. The connection may be gone when this ends."""
        connection = self.connection
        try:
            topic, consumer = await retry_until_deadline(
                lambda: self._enter(body), lambda: connection.is_closed
            )
        except QuireError as error:
            connection.refuse_request("SUBSCRIBE", body.request_id, error)
            self._end()
            return
        if connection.is_closed:
            consumer.close()
            return
        self.topic, self.consumer = topic, consumer
        connection.write(commands.success(body.request_id))
        consumer.subscription.tell_end()

    def ask_again(self, body: pb.CommandSubscribe) -> None:
        """A client that gave up its SUBSCRIBE, or thinks that it lost the consumer, asks for the same one."""
        connection = self.connection
        if self.consumer is None:
            code, text = (
                pb.ServiceNotReady,
                f"consumer {self.consumer_id} of this connection is being created",
            )
        elif (body.topic, body.subscription) != (self.topic_name, self.subscription_name):
            code, text = pb.ConsumerBusy, f"consumer {self.consumer_id} of this connection is another one"
        elif self.lane.is_busy:
            self.lane.put_off(Command(pb.BaseCommand.SUBSCRIBE, body))
            return
        else:
            connection.write(commands.success(body.request_id))
            return
        connection.write(commands.error(body.request_id, code, text))

    async def _enter(self, body: pb.CommandSubscribe) -> tuple[AnyTopic, Consumer]:
        host = self.connection.host
        await permit(self.connection, pb.BaseCommand.SUBSCRIBE, body, body.subscription)
        topic = await host.topics.open(body.topic, create=body.force_topic_creation)
        if body.read_compacted and not topic.topic_name.is_persistent:
            raise NotAllowed(f"topic {topic.name} keeps nothing, so nothing of it can be read compacted")
        if body.HasField("schema"):
            await host.topics.admit_consumer_schema(topic, body.schema)
        consumer = await host.topics.subscribe(topic, body, self, self.connection.peer.address)
        if topic.is_closed or not consumer.is_open:
            consumer.close()
            raise Unavailable(f"topic {topic.name}, or its subscription, was closed meanwhile")
        return topic, consumer

    def acknowledge(self, ids: list[pb.MessageIdData]) -> None:
        """Individual ids."""
        if self.consumer is not None:
            self.consumer.ack(ids)

    @property
    def is_open(self) -> bool:
        """It was let in, and has not left."""
        return self.consumer is not None

    def revoke(self) -> None:
        """Its role may not consume any more: its client looks the topic up again, and is told so."""
        consumer = self.consumer
        self.close()
        if consumer is not None:
            consumer.close()

    def close_on_request(self, request_id: int) -> None:
        self.connection.write(commands.success(request_id))
        self.detach()

    def _end(self) -> None:
        self.is_closed = True
        self.consumer = None  # It knows this one, too: circles would stay (`runtime.weak`).
        consumers = self.connection.consumers
        if consumers.get(self.consumer_id) is self:
            del consumers[self.consumer_id]
        self.lane.close()


def subscribe(connection: Connection, body: pb.CommandSubscribe) -> None:
    refusal = _refusal(connection, body)
    present = connection.consumers.get(body.consumer_id)
    if refusal:
        connection.refuse_request("SUBSCRIBE", body.request_id, NotAllowed(refusal))
    elif present is not None:
        present.ask_again(body)
    else:
        end = connection.consumers[body.consumer_id] = ConsumerEnd(connection, body)
        end.lane.run_exclusively(end.open(body), "SUBSCRIBE")


def _refusal(connection: Connection, body: pb.CommandSubscribe) -> str:
    """Why this can never be granted; nothing when it can."""
    if not body.subscription.strip():
        return "a subscription needs a name"
    if len(connection.consumers) >= ENDS_PER_CONNECTION_MAX:
        return f"a connection has {ENDS_PER_CONNECTION_MAX} consumers at most; open another one"
    if len(body.keySharedMeta.hashRanges) > KEY_RANGES_MAX:
        return f"a consumer asks for {KEY_RANGES_MAX} ranges of keys at most"
    return (
        refused_names({"the subscription name": body.subscription, "the consumer name": body.consumer_name})
        or refused_properties("a subscription's properties", body.subscription_properties)
        or refused_properties("a consumer's properties", body.metadata)
    )


# -- commands without an answer, or whose answer comes by callback ---------------------------------------


def flow(connection: Connection, body: pb.CommandFlow) -> None:
    end = connection.consumers.get(body.consumer_id)
    if end is not None and end.consumer is not None:
        end.consumer.flow(body.messagePermits)


def ack(connection: Connection, body: pb.CommandAck) -> None:
    cumulative = body.ack_type == pb.CommandAck.Cumulative
    many = len(body.message_id) > IDS_AT_ONCE_MAX and not cumulative
    if not cumulative and not many and not body.HasField("request_id"):
        connection.gather_acks(body.consumer_id, body.message_id)
        return
    connection.acknowledge_gathered()
    consumer_id, request_id = body.consumer_id, body.request_id
    is_awaited = body.HasField("request_id")
    end = connection.consumers.get(consumer_id)
    consumer = None if end is None else end.consumer

    def answer(error: QuireError | None) -> None:
        """It does not know the command, which its ids would stay with."""
        if is_awaited:
            code, text = (None, None) if error is None else connection.why_refused("ACK", error)
            connection.write(commands.ack_response(consumer_id, request_id, code, text))

    if end is None or consumer is None:
        answer(NotFound("the consumer is closed"))
    elif many:
        ids = PackedIds(body)
        end.lane.run_exclusively(_ack_in_slices(end, ids, answer), "ACK", ids.byte_count)
    else:
        done = answer if is_awaited else None
        consumer.ack(body.message_id, cumulative=cumulative, done=done)


async def _ack_in_slices(
    end: ConsumerEnd, ids: PackedIds, answer: Callable[[QuireError | None], None]
) -> None:
    """Each id of a part of a batch takes ten microseconds, and a command has a hundred thousand."""
    while ids.has_more():
        if end.consumer is None:
            answer(NotFound("the consumer is closed"))
            return
        some = ids.take(IDS_A_SLICE)
        end.consumer.ack(some, done=None if ids.has_more() else answer)
        await end.connection.host.slices.turn()


def redeliver(connection: Connection, body: pb.CommandRedeliverUnacknowledgedMessages) -> None:
    end = connection.consumers.get(body.consumer_id)
    if end is None or end.consumer is None:
        return
    if len(body.message_ids) > IDS_AT_ONCE_MAX:
        ids = PackedIds(body)
        end.lane.run_exclusively(_redeliver_in_slices(end, ids), "REDELIVER", ids.byte_count)
    else:
        end.consumer.redeliver(body.message_ids)


async def _redeliver_in_slices(end: ConsumerEnd, ids: PackedIds) -> None:
    while ids.has_more() and end.consumer is not None:
        end.consumer.redeliver(ids.take(IDS_A_SLICE))
        await end.connection.host.slices.turn()


def close_consumer(connection: Connection, body: pb.CommandCloseConsumer) -> None:
    end = connection.consumers.get(body.consumer_id)
    if end is None:
        # Closed from here a moment ago: the client's request and our CLOSE_CONSUMER crossed.
        connection.write(commands.success(body.request_id))
    else:
        end.close_on_request(body.request_id)


# -- requests that take time ----------------------------------------------------------------------------


def _run_in_lane(
    connection: Connection,
    consumer_id: int,
    request_id: int,
    what: str,
    work: Callable[[ConsumerEnd], Awaitable[bytes]],
) -> None:
    """Carry out a request of one consumer in its lane, and write the answer that `work` makes."""
    refusal = partial(commands.error, request_id)
    end = connection.consumers.get(consumer_id)
    if end is None:
        connection.write(refusal(pb.ConsumerNotFound, "there is no such consumer"))
    else:
        end.lane.run_exclusively(connection.answer(what, partial(work, end), refusal), what)


def unsubscribe(connection: Connection, body: pb.CommandUnsubscribe) -> None:
    async def work(end: ConsumerEnd) -> bytes:
        consumer = _opened(end)
        await consumer.subscription.unsubscribe(consumer, force=body.force)
        end._end()
        return commands.success(body.request_id)

    _run_in_lane(connection, body.consumer_id, body.request_id, "UNSUBSCRIBE", work)


def seek(connection: Connection, body: pb.CommandSeek) -> None:
    async def work(end: ConsumerEnd) -> bytes:
        subscription = _opened(end).subscription
        if body.HasField("message_publish_time"):
            await subscription.seek_time(body.message_publish_time)
        else:
            await subscription.seek(body.message_id)
        return commands.success(body.request_id)

    _run_in_lane(connection, body.consumer_id, body.request_id, "SEEK", work)


def get_last_message_id(connection: Connection, body: pb.CommandGetLastMessageId) -> None:
    async def work(end: ConsumerEnd) -> bytes:
        subscription = _opened(end).subscription
        topic = end.topic
        assert topic is not None
        partition = topic.topic_name.partition
        view = await topic.log.compacted_view() if end.read_compacted else None
        position, batch_index = await (view or topic.log).last_message()
        last = commands.message_id(*position, partition=partition, batch_index=batch_index)
        mark = commands.message_id(*subscription.mark_delete, partition=partition)
        return commands.last_message_id(body.request_id, last, mark)

    _run_in_lane(connection, body.consumer_id, body.request_id, "GET_LAST_MESSAGE_ID", work)


def consumer_stats(connection: Connection, body: pb.CommandConsumerStats) -> None:
    connection.requests.start(_consumer_stats(connection, body), "CONSUMER_STATS")


async def _consumer_stats(connection: Connection, body: pb.CommandConsumerStats) -> None:
    answer = pb.CommandConsumerStatsResponse(request_id=body.request_id)
    end = connection.consumers.get(body.consumer_id)
    try:
        if end is None:
            raise NotFound("there is no such consumer")
        consumer = _opened(end)
        answer.msgBacklog = await consumer.subscription.backlog()
    except NotFound as error:
        _, answer.error_message = connection.why_refused("CONSUMER_STATS", error)
        answer.error_code = pb.ConsumerNotFound
    except QuireError as error:
        answer.error_code, answer.error_message = connection.why_refused("CONSUMER_STATS", error)
    else:
        _describe(answer, consumer.stats())
        answer.address = connection.peer.address
        answer.type = end.type_name
    connection.write(commands.consumer_stats(answer))


def _describe(answer: pb.CommandConsumerStatsResponse, stats: dict[str, Any]) -> None:
    answer.consumerName = str(stats.get("consumerName", ""))
    answer.availablePermits = max(0, int(stats.get("availablePermits", 0)))
    answer.unackedMessages = max(0, int(stats.get("unackedMessages", 0)))
    answer.msgRateOut = float(stats.get("msgRateOut", 0.0))
    answer.msgThroughputOut = float(stats.get("msgThroughputOut", 0.0))
    answer.msgRateRedeliver = float(stats.get("msgRateRedeliver", 0.0))
    answer.messageAckRate = float(stats.get("messageAckRate", 0.0))
    answer.blockedConsumerOnUnackedMsgs = bool(stats.get("blockedConsumerOnUnackedMsgs", False))
    answer.connectedSince = str(stats.get("connectedSince", ""))


def _opened(end: ConsumerEnd) -> Consumer:
    if end.consumer is None or end.is_closed:
        raise NotFound("the consumer is closed")
    return end.consumer


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.SUBSCRIBE: subscribe,
    pb.BaseCommand.FLOW: flow,
    pb.BaseCommand.ACK: ack,
    pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: redeliver,
    pb.BaseCommand.CLOSE_CONSUMER: close_consumer,
    pb.BaseCommand.UNSUBSCRIBE: unsubscribe,
    pb.BaseCommand.SEEK: seek,
    pb.BaseCommand.GET_LAST_MESSAGE_ID: get_last_message_id,
    pb.BaseCommand.CONSUMER_STATS: consumer_stats,
}
