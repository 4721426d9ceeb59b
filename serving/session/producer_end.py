"""Session's side of one producer: passes SENDs to the topic's publisher, and the topic's responses to the client.

A *run* is a sequence of consecutive SENDs of one producer that were read together. The hot path of a run has two calls:
`Session.carry_out` finds the producer, and `ProducerEnd.publish` passes the run to the topic's publisher. If the topic
limits or deduplicates messages, the run is passed to the topic instead.

SEND_ERROR is sent only with ChecksumError and, for a message that a policy of its topic forbids, with
NotAllowedError. Any other code makes C++ clients reconnect and send the same message forever. Therefore the broker
rejects PRODUCER for all other reasons, or closes the connection.

A producer that waits for exclusive access gets a PRODUCER_SUCCESS with `producer_ready` false, and a second one when it
is admitted. `topic` is set as soon as the topic has admitted or queued the producer, `target` only while it may
publish.

SENDs that wait when their producer is closed are dropped, and the client sends them again after it has reopened the
producer. A producer is closed if it is fenced or exceeds a quota, its topic is unloaded, or its client reconnects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quire.runtime.clock import iso_time
from quire.runtime.errors import ProtocolError, QuireError, Unavailable
from quire.serving.model.rates import Sent
from quire.serving.model.statistics import PublisherStats
from quire.serving.session.bounds import counted_bytes
from quire.serving.session.connection import Connection
from quire.serving.session.lane import Lane
from quire.serving.session.permissions import permit
from quire.serving.session.requests import retry_until_deadline
from quire.serving.topic.forbidden import forbidden
from quire.serving.topic.producers import AccessMode, Admission, Stage
from quire.serving.topic.runs import PublishRun
from quire.serving.topic.topic import AnyTopic
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.commands import Command
from quire.wire.error_codes import NO_TRANSACTIONS
from quire.wire.frame import Send

_MODE_WORDS: Final = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}


class ProducerEnd:
    """Session's side of one producer (a `ProducerPort`). Keeps the fields of PRODUCER that are needed later."""

    __slots__ = (
        "admission",
        "connection",
        "created_ms",
        "is_closed",
        "lane",
        "metadata",
        "name",
        "producer_id",
        "request_id",
        "schema_version",
        "sent",
        "target",
        "topic",
        "topic_name",
        "write",
    )

    def __init__(self, connection: Connection, body: pb.CommandProducer) -> None:
        self.connection = connection
        self.producer_id = body.producer_id
        self.request_id = body.request_id
        self.topic_name = body.topic
        self.metadata = {item.key: item.value for item in body.metadata}
        self.name = body.producer_name or connection.context.topics.new_producer_name()
        self.write: Callable[[Buffer], None] = connection.outbound.write
        self.lane = Lane(connection, counted_bytes(body.metadata))
        self.topic: AnyTopic | None = None
        self.target: AnyTopic | None = None
        self.admission = Admission(
            AccessMode(body.producer_access_mode),
            body.epoch,
            bool(body.producer_name) and body.user_provided_producer_name,
            body.topic_epoch if body.HasField("topic_epoch") else None,
            is_encrypted=body.encrypted,
        )
        self.schema_version = b""
        self.is_closed = False
        self.created_ms = connection.context.clock.now_ms()
        self.sent = Sent()

    # -- SEND ------------------------------------------------------------------------------------------

    def publish(self, run: PublishRun) -> None:
        """Pass a run to the topic after the commands in progress, and as soon as the topic accepts it."""
        target = self.target
        if (
            target is not None
            and (publisher := target.straight) is not None
            and not self.lane.is_busy
            and publisher.held_bytes < (share := publisher.share).topic_bytes_max
            and share.held_bytes < share.limit_bytes
        ):
            entries = len(run.entries)
            messages = entries if run.counts is None else sum(run.counts)
            self.sent.count(entries, messages, publisher.publish(self, run))
        elif self.lane.is_busy:
            self.lane.put_off(run)
        elif target is None:
            self._refuse_early()
        elif not self._takes(target):
            self.lane.put_back(run)
        else:
            messages, byte_count = sum(run.counts) if run.counts else len(run), run.byte_count
            if (limiter := target.applied.publish_limiter) is not None:
                limiter.passed(messages, byte_count)
            self.sent.count(len(run), messages, byte_count)
            self._pass(target, run)

    def _takes(self, target: AnyTopic) -> bool:
        """Return whether the topic accepts messages now; if not, pause the lane until it does."""
        publisher, limiter = target.log.publisher, target.applied.publish_limiter
        if publisher.is_full:
            self.lane.pause(publisher.when_drained)
        elif limiter is not None and not limiter.is_open():
            self.lane.pause(limiter.wait)
        return not self.lane.is_busy

    def _pass(self, target: AnyTopic, run: PublishRun) -> None:
        """Publish the entries of a run in order, but reject those that the topic's policies forbid."""
        rejected = forbidden(target.name, target.applied.policies, run.entries)
        if not rejected:
            target.publish(self, run)
            return
        start = 0
        for at, why in rejected:
            if at > start:
                target.publish(self, run.pick(range(start, at)))
            start = at + 1
            self._refuse_one(target, run.sequence_ids()[at][0], pb.NotAllowedError, why)
        if start < len(run):
            target.publish(self, run.pick(range(start, len(run))))

    def _refuse_one(self, target: AnyTopic, sequence_id: int, code: pb.ServerError, text: str) -> None:
        """Send a SEND_ERROR after all earlier receipts, because clients match it to the oldest unanswered message."""
        refusal = commands.send_error(self.producer_id, sequence_id, code, text)
        target.log.publisher.when_answered(lambda: self.write(refusal))

    def publish_special(self, send: Send) -> None:
        """Publish a chunk, or reject a damaged SEND. A SEND in a transaction closes the connection."""
        if self.lane.is_busy:
            self.lane.put_off(send)
            return
        target = self.target
        if target is None:
            self._refuse_early()
        elif not self._takes(target):
            self.lane.put_back(send)
        elif not send.checksum_ok:
            self._refuse_one(target, send.sequence_id, pb.ChecksumError, "checksum does not match")
        elif send.txn is not None or send.is_marker:
            self.connection.refuse(ProtocolError(NO_TRANSACTIONS))
        else:
            self._publish_chunk(target, send)

    def _publish_chunk(self, target: AnyTopic, send: Send) -> None:
        if (limiter := target.applied.publish_limiter) is not None:
            limiter.passed(send.message_count, len(send.entry))
        for _, why in forbidden(target.name, target.applied.policies, [send.entry]):
            self._refuse_one(target, send.sequence_id, pb.NotAllowedError, why)
            return
        self.sent.count(1, send.message_count, len(send.entry))
        target.publish_chunk(self, send)

    def _refuse_early(self) -> None:
        """Reject a SEND of a producer that waits for exclusive access.

        A SEND before the response to PRODUCER is dropped, because only that response shows the client whether it may
        send.
        """
        if self.topic is not None and not self.is_closed:
            self.connection.refuse(
                ProtocolError("the client sent a SEND for a producer that is waiting for exclusive access")
            )

    # -- life ------------------------------------------------------------------------------------------

    async def open(self, body: pb.CommandProducer) -> None:
        """Load the topic, request admission, and answer PRODUCER. The connection may be closed when this returns."""
        try:
            topic = await retry_until_deadline(lambda: self._enter(body), lambda: self.connection.is_closed)
        except QuireError as error:
            self.connection.refuse_request("PRODUCER", self.request_id, error)
            self._unregister()
            return
        if self.connection.is_closed:
            topic.producers.leave(self)
            return
        self.topic = topic
        is_ready = self.admission.stage is not Stage.WAITING
        if is_ready:
            self.target = topic
        self._succeed(self.request_id, topic.producers.last_sequence_id(self.name), is_ready=is_ready)

    async def _enter(self, body: pb.CommandProducer) -> AnyTopic:
        """Return the topic after it has admitted or queued the producer."""
        await permit(self.connection, pb.BaseCommand.PRODUCER, body)
        if body.initial_subscription_name:
            await permit(self.connection, pb.BaseCommand.SUBSCRIBE, body, body.initial_subscription_name)
        topic = await self.connection.context.topics.open(body.topic)
        schema = body.schema if body.HasField("schema") else None
        self.schema_version = await self.connection.context.topics.admit_producer_schema(topic, schema)
        if self.connection.is_closed:
            raise Unavailable("the connection is closed")
        if body.initial_subscription_name:
            await self.connection.context.topics.ensure_subscription(topic, body.initial_subscription_name)
        await topic.admit(self)
        return topic

    def ask_again(self, body: pb.CommandProducer) -> None:
        """Answer a repeated PRODUCER: the client timed out waiting for the first, or considers the producer lost."""
        if self.target is None:
            code, text = (
                pb.ServiceNotReady,
                f"producer {self.producer_id} of this connection is still being created",
            )
        elif body.topic != self.topic_name or body.producer_name not in ("", self.name):
            code, text = (
                pb.ProducerBusy,
                f"producer id {self.producer_id} of this connection is in use for another producer",
            )
        elif self.lane.is_busy:
            self.lane.put_off(Command(pb.BaseCommand.PRODUCER, body))
            return
        else:
            self._succeed(body.request_id, self.target.producers.last_sequence_id(self.name), is_ready=True)
            return
        self.write(commands.error(body.request_id, code, text))

    def _succeed(self, request_id: int, last_sequence_id: int, *, is_ready: bool) -> None:
        self.write(
            commands.producer_success(
                request_id,
                self.name,
                last_sequence_id,
                self.schema_version,
                None if self.admission.topic_epoch < 0 else self.admission.topic_epoch,
                ready=is_ready,
            )
        )

    # -- ProducerPort, called by the topic ---------------------------------------------------------------

    def ready(self, last_sequence_id: int) -> None:
        self.target = self.topic
        self._succeed(self.request_id, last_sequence_id, is_ready=True)

    def fenced(self, error: QuireError) -> None:
        why = self.connection.why_refused("PRODUCER", error)
        self._close(commands.error(self.request_id, *why))

    def replaced(self) -> None:
        """Close the producer without a response, because its client has reconnected. Later SENDs are dropped."""
        self._close(b"")

    def close(self, service_url: str = "") -> None:
        """Send CLOSE_PRODUCER: the client continues at `service_url`, or looks the topic up again if it is empty."""
        self._close(commands.close_producer(self.producer_id, commands.NO_REQUEST, service_url))

    def _close(self, last_words: bytes) -> None:
        """Close the producer and write `last_words`.

        Do nothing while PRODUCER is in progress, because its response follows.
        """
        if self.topic is not None and not self.is_closed:
            self.is_closed = True
            if last_words:
                self.write(last_words)
            self._unregister()

    # -- called by the connection ------------------------------------------------------------------------

    def close_on_request(self, request_id: int) -> None:
        """Handle CLOSE_PRODUCER: answer after the receipts of all earlier SENDs, or after these SENDs were dropped."""
        self.is_closed = True

        def closed() -> None:
            self._leave_topic()
            self.connection.write(commands.success(request_id))

        if self.topic is None:
            closed()
        else:
            self.topic.log.publisher.when_settled(closed)
        self._unregister()

    def revoke(self) -> None:
        """Close the producer, because its role lost the permission to produce.

        The client reconnects and is rejected.
        """
        if self.topic is not None:
            self.topic.producers.leave(self)
        self.close()

    def detach(self) -> None:
        """Remove the producer from its topic, because the connection is closed."""
        self.is_closed = True
        self._leave_topic()
        self.lane.close()

    def stats(self) -> PublisherStats:
        sent, peer = self.sent, self.connection.peer
        rate, throughput = sent.per_second(self.connection.context.clock.monotonic())
        return PublisherStats(
            producer_id=self.producer_id,
            producer_name=self.name,
            access_mode=_MODE_WORDS[self.admission.mode],
            address=peer.address,
            client_version=peer.client_version,
            connected_since=iso_time(self.created_ms),
            metadata=self.metadata,
            msg_rate_in=rate,
            msg_throughput_in=throughput,
            average_msg_size=sent.bytes / sent.messages if sent.messages else 0.0,
            entries_in=sent.entries,
        )

    def _leave_topic(self) -> None:
        if self.topic is not None:
            self.topic.producers.leave(self)

    def _unregister(self) -> None:
        self.connection.forget_producer(self.producer_id, self)
        self.lane.close()
