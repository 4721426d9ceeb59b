"""The consumer of one partition (or of a topic that has none): entries in, permits and acks out.

Entries wait unopened in the consumer's inbox; they are decoded when the user has come to them. So what a reconnect or
a rewind throws away was never paid for, and the queue's memory is what came from the socket.

*Generations*: a reconnect, a seek and a rewind make everything stale that was delivered before and not yet taken: the
broker sends it again. Stale entries and messages are skipped when their turn comes, by comparing one number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from quire.client.acknowledging import Acknowledging
from quire.client.attachment import Attachable
from quire.client.beginning import Beginning, sought_id
from quire.client.connection import Connection, ConsumerEnd
from quire.client.crypto import Decryptor
from quire.client.dead_letter import DeadLetters, LastChances
from quire.client.entry import Entry, from_words
from quire.client.errors import MessageUndecodable
from quire.client.messages import EARLIEST, Message, MessageId, key_bytes
from quire.client.nack import Ids, Place, Redelivery
from quire.client.opening import Opening, message_count
from quire.client.permits import Permits
from quire.client.routing import partition_index
from quire.client.schema import Schema
from quire.client.settings import ConsumerSettings
from quire.client.subscribe import SubscribeAs
from quire.client.writers import Writers
from quire.runtime.clock import Clock
from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.frame import Delivery
from quire.wire.message import DecodedMessage, Undecodable

SEEK_PAUSE_S: Final = 0.05

_log = logging.getLogger(__name__)


class Arrival:
    """An entry as it came, waiting to be opened. `attempt` counts attachments: permits belong to one."""

    __slots__ = ("attempt", "delivery", "generation", "messages", "source")

    def __init__(self, source: PartitionConsumer, delivery: Delivery, generation: int, attempt: int) -> None:
        self.source = source
        self.delivery = delivery
        self.generation = generation
        self.attempt = attempt
        self.messages: list[Message[Any]] | None = None
        """Opened, and waiting for the schema that it was written with."""


class Sink(Protocol):
    """Where arrivals go: the inbox of the consumer."""

    def put(self, arrival: Arrival) -> None: ...
    def look_again(self) -> None: ...


class Shared(NamedTuple):
    """What the partitions of one consumer have in common."""

    settings: ConsumerSettings
    schema: Schema[Any]
    decryptor: Decryptor | None
    dead_letters: DeadLetters | None
    sink: Sink
    failed: Callable[[PartitionConsumer, QuireError], None]
    """A partition will never be attached again."""
    clock: Clock
    tasks: Tasks


class PartitionConsumer(Attachable):
    """One consumer of one topic."""

    def __init__(self, topic: str, consumer_id: int, how: SubscribeAs, shared: Shared) -> None:
        super().__init__(topic, consumer_id)
        self.generation = 0
        self.is_active = True
        """Failover: whether this consumer is the one that gets the messages."""
        self.has_ended = False
        """The topic takes no more messages, and all it has were acknowledged."""
        self._last_taken: Message[Any] | None = None
        self._partition = partition_index(topic)
        self._how, self._settings = how, shared.settings
        self._schema, self._clock, self._sink = shared.schema, shared.clock, shared.sink
        self._failed = shared.failed
        self._tasks = shared.tasks
        self._may_attach = asyncio.Event()
        self._may_attach.set()
        self._beginning = Beginning(self._how)
        self._attempt = 0
        self._permits = Permits(self._settings.prefetch_messages_max, self._settings.prefetch_bytes_max)
        self._acking = Acknowledging(self, consumer_id, self._settings)
        self._redelivery = Redelivery(self._settings, self._again)
        self._tracks_time = self._settings.ack_timeout_ms > 0
        self._has_letters = shared.dead_letters is not None
        self._chances = LastChances(shared.dead_letters, self._tasks, self.ack, self._redelivery)
        give_back = self._give_back if how.dispatches_singly else None
        self._opening = Opening(self._settings, shared.decryptor, self._void, give_back)
        self._held_back: MessageId | None = None
        """What is acknowledged cumulatively when chunks before it are given up."""
        self._chunks: dict[Place, tuple[pb.MessageIdData, ...]] = {}
        """Of messages in chunks, by the entry of the last, the ids of those before."""
        self._writers = Writers(self, self._schema, self._tasks, self._sink.look_again)

    # -- What arrives --

    def delivered(self, delivery: Delivery) -> None:
        self._sink.put(Arrival(self, delivery, self.generation, self._attempt))

    def active_changed(self, is_active: bool) -> None:
        self.is_active = is_active

    def reached_end(self) -> None:
        self.has_ended = True

    def open(self, arrival: Arrival) -> list[Message[Any]] | None:
        """The messages of an arrival that are for the user, none when it is stale; None: it must wait.

        Raises `MessageUndecodable`.
        """
        if arrival.generation != self.generation:
            if arrival.attempt == self._attempt and arrival.messages is None:
                self._take(message_count(arrival.delivery, _unacked(arrival.delivery)), 0)
            return []
        if arrival.messages is None:
            arrival.messages = self._opened(arrival)
        messages = arrival.messages
        if messages and not self._writers.has(messages[0].schema_version):
            return None
        return messages

    def _opened(self, arrival: Arrival) -> list[Message[Any]]:
        delivery = arrival.delivery
        body = delivery.body
        place = commands.position(body.message_id)
        unacked = _unacked(delivery)
        size = len(delivery.entry)
        try:
            opened = self._opening.open(delivery, self._clock.now_ms())
        except Undecodable as error:
            self._take(message_count(delivery, unacked), size)
            one = MessageId(*place, -1, self._partition, 0, self.topic)
            raise MessageUndecodable(f"message {one} of {self.topic}: {error}", one) from None
        decoded, version, chunks = opened
        if not decoded:
            self._take(1, size)
            return []
        count = len(decoded)
        entry = Entry(
            self, place, self._partition, count, body.redelivery_count, arrival.generation, version, chunks
        )
        if unacked is not None:
            entry.unacked &= unacked
        self._take(entry.unacked.bit_count(), size)
        if chunks:
            self._chunks[place] = chunks
        return self._chances.living(entry, self._wanted(entry, decoded))

    def _wanted(self, entry: Entry, decoded: list[DecodedMessage]) -> list[Message[Any]]:
        entry.unacked &= self._beginning.wanted(entry.place)
        if any(one.compacted_out for one in decoded):
            entry.unacked &= ~sum(1 << i for i, one in enumerate(decoded) if one.compacted_out)
        unacked = entry.unacked
        if not unacked and self._how.durable:
            self._acking.void(entry.ids)  # nobody else will
        if unacked == (1 << len(decoded)) - 1:
            return [Message(entry, one) for one in decoded]
        return [Message(entry, one) for i, one in enumerate(decoded) if unacked >> i & 1]

    def taken(self, message: Message[Any]) -> None:
        """The user has it now."""
        self._last_taken = message
        if self._tracks_time:
            entry = message._entry
            self._redelivery.handed_out(entry.place, entry.ids)
        if self._has_letters:
            self._chances.taken(message)

    def value_of(self, entry: Entry, decoded: DecodedMessage) -> Any:
        """The payload as the schema has it."""
        if decoded.payload is None:
            return None
        writer = self._writers.get(entry.schema_version)
        return self._schema.decode(decoded.payload, key_bytes(decoded), writer)

    def _take(self, messages: int, size: int) -> None:
        """The user has come to so many messages of `size` bytes together."""
        self._permits.take(messages, size)
        self._grant_permits()

    def _grant_permits(self) -> None:
        if self.connection is not None and (more := self._permits.due()):
            self.connection.write(commands.flow(self._id, more))

    # -- Acks --

    def ack(self, entry: Entry, index: int) -> None:
        self._acking.acks.ack(entry, index)
        if not entry.unacked:
            self._done_with(entry.place)
        self._acking.send_soon()

    def ack_id(self, one: MessageId) -> None:
        self._acking.acks.add(self._chunks.get(one[:2], ()))
        self._acking.acks.ack_id(one)
        if one.batch_index < 0:
            self._done_with(one[:2])
        self._acking.send_soon()

    def ack_cumulative(self, one: MessageId) -> None:
        """But for a message in chunks that is not whole yet: its user has not seen it."""
        begun = self._opening.first_chunk
        if begun is not None and (first := commands.position(begun)) <= one[:2]:
            self._held_back = max(one, self._held_back or one, key=lambda some: some.place)
            if not first[1]:
                return
            one = MessageId(first[0], first[1] - 1, partition=self._partition)
        self._acking.acks.ack_cumulative(one)
        self._redelivery.acknowledged_up_to(one[:2])
        self._chunks = {place: ids for place, ids in self._chunks.items() if place > one[:2]}
        self._acking.send_soon()

    def _done_with(self, place: Place) -> None:
        self._redelivery.acknowledged(place)
        self._chances.forget(place)
        self._chunks.pop(place, None)

    def _void(self, ids: Sequence[pb.MessageIdData]) -> None:
        """Entries that will never be messages."""
        self._acking.void(ids)
        held_back, self._held_back = self._held_back, None
        if held_back is not None:
            self.ack_cumulative(held_back)

    def _give_back(self, ids: Sequence[pb.MessageIdData]) -> None:
        """Chunks whose others may be with another consumer."""
        for one in ids:
            self._redelivery.nack(commands.position(one), [one], 0)

    async def flush_acks(self) -> None:
        await self._acking.flush()

    # -- Again, please --

    def nack(self, one: MessageId, redelivery_count: int) -> None:
        """Have it redelivered after the nack delay, with what else is asked for until then."""
        ids = [*self._chunks.get(one[:2], ()), commands.message_id(*one[:2], one.partition)]
        self._redelivery.nack(one[:2], ids, redelivery_count)

    def _again(self, due: dict[Place, Ids]) -> None:
        self._chances.bury(due)
        if self.connection is None or not due:
            return  # a new connection gets all that is unacknowledged
        self._acking.send()
        if self._how.dispatches_singly:
            self.connection.write(commands.redeliver(self._id, [one for ids in due.values() for one in ids]))
        else:
            self._all_comes_again()
            self.connection.write(commands.redeliver(self._id))

    def _all_comes_again(self) -> None:
        """Everything that is unacknowledged does: what was delivered before is stale."""
        self.generation += 1
        self._opening.forget()
        self._held_back = None
        self._redelivery.forget()
        self._chances.forget_all()

    # -- Requests --

    async def ends(self) -> tuple[MessageId, MessageId]:
        """The topic's last message and the subscription's mark-delete position; `EARLIEST` stands for none."""
        answer = await (await self.attached()).request(
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

    async def backlog(self) -> int:
        """Messages of the subscription that nobody acknowledged. Raises `Unavailable`, as where they cannot be read."""
        answer = await (await self.attached()).request(
            f"asking for the backlog of {self.topic}",
            lambda request_id: commands.ask_consumer_stats(self._id, request_id),
            pb.CommandConsumerStatsResponse,
        )
        return answer.msgBacklog

    async def seek(self, to: MessageId | None, publish_time_ms: int | None) -> None:
        """Move the subscription's cursor and be back; then nothing comes that was delivered before.

        It is tried again while no broker answers, until the operation timeout: a seek may be done twice.
        """
        assert self.attachment is not None
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.attachment.timeout_s
        while True:
            connection = await self.attached()
            self._may_attach.clear()
            try:
                await self._seek_on(connection, to.beginning if to is not None else None, publish_time_ms)
                break
            except Unavailable:
                if loop.time() > end_s:
                    raise
            finally:
                self._may_attach.set()
            await asyncio.sleep(SEEK_PAUSE_S)
        await self.attached()

    async def _seek_on(
        self, connection: Connection, to: MessageId | None, publish_time_ms: int | None
    ) -> None:
        data = sought_id(to) if to is not None else None
        await connection.request(
            f"a seek on {self.topic}",
            lambda request_id: commands.seek(self._id, request_id, data, publish_time_ms),
            pb.CommandSuccess,
        )
        self._acking.acks.take()
        self._all_comes_again()
        self._last_taken = None
        self._beginning.sought(to or EARLIEST)

    async def unsubscribe(self) -> None:
        await (await self.attached()).request(
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
        self.connection = connection
        self._beginning.attached()
        self._acking.send()
        self._grant_permits()

    def _begin_again(self) -> None:
        first_chunk = self._opening.first_chunk
        self._all_comes_again()
        self._attempt += 1
        self._acking.connection_changes()
        self._permits.begin()
        if self._last_taken is not None:
            begun = MessageId.from_wire(first_chunk, self.topic, -1, 0) if first_chunk is not None else None
            self._beginning.go_on_after(self._last_taken.id, begun)

    def _request(self, request_id: int) -> bytes:
        start = self._beginning.start, self._beginning.start_inclusive
        body = self._how.request(self.topic, self._id, request_id, *start)
        if (info := self._schema.info) is not None:
            body.schema.CopyFrom(info)
        return commands.subscribe(body)

    def _members(self, connection: Connection) -> dict[int, ConsumerEnd]:
        return connection.consumers

    def _close_command(self, request_id: int) -> bytes:
        return commands.close_consumer(self._id, request_id)

    def fail(self, error: QuireError) -> None:
        self.connection = None
        self._failed(self, error)

    async def close(self) -> None:
        """Send what acks wait, tell the broker. Never raises for the broker's sake."""
        connection = self.connection
        try:
            if connection is not None:
                await self.flush_acks()
        except QuireError as error:
            _log.warning("%s", error)
        finally:
            self._acking.stop()
            self._redelivery.stop()
            self._opening.stop()
            if self.attachment is not None:
                await self.attachment.stop()
        await self._close_at_broker(connection, f"closing a consumer on {self.topic}")


def _unacked(delivery: Delivery) -> int | None:
    """The bit set that came with an entry of which some messages are acknowledged."""
    return from_words(list(delivery.body.ack_set)) if delivery.body.ack_set else None
