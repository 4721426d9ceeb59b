"""Handlers of the commands for consumers: SUBSCRIBE, FLOW, ACK, REDELIVER, SEEK and others.

The client chooses the id of a consumer. FLOW, ACK and REDELIVER are plain calls of the subscription's pump. Requests
that must be durable before their response run in the consumer's lane (`lane`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from quire.runtime.errors import NotFound, ProtocolError, QuireError
from quire.runtime.limits import ENDS_PER_CONNECTION_MAX, KEY_RANGES_MAX
from quire.serving.model.ports import EmptyName, NotAllowed
from quire.serving.model.statistics import ConsumerStats
from quire.serving.session.bounds import refused_names, refused_properties
from quire.serving.session.consumer_end import ConsumerEnd
from quire.serving.session.session import Handler, Session
from quire.serving.subscription.delivery.consumer import consumer_closed
from quire.serving.subscription.subscription import Attachment
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.error_codes import NO_TRANSACTIONS
from quire.wire.packed_ids import PackedIds

IDS_AT_ONCE_MAX: Final = 5_000
IDS_A_SLICE: Final = 250
"""Number of ids of a large command that are processed in one time slice, which takes one or two milliseconds."""


def subscribe(session: Session, body: pb.CommandSubscribe) -> None:
    refusal = _refusal(session, body)
    present = session.consumers.get(body.consumer_id)
    if not body.subscription.strip():
        session.refuse_request("SUBSCRIBE", body.request_id, EmptyName())
    elif refusal:
        session.refuse_request("SUBSCRIBE", body.request_id, NotAllowed(refusal))
    elif present is not None:
        present.ask_again(body)
    else:
        end = session.consumers[body.consumer_id] = ConsumerEnd(session, body)
        end.lane.run_exclusively(end.open(body), "SUBSCRIBE")


def _refusal(session: Session, body: pb.CommandSubscribe) -> str:
    """Return why SUBSCRIBE must be rejected permanently; an empty string if it is valid."""
    if len(session.consumers) >= ENDS_PER_CONNECTION_MAX:
        return f"this connection has {ENDS_PER_CONNECTION_MAX} consumers, which is the limit; open another connection"
    if len(body.keySharedMeta.hashRanges) > KEY_RANGES_MAX:
        return f"a consumer may request at most {KEY_RANGES_MAX} key ranges"
    return (
        refused_names({"the subscription name": body.subscription, "the consumer name": body.consumer_name})
        or refused_properties("a subscription's properties", body.subscription_properties)
        or refused_properties("a consumer's properties", body.metadata, session)
    )


# -- commands without a response, or whose response is written by a callback ------------------------------


def flow(session: Session, body: pb.CommandFlow) -> None:
    end = session.consumers.get(body.consumer_id)
    if end is not None and (attached := end.attached) is not None:
        attached.subscription.pump.flow(attached.consumer, body.messagePermits)


def ack(session: Session, body: pb.CommandAck) -> None:
    if body.HasField("txnid_least_bits") or body.HasField("txnid_most_bits"):
        _refuse_in_transaction(session, body)
        return
    cumulative = body.ack_type == pb.CommandAck.Cumulative
    many = len(body.message_id) > IDS_AT_ONCE_MAX and not cumulative
    if not cumulative and not many and not body.HasField("request_id"):
        session.gather_acks(body.consumer_id, body.message_id)
        return
    session.acknowledge_gathered()
    consumer_id, request_id = body.consumer_id, body.request_id
    is_awaited = body.HasField("request_id")
    end = session.consumers.get(consumer_id)
    attached = None if end is None else end.attached

    def answer(error: QuireError | None) -> None:
        """Write the response. This closure must not reference the command, which would keep all ids in memory."""
        if is_awaited:
            code, text = (None, None) if error is None else session.why_refused("ACK", error)
            session.write(commands.ack_response(consumer_id, request_id, code, text))

    if end is None or attached is None:
        answer(consumer_closed())
    elif many:
        ids = PackedIds(body)
        end.lane.run_exclusively(_ack_in_slices(end, ids, answer), "ACK", ids.byte_count)
    else:
        done = answer if is_awaited else None
        attached.subscription.pump.acknowledge(
            attached.consumer, body.message_id, cumulative=cumulative, done=done
        )


def _refuse_in_transaction(session: Session, body: pb.CommandAck) -> None:
    """Reject an ACK in a transaction, because it could not be undone.

    If the client requested no response, close the connection.
    """
    if body.HasField("request_id"):
        code, text = session.why_refused("ACK", NotAllowed(NO_TRANSACTIONS))
        session.write(commands.ack_response(body.consumer_id, body.request_id, code, text))
    else:
        session.refuse(ProtocolError(NO_TRANSACTIONS))


async def _ack_in_slices(
    end: ConsumerEnd, ids: PackedIds, answer: Callable[[QuireError | None], None]
) -> None:
    """Acknowledge ids in time slices: an id with an `ack_set` takes 10 µs, and a command may have 100,000 ids."""
    while ids.has_more():
        if (attached := end.attached) is None:
            answer(consumer_closed())
            return
        some = ids.take(IDS_A_SLICE)
        done = None if ids.has_more() else answer
        attached.subscription.pump.acknowledge(attached.consumer, some, done=done)
        await end.connection.context.slices.turn()


def redeliver(session: Session, body: pb.CommandRedeliverUnacknowledgedMessages) -> None:
    end = session.consumers.get(body.consumer_id)
    if end is None or (attached := end.attached) is None:
        return
    if len(body.message_ids) > IDS_AT_ONCE_MAX:
        ids = PackedIds(body)
        end.lane.run_exclusively(_redeliver_in_slices(end, ids), "REDELIVER", ids.byte_count)
    else:
        attached.subscription.pump.redeliver(attached.consumer, body.message_ids)


async def _redeliver_in_slices(end: ConsumerEnd, ids: PackedIds) -> None:
    while ids.has_more() and (attached := end.attached) is not None:
        attached.subscription.pump.redeliver(attached.consumer, ids.take(IDS_A_SLICE))
        await end.connection.context.slices.turn()


def close_consumer(session: Session, body: pb.CommandCloseConsumer) -> None:
    end = session.consumers.get(body.consumer_id)
    if end is None:
        # the broker has just closed the consumer: the client's CLOSE_CONSUMER and the broker's have crossed
        session.write(commands.success(body.request_id))
    else:
        end.close_on_request(body.request_id)


# -- requests that take time ----------------------------------------------------------------------------


def _run_in_lane(
    session: Session,
    consumer_id: int,
    request_id: int,
    what: str,
    work: Callable[[ConsumerEnd], Awaitable[bytes]],
) -> None:
    """Execute a request for one consumer in its lane, and write the response that `work` returns."""
    refusal = partial(commands.error, request_id)
    end = session.consumers.get(consumer_id)
    if end is None:
        session.write(refusal(pb.ConsumerNotFound, "this connection has no such consumer"))
    else:
        end.lane.run_exclusively(session.answer(what, partial(work, end), refusal), what)


def unsubscribe(session: Session, body: pb.CommandUnsubscribe) -> None:
    async def work(end: ConsumerEnd) -> bytes:
        subscription, consumer = _opened(end)
        await subscription.unsubscribe(consumer, force=body.force)
        end.unregister()
        return commands.success(body.request_id)

    _run_in_lane(session, body.consumer_id, body.request_id, "UNSUBSCRIBE", work)


def seek(session: Session, body: pb.CommandSeek) -> None:
    async def work(end: ConsumerEnd) -> bytes:
        subscription = _opened(end).subscription
        if body.HasField("message_publish_time"):
            await subscription.seek_time(body.message_publish_time)
        else:
            await subscription.seek(body.message_id)
        return commands.success(body.request_id)

    _run_in_lane(session, body.consumer_id, body.request_id, "SEEK", work)


def get_last_message_id(session: Session, body: pb.CommandGetLastMessageId) -> None:
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

    _run_in_lane(session, body.consumer_id, body.request_id, "GET_LAST_MESSAGE_ID", work)


def consumer_stats(session: Session, body: pb.CommandConsumerStats) -> None:
    session.requests.start(_consumer_stats(session, body), "CONSUMER_STATS")


async def _consumer_stats(session: Session, body: pb.CommandConsumerStats) -> None:
    answer = pb.CommandConsumerStatsResponse(request_id=body.request_id)
    end = session.consumers.get(body.consumer_id)
    try:
        if end is None:
            raise NotFound("this connection has no such consumer")
        subscription, consumer = _opened(end)
        answer.msgBacklog = await subscription.stats.backlog()
    except NotFound as error:
        _, answer.error_message = session.why_refused("CONSUMER_STATS", error)
        answer.error_code = pb.ConsumerNotFound
    except QuireError as error:
        answer.error_code, answer.error_message = session.why_refused("CONSUMER_STATS", error)
    else:
        _describe(answer, subscription.stats.of_consumer(consumer))
        answer.address = session.peer.address
        answer.type = end.type_name
    session.write(commands.consumer_stats(answer))


def _describe(answer: pb.CommandConsumerStatsResponse, stats: ConsumerStats) -> None:
    answer.consumerName = stats.consumer_name
    answer.availablePermits = max(0, stats.available_permits)
    answer.unackedMessages = max(0, stats.unacked_messages)
    answer.msgRateOut = stats.msg_rate_out
    answer.msgThroughputOut = stats.msg_throughput_out
    answer.msgRateRedeliver = stats.msg_rate_redeliver
    answer.messageAckRate = stats.message_ack_rate
    answer.blockedConsumerOnUnackedMsgs = stats.blocked_consumer_on_unacked_msgs
    answer.connectedSince = stats.connected_since


def _opened(end: ConsumerEnd) -> Attachment:
    if end.attached is None or end.is_closed:
        raise consumer_closed()
    return end.attached


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
