"""Entries of one partition that the broker delivered: decoded, handed to the application, acknowledged or redelivered.

Entries wait undecoded in the consumer's inbox, and are decoded when the application reaches them. So no work was spent
on entries that a reconnect or a rewind discards, and the queue uses only the memory of the received bytes. A *rewind*
is the redelivery of all unacknowledged entries.

Entries of all partitions queue up in their order of arrival. The first one is decoded as a whole, and its messages are
handed out one by one. A message leaves the inbox in the same step in which it is handed to the application, so a
cancelled `receive` loses nothing.

*Generations*: after a reconnect, a seek or a rewind the broker delivers untaken entries again, so their earlier
deliveries are stale. Stale entries and messages have an older generation number, and are skipped at the queue's head.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple, Protocol

from quire.client.acknowledging import Acknowledging, Attached
from quire.client.beginning import Beginning
from quire.client.crypto import Decryptor
from quire.client.dead_letter import DeadLetters, LastChances
from quire.client.entry import Entry
from quire.client.errors import MessageUndecodable
from quire.client.messages import Message, MessageId, key_bytes
from quire.client.nack import Ids, Place, Redelivery
from quire.client.opening import Opening, message_count, unacked_of
from quire.client.schema import Schema
from quire.client.settings import ConsumerSettings
from quire.client.subscribe import SubscribeAs
from quire.client.writers import Writers
from quire.runtime.clock import Clock
from quire.runtime.tasks import Tasks
from quire.wire import commands
from quire.wire.frame import Delivery
from quire.wire.message import DecodedMessage, Undecodable


class Arrival:
    """A received entry that waits to be decoded.

    `attempt` is the number of the attachment that received it; its permit is valid only for that attachment.
    """

    __slots__ = ("attempt", "delivery", "generation", "messages", "source")

    def __init__(self, source: Deliveries, delivery: Delivery, generation: int, attempt: int) -> None:
        self.source = source
        self.delivery = delivery
        self.generation = generation
        self.attempt = attempt
        self.messages: list[Message[Any]] | None = None
        """Decoded messages, which wait for the schema that they were written with."""


class Inbox:
    """Queue of messages of one consumer's partitions, in their order of arrival."""

    def __init__(self) -> None:
        self._arrived: deque[Arrival] = deque()
        self._ready: deque[Message[Any]] = deque()
        self._something = asyncio.Event()
        self._error: Exception | None = None

    @property
    def is_empty(self) -> bool:
        """True if no arrived message is left in the queue."""
        return not self._arrived and not self._ready

    def put(self, arrival: Arrival) -> None:
        self._arrived.append(arrival)
        self._something.set()

    def look_again(self) -> None:
        """Retry the first entry, because the schema that it waited for has arrived."""
        self._something.set()

    def fail(self, error: Exception) -> None:
        """Let `pop` raise `error` after the application has taken the messages that arrived before."""
        self._error = error
        self._something.set()

    def pop(self) -> Message[Any] | None:
        """Remove and return the next message, or return None. Raises `MessageUndecodable`, or the error of `fail`."""
        while True:
            while self._ready:
                message = self._ready.popleft()
                entry = message._entry
                source = entry.source
                if entry.generation == source.generation:
                    source.taken(message)
                    return message
            if not self._arrived:
                break
            arrival = self._arrived.popleft()
            opened = arrival.source.open(arrival)
            if opened is None:
                self._arrived.appendleft(arrival)
                break
            self._ready.extend(opened)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return None

    async def wait(self) -> Message[Any]:
        """Wait for the next message, remove and return it. Several tasks may wait."""
        while (message := self.pop()) is None:
            self._something.clear()
            await self._something.wait()
        return message


class Shared(NamedTuple):
    """Objects that all partitions of one consumer share."""

    settings: ConsumerSettings
    schema: Schema[Any]
    decryptor: Decryptor | None
    dead_letters: DeadLetters | None
    inbox: Inbox
    clock: Clock
    tasks: Tasks


class End(Attached, Protocol):
    """Interface of the partition's consumer, which grants permits to the broker."""

    partition: int

    def take(self, attempt: int, messages: int, size: int) -> None:
        """Count `messages` with `size` bytes in total as taken, and grant new permits."""
        ...


class Deliveries:
    """Entries of one partition, from their arrival to their acknowledgement."""

    def __init__(self, end: End, consumer_id: int, how: SubscribeAs, shared: Shared) -> None:
        self.generation = 0
        self.topic = end.topic
        self.beginning = Beginning(how)
        self.acking = Acknowledging(end, consumer_id, shared.settings)
        self._end = end
        self._id = consumer_id
        self._how = how
        self._shared = shared
        self._last_taken: Message[Any] | None = None
        self._redelivery = Redelivery(shared.settings, self._again)
        self._chances = LastChances(shared.dead_letters, shared.tasks, self.ack, self._redelivery)
        give_back = self._give_back if how.dispatches_singly else None
        self._opening = Opening(shared.settings, shared.decryptor, self._void, give_back)
        self._held_back: MessageId | None = None
        """Cumulative ack that waits until the incomplete chunked messages before it are completed or discarded."""
        self._chunks: dict[Place, Ids] = {}
        """Ids of a chunked message's earlier chunks, by the position of its last chunk."""
        self._writers = Writers(end, shared.schema, shared.tasks, shared.inbox.look_again)

    # -- From the inbox to the application --

    def open(self, arrival: Arrival) -> list[Message[Any]] | None:
        """Return the messages of an entry; an empty list if it is stale, None while its schema is being fetched.

        Raises `MessageUndecodable`.
        """
        if arrival.generation != self.generation:
            if arrival.messages is None:
                self._end.take(arrival.attempt, message_count(arrival.delivery), 0)
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
        unacked = unacked_of(delivery)
        size = len(delivery.entry)
        try:
            opened = self._opening.open(delivery, self._shared.clock.now_ms())
        except Undecodable as error:
            self._end.take(arrival.attempt, message_count(delivery), size)
            one = MessageId(*place, -1, self._end.partition, 0, self.topic)
            raise MessageUndecodable(f"message {one} of {self.topic}: {error}", one) from None
        decoded, version, chunks = opened
        if not decoded:
            self._end.take(arrival.attempt, 1, size)
            return []
        count = len(decoded)
        entry = Entry(
            self,
            place,
            self._end.partition,
            count,
            body.redelivery_count,
            arrival.generation,
            version,
            chunks,
        )
        if unacked is not None:
            entry.unacked &= unacked
        self._end.take(arrival.attempt, entry.unacked.bit_count(), size)
        if chunks:
            self._chunks[place] = chunks
        return self._chances.living(entry, self._wanted(entry, decoded))

    def _wanted(self, entry: Entry, decoded: list[DecodedMessage]) -> list[Message[Any]]:
        entry.unacked &= self.beginning.wanted(entry.place)
        if any(one.compacted_out for one in decoded):
            entry.unacked &= ~sum(1 << i for i, one in enumerate(decoded) if one.compacted_out)
        unacked = entry.unacked
        if not unacked and self._how.durable:
            self.acking.void(entry.ids)  # the application never gets it, so it cannot acknowledge it
        if unacked == (1 << len(decoded)) - 1:
            return [Message(entry, one) for one in decoded]
        return [Message(entry, one) for i, one in enumerate(decoded) if unacked >> i & 1]

    def taken(self, message: Message[Any]) -> None:
        """Record that the message was handed to the application."""
        self._last_taken = message
        if self._shared.settings.ack_timeout_ms:
            entry = message._entry
            self._redelivery.handed_out(entry.place, entry.ids)
        if self._shared.dead_letters is not None:
            self._chances.taken(message)

    def value_of(self, entry: Entry, decoded: DecodedMessage) -> Any:
        """Decode the message's payload with the consumer's schema."""
        if decoded.payload is None:
            return None
        writer = self._writers.get(entry.schema_version)
        return self._shared.schema.decode(decoded.payload, key_bytes(decoded), writer)

    # -- Acks --

    def ack(self, entry: Entry, index: int) -> None:
        self.acking.acks.ack(entry, index)
        if not entry.unacked:
            self._done_with(entry.place)
        self.acking.send_soon()

    def ack_id(self, one: MessageId) -> None:
        self.acking.acks.add(self._chunks.get(one[:2], ()))
        self.acking.acks.ack_id(one)
        if one.batch_index < 0:
            self._done_with(one[:2])
        self.acking.send_soon()

    def ack_cumulative(self, one: MessageId) -> None:
        """Acknowledge all messages up to `one`, or only those before the first incomplete chunked message."""
        begun = self._opening.first_chunk
        if begun is not None and (first := commands.position(begun)) <= one[:2]:
            self._held_back = max(one, self._held_back or one, key=lambda some: some.place)
            if not first[1]:
                return
            one = MessageId(first[0], first[1] - 1, partition=self._end.partition)
        self.acking.acks.ack_cumulative(one)
        self._redelivery.acknowledged_up_to(one[:2])
        self._chunks = {place: ids for place, ids in self._chunks.items() if place > one[:2]}
        self.acking.send_soon()

    def _done_with(self, place: Place) -> None:
        self._redelivery.acknowledged(place)
        self._chances.forget(place)
        self._chunks.pop(place, None)

    def _void(self, ids: Ids) -> None:
        """Acknowledge entries that cannot become messages, and apply a cumulative ack that waited for them."""
        self.acking.void(ids)
        held_back, self._held_back = self._held_back, None
        if held_back is not None:
            self.ack_cumulative(held_back)

    def _give_back(self, ids: Ids) -> None:
        """Request redelivery of chunks, because another consumer may have the other chunks of their message."""
        for one in ids:
            self._redelivery.nack(commands.position(one), [one], 0)

    # -- Redelivery --

    def nack(self, one: MessageId, redelivery_count: int) -> None:
        """Request redelivery of the message after the nack delay."""
        ids = [*self._chunks.get(one[:2], ()), commands.message_id(*one[:2], one.partition)]
        self._redelivery.nack(one[:2], ids, redelivery_count)

    def _again(self, due: dict[Place, Ids]) -> None:
        self._chances.bury(due)
        connection = self._end.connection
        if connection is None or not due:
            return  # the broker redelivers all unacknowledged entries after reattachment
        self.acking.send()
        if self._how.dispatches_singly:
            connection.write(commands.redeliver(self._id, [one for ids in due.values() for one in ids]))
        else:
            self._all_comes_again()
            connection.write(commands.redeliver(self._id))

    def _all_comes_again(self) -> None:
        """Mark earlier deliveries as stale, because the broker redelivers all unacknowledged entries."""
        self.generation += 1
        self._opening.forget()
        self._held_back = None
        self._redelivery.forget()
        self._chances.forget_all()

    def begin_again(self) -> None:
        """Prepare for another attachment."""
        first_chunk = self._opening.first_chunk
        self._all_comes_again()
        self.acking.connection_changes()
        if self._last_taken is not None:
            begun = MessageId.from_wire(first_chunk, self.topic, -1, 0) if first_chunk is not None else None
            self.beginning.go_on_after(self._last_taken.id, begun)

    def sought(self, to: MessageId) -> None:
        """Record a seek that succeeded."""
        self.acking.acks.take()
        self._all_comes_again()
        self._last_taken = None
        self.beginning.sought(to)

    def stop(self) -> None:
        self.acking.stop()
        self._redelivery.stop()
        self._opening.stop()
