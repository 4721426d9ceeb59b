"""The consumer of one partition (or of a topic that has none): entries in, permits and acks out.

Entries wait undecoded in the consumer's inbox; they are decoded when the user has come to them. So what a reconnect or
a rewind throws away was never paid for, and the queue's memory is what came from the socket.

*Generations*: a reconnect, a seek and a rewind make everything stale that was delivered before and not yet taken: the
broker sends it again. Stale entries and messages are skipped when their turn comes, by comparing one number.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from quire.client.acks import Acks
from quire.client.attachment import Attachable
from quire.client.connection import Connection, ConsumerEnd
from quire.client.entry import Entry, from_words, to_words
from quire.client.errors import MessageUndecodable
from quire.client.messages import EARLIEST, Message, MessageId
from quire.client.permits import Permits
from quire.client.routing import partition_index
from quire.client.settings import ConsumerSettings
from quire.client.subscribe import SubscribeAs
from quire.runtime.errors import OutcomeUnknown, QuireError, Unavailable
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.frame import Delivery
from quire.wire.message import DecodedMessage, Undecodable, decode, is_batch, read_metadata

SEEK_PAUSE_S: Final = 0.05

_log = logging.getLogger(__name__)


class Arrival:
    """An entry as it came, waiting to be decoded. `attempt` counts attachments: permits belong to one."""

    __slots__ = ("attempt", "delivery", "generation", "source")

    def __init__(self, source: PartitionConsumer, delivery: Delivery, generation: int, attempt: int) -> None:
        self.source = source
        self.delivery = delivery
        self.generation = generation
        self.attempt = attempt


class Sink(Protocol):
    """Where arrivals go: the inbox of the consumer."""

    def put(self, arrival: Arrival) -> None: ...
    def fail(self, error: QuireError) -> None: ...


class PartitionConsumer(Attachable):
    """One consumer of one topic."""

    def __init__(
        self,
        topic: str,
        consumer_id: int,
        how: SubscribeAs,
        settings: ConsumerSettings,
        sink: Sink,
        timeout_s: float,
    ) -> None:
        super().__init__(topic, consumer_id)
        self.generation = 0
        self.is_active = True
        """Failover: whether this consumer is the one that gets the messages."""
        self.last_taken: Message | None = None
        self._partition = partition_index(topic)
        self._how = how
        self._settings = settings
        self._sink = sink
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._may_attach = asyncio.Event()
        self._may_attach.set()
        self._start, self._start_inclusive = how.start, how.start_inclusive
        self._is_sought = False
        """A seek moved the cursor, and it is not attached again since."""
        self._attempt = 0
        self._permits = Permits(settings.prefetch_messages_max, settings.prefetch_bytes_max)
        self._acks = Acks(settings.batch_index_ack)
        self._unanswered: tuple[list[pb.MessageIdData], bool] | None = None
        """The last ack that was sent without asking for an answer, and whether it is cumulative."""
        self._acks_are_lost = False
        """Some were sent without asking for an answer, on a connection that is gone."""
        self._ack_timer: asyncio.TimerHandle | None = None
        self._nacked: dict[tuple[int, int], pb.MessageIdData] = {}
        self._nack_timer: asyncio.TimerHandle | None = None

    # -- What arrives --

    def delivered(self, delivery: Delivery) -> None:
        self._sink.put(Arrival(self, delivery, self.generation, self._attempt))

    def active_changed(self, is_active: bool) -> None:
        self.is_active = is_active

    def open(self, arrival: Arrival) -> list[Message]:
        """The messages of an arrival that are for the user, none when it is stale. Raises `MessageUndecodable`."""
        delivery = arrival.delivery
        body = delivery.body
        if arrival.generation != self.generation:
            if arrival.attempt == self._attempt:
                self._take(_message_count(delivery), 0)
            return []
        place = commands.position(body.message_id)
        try:
            decoded = _decode(delivery)
        except Undecodable as error:
            self._take(_message_count(delivery), len(delivery.entry))
            one = MessageId(*place, -1, self._partition, 0, self.topic)
            raise MessageUndecodable(f"message {one} of {self.topic}: {error}", one) from None
        count = len(decoded)
        entry = Entry(self, place, self._partition, count, body.redelivery_count, arrival.generation)
        if body.ack_set:
            entry.unacked &= from_words(list(body.ack_set))
        self._take(entry.unacked.bit_count(), len(delivery.entry))
        return self._wanted(entry, decoded)

    def _wanted(self, entry: Entry, decoded: list[DecodedMessage]) -> list[Message]:
        if (entry.ledger_id, entry.entry_id) == self._start[:2]:
            entry.unacked &= self._behind_start(self._start)
        if self._how.durable:
            self._start = self._how.start  # what comes from now on, the cursor says, whoever moves it
        if any(one.compacted_out for one in decoded):
            entry.unacked &= ~sum(1 << i for i, one in enumerate(decoded) if one.compacted_out)
        unacked = entry.unacked
        if not unacked and self._how.durable:
            self.ack_id(MessageId(entry.ledger_id, entry.entry_id))  # nobody else will
        if unacked == (1 << len(decoded)) - 1:
            return [Message(entry, one) for one in decoded]
        return [Message(entry, one) for i, one in enumerate(decoded) if unacked >> i & 1]

    def _behind_start(self, start: MessageId) -> int:
        """Of the entry where this begins, the bits of messages that are wanted: a broker begins at whole entries."""
        if start.batch_index >= 0:
            return -1 << start.batch_index + (not self._start_inclusive)
        return -1 if self._start_inclusive else 0

    def _take(self, messages: int, size: int) -> None:
        """The user has come to so many messages of `size` bytes together."""
        self._permits.take(messages, size)
        self._grant_permits()

    def _grant_permits(self) -> None:
        if self._connection is not None and (more := self._permits.due()):
            self._connection.write(commands.flow(self._id, more))

    # -- Acks --

    def ack(self, entry: Entry, index: int) -> None:
        self._acks.ack(entry, index)
        self._send_acks_soon()

    def ack_id(self, one: MessageId) -> None:
        self._acks.ack_id(one)
        self._send_acks_soon()

    def ack_cumulative(self, one: MessageId) -> None:
        self._acks.ack_cumulative(one)
        self._send_acks_soon()

    def _send_acks_soon(self) -> None:
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_later(self._settings.ack_delay_ms / 1000, self._send_acks)
        elif len(self._acks) >= self._settings.ack_group_max:
            self._ack_timer.cancel()
            self._send_acks()

    def _send_acks(self) -> None:
        """Tell the broker, without an answer. What is lost with a connection comes again."""
        self._ack_timer = None
        if self._connection is None:
            return  # `attach` sends them
        ids, cumulative = self._acks.take()
        if ids:
            self._connection.write(commands.ack(self._id, ids))
            self._unanswered = ids[-1:], False
        if cumulative is not None:
            self._connection.write(commands.ack(self._id, [cumulative], cumulative=True))
            self._unanswered = [cumulative], True

    async def flush_acks(self) -> None:
        """Return when the broker has answered all acks so far. Raises `OutcomeUnknown`, or what it refuses.

        Acks take effect in order, so an answer to the last stands for those that asked for none, on one connection.
        """
        if self._acks_are_lost:
            self._acks_are_lost = False
            raise OutcomeUnknown(
                f"acks of {self.topic} were under way when a connection was lost; what did not arrive comes again"
            )
        if not len(self._acks) and self._unanswered is None:
            return
        connection = await self._attached()
        ids, cumulative = self._acks.take()
        kinds = [(ids, False), ([cumulative] if cumulative is not None else [], True)]
        if not any(some for some, _ in kinds) and self._unanswered is not None:
            kinds = [self._unanswered]
        try:
            for some, is_cumulative in kinds:
                if some:
                    await self._ack_and_wait(connection, some, cumulative=is_cumulative)
        except Unavailable as error:
            self._acks.restore(ids)
            raise OutcomeUnknown(f"whether acks of {self.topic} arrived is not known: {error}") from None
        self._unanswered = None

    async def _ack_and_wait(
        self, connection: Connection, ids: list[pb.MessageIdData], *, cumulative: bool
    ) -> None:
        await connection.request(
            f"an ack of {len(ids)} ids of {self.topic}",
            lambda request_id: commands.ack(self._id, ids, cumulative=cumulative, request_id=request_id),
            pb.CommandAckResponse,
        )

    # -- Again, please --

    def nack(self, one: MessageId) -> None:
        """Have it redelivered after the nack delay, with what else is asked for until then."""
        key = one.ledger_id, one.entry_id
        self._nacked[key] = commands.message_id(*key, one.partition)
        if self._nack_timer is None:
            self._nack_timer = self._loop.call_later(self._settings.nack_delay_ms / 1000, self._redeliver)

    def _redeliver(self) -> None:
        self._nack_timer = None
        nacked, self._nacked = self._nacked, {}
        if self._connection is None:
            return  # a new connection gets all that is unacknowledged
        self._send_acks()
        if self._how.deals_singly:
            self._connection.write(commands.redeliver(self._id, nacked.values()))
        else:
            self.generation += 1
            self._connection.write(commands.redeliver(self._id))

    # -- Requests --

    async def _attached(self) -> Connection:
        """The connection, once there is one. Raises `Unavailable` after the operation timeout."""
        assert self.attachment is not None
        while self._connection is None:
            await self.attachment.ready()
        return self._connection

    async def ends(self) -> tuple[MessageId, MessageId]:
        """The topic's last message and the subscription's mark-delete position; `EARLIEST` stands for none."""
        answer = await (await self._attached()).request(
            f"asking for the last message of {self.topic}",
            lambda request_id: commands.ask_last_message_id(self._id, request_id),
            pb.CommandGetLastMessageIdResponse,
        )
        last, mark = answer.last_message_id, answer.consumer_mark_delete_position
        if commands.position(last)[1] < 0:
            return EARLIEST, EARLIEST
        return (
            MessageId.from_wire(last, self.topic, last.batch_index, last.batch_size),
            MessageId.from_wire(mark, self.topic, -1, 0),
        )

    async def seek(self, to: MessageId | None, publish_time_ms: int | None) -> None:
        """Move the subscription's cursor and be back; then nothing comes that was delivered before.

        It is tried again while no broker answers, until the operation timeout: a seek may be done twice.
        """
        end_s = self._loop.time() + self._timeout_s
        while True:
            connection = await self._attached()
            self._may_attach.clear()
            try:
                await self._seek_on(connection, to, publish_time_ms)
                break
            except Unavailable:
                if self._loop.time() > end_s:
                    raise
            finally:
                self._may_attach.set()
            await asyncio.sleep(SEEK_PAUSE_S)
        await self._attached()

    async def _seek_on(
        self, connection: Connection, to: MessageId | None, publish_time_ms: int | None
    ) -> None:
        data = _sought(to) if to is not None else None
        await connection.request(
            f"a seek on {self.topic}",
            lambda request_id: commands.seek(self._id, request_id, data, publish_time_ms),
            pb.CommandSuccess,
        )
        self._acks.take()
        self._nacked.clear()
        self.generation += 1
        self.last_taken = None
        self._start, self._start_inclusive, self._is_sought = to or EARLIEST, True, True

    async def unsubscribe(self) -> None:
        await (await self._attached()).request(
            f"unsubscribing {self._how.subscription} from {self.topic}",
            lambda request_id: commands.unsubscribe(self._id, request_id),
            pb.CommandSuccess,
        )

    # -- Attaching --

    async def attach(self, connection: Connection) -> None:
        await self._may_attach.wait()
        self._begin_again()
        what = f"the subscription {self._how.subscription} on {self.topic}"
        await self._enter(connection, what, self._request, pb.CommandSuccess)
        self._connection = connection
        if self._how.durable and not self._is_sought:
            self._start = self._how.start
        self._is_sought = False
        self._send_acks()
        self._grant_permits()

    def _begin_again(self) -> None:
        self.generation += 1
        self._attempt += 1
        if self._unanswered is not None:
            self._acks_are_lost, self._unanswered = True, None
        self._permits.begin()
        if not self._how.durable and self.last_taken is not None:
            self._start, self._start_inclusive = self.last_taken.id, False

    def _request(self, request_id: int) -> bytes:
        start, inclusive = self._start, self._start_inclusive
        if self._how.durable:
            start = self._how.start
        return commands.subscribe(self._how.request(self.topic, self._id, request_id, start, inclusive))

    def _members(self, connection: Connection) -> dict[int, ConsumerEnd]:
        return connection.consumers

    def _close_command(self, request_id: int) -> bytes:
        return commands.close_consumer(self._id, request_id)

    def fail(self, error: QuireError) -> None:
        self._connection = None
        self._sink.fail(error)

    async def close(self) -> None:
        """Send what acks wait, tell the broker. Never raises for the broker's sake."""
        connection = self._connection
        try:
            if connection is not None:
                await self.flush_acks()
        except QuireError as error:
            _log.warning("%s", error)
        finally:
            for timer in (self._ack_timer, self._nack_timer):
                if timer is not None:
                    timer.cancel()
            if self.attachment is not None:
                await self.attachment.stop()
        await self._take_leave(connection, f"closing a consumer on {self.topic}")


def _decode(delivery: Delivery) -> list[DecodedMessage]:
    if not delivery.checksum_ok:
        raise Undecodable("it does not match its checksum")
    return decode(delivery.entry)


def _sought(to: MessageId) -> pb.MessageIdData:
    """The id for a SEEK; of a message in a batch with the bits from it on, which the cursor keeps."""
    data = to.to_wire()
    if to.batch_index > 0 and to.batch_size:
        data.ack_set.extend(to_words((1 << to.batch_size) - (1 << to.batch_index), to.batch_size))
    return data


def _message_count(delivery: Delivery) -> int:
    """How many permits an entry used that was not decoded."""
    if delivery.body.ack_set:
        return from_words(list(delivery.body.ack_set)).bit_count()
    try:
        metadata, _ = read_metadata(delivery.entry)
    except Undecodable:
        return 1
    return metadata.num_messages_in_batch if is_batch(metadata) else 1
