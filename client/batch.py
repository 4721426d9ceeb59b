"""What a producer gathers and has in flight. No I/O.

A `Batch` is a handful of messages on their way: open (it takes more), then encoded and sent once or more often,
then settled with a message id or an error. Everyone who cares about one of its messages waits on the batch: a
`Publication` is a place in it, and costs a future only when it is awaited.

`Window` is what may be in flight, over all partitions of a producer. It opens again when half of it is free, so that
senders who wait wake up for more than one message's worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence

from quire.client.messages import MessageId, Receipt
from quire.runtime.errors import QuireError
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage


class Batch:
    """Some consecutive messages of one partition. `deadline_s` is in the event loop's time."""

    __slots__ = (
        "_waiters",
        "answered",
        "attempts",
        "bytes",
        "deadline_s",
        "entries",
        "error",
        "first_chunk",
        "first_sequence_id",
        "id_data",
        "is_settled",
        "last_sequence_id",
        "messages",
        "was_observed",
    )

    def __init__(self, first_sequence_id: int, deadline_s: float) -> None:
        self.first_sequence_id = first_sequence_id
        self.last_sequence_id = first_sequence_id
        self.deadline_s = deadline_s
        self.messages: list[OutgoingMessage] = []
        self.bytes = 0
        self.entries: list[bytes] = []
        """What it was sealed into: one, or the chunks of its only message."""
        self.answered = 0
        """How many of them are stored."""
        self.first_chunk: pb.MessageIdData | None = None
        self.attempts = 0
        """How often it was written to a connection; 0: nobody has seen it."""
        self.is_settled = False
        self.was_observed = False
        self.error: QuireError | None = None
        self.id_data: pb.MessageIdData | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def add(self, one: OutgoingMessage, size: int, sequence_id: int) -> None:
        """Take one more message; a gap in the sequence ids is written into it."""
        if sequence_id != self.first_sequence_id + len(self.messages):
            one.sequence_id = sequence_id
        self.messages.append(one)
        self.last_sequence_id = sequence_id
        self.bytes += size

    def add_all(self, messages: Sequence[OutgoingMessage], last_sequence_id: int) -> None:
        """Take all its messages at once; none but the last has a gap before its sequence id."""
        assert messages and not self.messages
        self.messages = list(messages)
        if last_sequence_id != self.first_sequence_id + len(messages) - 1:
            self.messages[-1].sequence_id = last_sequence_id
        self.last_sequence_id = last_sequence_id
        self.bytes = sum([one.size for one in messages])

    def stored(self, id_data: pb.MessageIdData) -> bool:
        """One of its entries is; whether all are."""
        if not self.answered and len(self.entries) > 1:
            self.first_chunk = id_data
        self.answered += 1
        return self.answered == len(self.entries)

    def settle(self, id_data: pb.MessageIdData | None, error: QuireError | None) -> None:
        """It is stored at `id_data`, or ended with `error`."""
        assert not self.is_settled
        self.is_settled, self.id_data, self.error = True, id_data, error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def waiter(self) -> asyncio.Future[None]:
        """Done once the batch is settled; each caller has its own, so that it may be cancelled alone."""
        assert not self.is_settled
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        return future

    def message_id(self, index: int, partition: int, topic: str) -> MessageId:
        """Where the message at `index` is."""
        assert self.id_data is not None
        count = len(self.messages)
        batched = (-1, 0) if count == 1 else (index, count)
        found = MessageId.from_wire(self.id_data, topic, *batched)
        first = commands.position(self.first_chunk) if self.first_chunk is not None else None
        return found._replace(partition=partition, first_chunk=first)

    def sequence_id(self, index: int) -> int:
        explicit = self.messages[index].sequence_id
        return self.first_sequence_id + index if explicit is None else explicit


class Publication:
    """One message on its way; await it for the `Receipt`.

    Awaiting raises `PublishFailed` or `PublishUnknown`. It may be awaited any number of times, by several
    tasks, or never: then `flush` tells of a failure.
    """

    __slots__ = ("_batch", "_index", "_partition", "_topic")

    def __init__(self, batch: Batch, index: int, partition: int, topic: str) -> None:
        self._batch = batch
        self._index = index
        self._partition = partition
        self._topic = topic

    @property
    def is_done(self) -> bool:
        return self._batch.is_settled

    def __await__(self) -> Generator[object, None, Receipt]:
        batch = self._batch
        batch.was_observed = True
        if not batch.is_settled:
            yield from batch.waiter()
        if batch.error is not None:
            raise type(batch.error)(str(batch.error))
        place = batch.message_id(self._index, self._partition, self._topic)
        return Receipt(place, batch.sequence_id(self._index))


class Window:
    """How much may be in flight: messages and bytes."""

    __slots__ = ("_bytes", "_bytes_max", "_messages", "_messages_max", "_open", "is_full")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages = 0
        self._bytes = 0
        self._open = asyncio.Event()
        self._open.set()
        self.is_full = False

    @property
    def messages(self) -> int:
        return self._messages

    def take(self, size: int, messages: int = 1) -> None:
        self._messages += messages
        self._bytes += size
        if self._messages >= self._messages_max or self._bytes >= self._bytes_max:
            self.is_full = True
            self._open.clear()

    def give_back(self, messages: int, size: int) -> None:
        self._messages -= messages
        self._bytes -= size
        assert self._messages >= 0 and self._bytes >= 0
        is_half_free = 2 * self._messages <= self._messages_max and 2 * self._bytes <= self._bytes_max
        if self.is_full and is_half_free:
            self.is_full = False
            self._open.set()

    async def room(self) -> None:
        """Return when it is not full."""
        while self.is_full:
            await self._open.wait()
