"""Producers of one connection: PRODUCER, SEND, CLOSE_PRODUCER.

A SEND names its producer by a number that the client chose. The way of a run of SENDs through here is two calls:
`Connection.carry_out` finds the producer, `ProducerEnd.publish` hands the run to the topic's publisher; or to the
topic, when that limits or deduplicates what it takes.

No SEND_ERROR is ever sent but ChecksumError and, for a message larger than its topic's policy allows, NotAllowedError,
because any but the first makes C++ clients reconnect and send the same message for ever: what cannot be published is
refused when the producer is created, or costs the connection.

A producer that waits for exclusive access is told so by a PRODUCER_SUCCESS with `producer_ready` false, and gets a
second one when its turn has come. `topic` is set as soon as the topic knows of it, `target` only when it may publish.

What was sent and waits when its producer is closed (fenced, by a quota, with its topic, because the same producer came
back over another connection) is dropped: nobody outside a topic publishes to it, and the client sends it again if it is
let in anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from quire.runtime.clock import iso_time
from quire.runtime.errors import ProtocolError, QuireError, Unavailable
from quire.runtime.limits import ENDS_PER_CONNECTION_MAX
from quire.serving.model.ports import NotAllowed
from quire.serving.session.bounds import refused_names, refused_properties
from quire.serving.session.connection import Connection, Handler
from quire.serving.session.lane import Lane
from quire.serving.session.permissions import permit
from quire.serving.session.requests import retry_until_deadline
from quire.serving.topic.producers import AccessMode, Admission, Stage
from quire.serving.topic.runs import PublishRun
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.commands import Command
from quire.wire.error_codes import NO_TRANSACTIONS
from quire.wire.frame import Send

if TYPE_CHECKING:
    from quire.serving.topic.topic import AnyTopic


_MODE_WORDS: Final = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}


class ProducerEnd:
    """The session's end of one producer (a `ProducerPort`). Of its PRODUCER it keeps only what is asked for later."""

    __slots__ = (
        "admission",
        "connection",
        "created_ms",
        "entries_in",
        "is_closed",
        "lane",
        "metadata",
        "name",
        "producer_id",
        "request_id",
        "schema_version",
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
        self.name = body.producer_name or connection.host.new_producer_name()
        self.write: Callable[[Buffer], None] = connection.outbound.write
        self.lane = Lane(connection)
        self.topic: AnyTopic | None = None
        self.target: AnyTopic | None = None
        self.admission = Admission(
            AccessMode(body.producer_access_mode),
            body.epoch,
            bool(body.producer_name) and body.user_provided_producer_name,
            body.topic_epoch if body.HasField("topic_epoch") else None,
        )
        self.schema_version = b""
        self.is_closed = False
        self.created_ms = connection.host.clock.now_ms()
        self.entries_in = 0

    # -- SEND ------------------------------------------------------------------------------------------

    def publish(self, run: PublishRun) -> None:
        """Hand a run to the topic; after what is under way, and when the topic takes it."""
        target = self.target
        if (
            target is not None
            and (publisher := target.straight) is not None
            and not self.lane.is_busy
            and publisher.held_bytes < (share := publisher.share).topic_bytes_max
            and share.held_bytes < share.bytes_max
        ):
            self.entries_in += len(run.entries)
            publisher.publish(self, run)
        elif self.lane.is_busy:
            self.lane.put_off(run)
        elif target is None:
            self._refuse_early()
        elif not self._takes(target):
            self.lane.put_back(run)
        else:
            if (limiter := target.applied.publish_limiter) is not None:
                limiter.passed(sum(run.counts) if run.counts else len(run), run.byte_count)
            self._pass(target, run)

    def _takes(self, target: AnyTopic) -> bool:
        """Whether the topic takes something now; else the lane is stopped until it does."""
        publisher, limiter = target.log.publisher, target.applied.publish_limiter
        if publisher.is_full:
            self.lane.pause(publisher.when_drained)
        elif limiter is not None and not limiter.is_open():
            self.lane.pause(limiter.wait)
        return not self.lane.is_busy

    def _pass(self, target: AnyTopic, run: PublishRun) -> None:
        """Publish what of a run is not too large for the topic, and refuse the rest, in order."""
        bytes_max = target.applied.policies.message_bytes_max
        self.entries_in += len(run)
        if not bytes_max or max(map(len, run.entries)) <= bytes_max:
            target.publish(self, run)
            return
        start = 0
        for at, size in enumerate(map(len, run.entries)):
            if size > bytes_max:
                if at > start:
                    target.publish(self, run.pick(range(start, at)))
                start = at + 1
                self._refuse_size(target, run.sequence_ids()[at][0], size)
        if start < len(run):
            target.publish(self, run.pick(range(start, len(run))))

    def _refuse_size(self, target: AnyTopic, sequence_id: int, size: int) -> None:
        allowed = target.applied.policies.message_bytes_max
        text = f"a message of {size} bytes is too large: topic {target.name} takes {allowed} at most"
        self._refuse_one(target, sequence_id, pb.NotAllowedError, text)

    def _refuse_one(self, target: AnyTopic, sequence_id: int, code: pb.ServerError, text: str) -> None:
        """A SEND_ERROR, in order: clients compare it with the oldest message that they have no receipt for."""
        refusal = commands.send_error(self.producer_id, sequence_id, code, text)
        target.log.publisher.when_answered(lambda: self.write(refusal))

    def publish_special(self, send: Send) -> None:
        """One SEND that is damaged, or a chunk; what we do not take costs the connection."""
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
            if 0 < target.applied.policies.message_bytes_max < len(send.entry):
                self._refuse_size(target, send.sequence_id, len(send.entry))
                return
        self.entries_in += 1
        target.publish_chunk(self, send)

    def _refuse_early(self) -> None:
        """A client that sent after its PRODUCER without waiting hears what became of that; nobody may publish
        that was told to wait."""
        if self.topic is not None and not self.is_closed:
            self.connection.refuse(ProtocolError("a SEND of a producer that waits for exclusive access"))

    # -- life ------------------------------------------------------------------------------------------

    async def open(self, body: pb.CommandProducer) -> None:
        """Find the topic, be admitted, answer. The connection may be gone when this ends."""
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
        """Be admitted to the topic."""
        await permit(self.connection, pb.BaseCommand.PRODUCER, body)
        if body.initial_subscription_name:
            await permit(self.connection, pb.BaseCommand.SUBSCRIBE, body, body.initial_subscription_name)
        topic = await self.connection.host.topics.open(body.topic)
        schema = body.schema if body.HasField("schema") else None
        self.schema_version = await self.connection.host.topics.admit_producer_schema(topic, schema)
        if self.connection.is_closed:
            raise Unavailable("the connection is closed")
        if body.initial_subscription_name:
            await self.connection.host.topics.ensure_subscription(topic, body.initial_subscription_name)
        await topic.admit(self)
        return topic

    def ask_again(self, body: pb.CommandProducer) -> None:
        """A client that gave up its PRODUCER, or thinks that it lost the producer, asks for the same one."""
        if self.target is None:
            code, text = (
                pb.ServiceNotReady,
                f"producer {self.producer_id} of this connection is being created",
            )
        elif body.topic != self.topic_name or body.producer_name not in ("", self.name):
            code, text = pb.ProducerBusy, f"producer {self.producer_id} of this connection is another one"
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

    # -- what the topic does to it: ProducerPort --------------------------------------------------------

    def ready(self, last_sequence_id: int) -> None:
        self.target = self.topic
        self._succeed(self.request_id, last_sequence_id, is_ready=True)

    def fenced(self, error: QuireError) -> None:
        why = self.connection.why_refused("PRODUCER", error)
        self._close(commands.error(self.request_id, *why))

    def replaced(self) -> None:
        """Its client has it on another connection now. What this one still sends is nobody's."""
        self._close(b"")

    def close(self, service_url: str = "") -> None:
        """The topic sends the client away; it will begin again at `service_url`, or look up where."""
        self._close(commands.close_producer(self.producer_id, commands.NO_REQUEST, service_url))

    def _close(self, last_words: bytes) -> None:
        """One that is still being let in has no answer yet, and gets an error, or is let in by whoever serves the topic
        then.
        """
        if self.topic is not None and not self.is_closed:
            self.is_closed = True
            if last_words:
                self.write(last_words)
            self._unregister()

    # -- what the connection does to it ----------------------------------------------------------------

    def close_on_request(self, request_id: int) -> None:
        """CLOSE_PRODUCER: answered after the receipts of all that was sent, or when there will be none."""
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
        """Its role may not produce any more: its client looks the topic up again, and is told so."""
        if self.topic is not None:
            self.topic.producers.leave(self)
        self.close()

    def detach(self) -> None:
        """The connection is gone."""
        self.is_closed = True
        self._leave_topic()
        self.lane.close()

    def stats(self) -> dict[str, Any]:
        """As Pulsar's `stats` show a publisher."""
        return {
            "producerId": self.producer_id,
            "producerName": self.name,
            "accessMode": _MODE_WORDS[self.admission.mode],
            "address": self.connection.peer.address,
            "clientVersion": self.connection.peer.client_version,
            "connectedSince": iso_time(self.created_ms),
            "entriesIn": self.entries_in,
            "metadata": self.metadata,
        }

    def _leave_topic(self) -> None:
        if self.topic is not None:
            self.topic.producers.leave(self)

    def _unregister(self) -> None:
        producers = self.connection.producers
        if producers.get(self.producer_id) is self:
            del producers[self.producer_id]
        self.lane.close()


def producer(connection: Connection, body: pb.CommandProducer) -> None:
    refusal = _refusal(connection, body)
    present = connection.producers.get(body.producer_id)
    if refusal:
        connection.refuse_request("PRODUCER", body.request_id, NotAllowed(refusal))
    elif present is not None:
        present.ask_again(body)
    else:
        end = connection.producers[body.producer_id] = ProducerEnd(connection, body)
        end.lane.run_exclusively(end.open(body), "PRODUCER")


def _refusal(connection: Connection, body: pb.CommandProducer) -> str:
    """Why this can never be granted; nothing when it can."""
    if body.txn_enabled:
        return NO_TRANSACTIONS
    if len(connection.producers) >= ENDS_PER_CONNECTION_MAX:
        return f"a connection has {ENDS_PER_CONNECTION_MAX} producers at most; open another one"
    return refused_names(
        {"the producer name": body.producer_name, "the subscription name": body.initial_subscription_name}
    ) or refused_properties("a producer's properties", body.metadata)


def close_producer(connection: Connection, body: pb.CommandCloseProducer) -> None:
    end = connection.producers.get(body.producer_id)
    if end is None:
        # Closed from here a moment ago: the client's request and our CLOSE_PRODUCER crossed.
        connection.write(commands.success(body.request_id))
    else:
        end.close_on_request(body.request_id)


def get_schema(connection: Connection, body: pb.CommandGetSchema) -> None:
    refusal = partial(commands.schema_failed, body.request_id)
    work = connection.answer("GET_SCHEMA", partial(_get_schema, connection, body), refusal)
    connection.requests.start(work, "GET_SCHEMA")


async def _get_schema(connection: Connection, body: pb.CommandGetSchema) -> bytes:
    await permit(connection, pb.BaseCommand.GET_SCHEMA, body)
    version = body.schema_version or None  # some clients send an empty one for the newest
    number, found = await connection.host.topics.find_schema(body.topic, version)
    return commands.schema_found(body.request_id, found, number)


def get_or_create_schema(connection: Connection, body: pb.CommandGetOrCreateSchema) -> None:
    refusal = partial(commands.schema_refused, body.request_id)
    work = connection.answer(
        "GET_OR_CREATE_SCHEMA", partial(_get_or_create_schema, connection, body), refusal
    )
    connection.requests.start(work, "GET_OR_CREATE_SCHEMA")


async def _get_or_create_schema(connection: Connection, body: pb.CommandGetOrCreateSchema) -> bytes:
    await permit(connection, pb.BaseCommand.GET_OR_CREATE_SCHEMA, body)
    topic = await connection.host.topics.open(body.topic)
    version = await connection.host.topics.admit_producer_schema(topic, body.schema)
    return commands.schema_stored(body.request_id, version)


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.PRODUCER: producer,
    pb.BaseCommand.CLOSE_PRODUCER: close_producer,
    pb.BaseCommand.GET_SCHEMA: get_schema,
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: get_or_create_schema,
}
