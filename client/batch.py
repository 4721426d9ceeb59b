"""Batches of a producer: the open batch of each partition, and the batches in flight. No I/O except timers.

A `Batch` contains messages that are published together. It is first open for more messages, then encoded and sent at
least once, then settled with a message id or an error. A caller that awaits one of the messages waits for the batch: a
`Publication` is an index into the batch, and creates a future only when it is awaited.

`Gathering` holds the open batch of a partition. `InFlight` holds the batches that wait for their receipts, in order.

`Window` bounds the messages and bytes in flight over all partitions of a producer. It opens again when half of it is
free, so that a waiting sender can queue several messages when it wakes up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Final

from quire.client.errors import PublishFailed, PublishUnknown
from quire.client.messages import MessageId, Receipt
from quire.client.settings import ProducerSettings
from quire.runtime.errors import QuireError, Unavailable
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage

UNSEEN_FAILURES_MAX: Final = 100


class Batch:
    """Consecutive messages of one partition. `deadline_s` is in the event loop's time."""

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
        """Encoded entries: one, or the chunks of the only message."""
        self.answered = 0
        """Number of entries that the broker has confirmed."""
        self.first_chunk: pb.MessageIdData | None = None
        self.attempts = 0
        """Number of times that the batch was written to a connection; 0: never sent."""
        self.is_settled = False
        self.was_observed = False
        self.error: QuireError | None = None
        self.id_data: pb.MessageIdData | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def add(self, one: OutgoingMessage, size: int, sequence_id: int) -> None:
        """Add a message.

        `sequence_id` is stored in the message only if it differs from `first_sequence_id` plus the message's index.
        """
        if sequence_id != self.first_sequence_id + len(self.messages):
            one.sequence_id = sequence_id
        self.messages.append(one)
        self.last_sequence_id = sequence_id
        self.bytes += size

    def add_all(self, messages: Sequence[OutgoingMessage], last_sequence_id: int) -> None:
        """Add all messages of the batch at once.

        Their sequence ids are consecutive, except that the last id may be higher.
        """
        assert messages and not self.messages
        self.messages = list(messages)
        if last_sequence_id != self.first_sequence_id + len(messages) - 1:
            self.messages[-1].sequence_id = last_sequence_id
        self.last_sequence_id = last_sequence_id
        self.bytes = sum([one.size for one in messages])

    def stored(self, id_data: pb.MessageIdData) -> bool:
        """Count one entry as stored, and return whether all entries of the batch are stored."""
        if not self.answered and len(self.entries) > 1:
            self.first_chunk = id_data
        self.answered += 1
        return self.answered == len(self.entries)

    def settle(self, id_data: pb.MessageIdData | None, error: QuireError | None) -> None:
        """Settle the batch as stored at `id_data`, or as failed with `error`."""
        assert not self.is_settled
        self.is_settled, self.id_data, self.error = True, id_data, error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def waiter(self) -> asyncio.Future[None]:
        """Return a future that is done when the batch is settled; each caller gets its own, and may cancel it."""
        assert not self.is_settled
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        return future

    def message_id(self, index: int, partition: int, topic: str) -> MessageId:
        """Return the id of the message at `index`."""
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
    """One message being published; await it for the `Receipt`.

    Awaiting raises `PublishFailed` or `PublishUnknown`. Any number of tasks may await it. If no task does,
    `flush` raises the error of a failed message.
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

    @property
    def batch(self) -> Batch:
        """Batch that contains the message, for a caller that handles the receipts of a batch together."""
        return self._batch

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
    """Limit of the messages and bytes in flight."""

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
        """Wait until the window has room."""
        while self.is_full:
            await self._open.wait()


class Gathering:
    """The open batch of one partition. Each batch is passed to `send` once it is full or due."""

    def __init__(
        self,
        topic: str,
        partition: int,
        settings: ProducerSettings,
        window: Window,
        send: Callable[[Batch], None],
    ) -> None:
        self.last_sequence_id = -1
        """Highest sequence id of a message added here or stored for an earlier producer of this name; -1 for none."""
        self.stored_before = -1
        """Last sequence id that the broker had stored for this producer name at the last attachment.

        No batch extends across it, so that deduplication stores a batch as a whole or not at all.
        """
        self.failure: QuireError | None = None
        """Reason to refuse new messages, or None."""
        self._topic = topic
        self._partition = partition
        self._settings = settings
        self._window = window
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._last_added = -1
        self._open: Batch | None = None
        self._due: asyncio.Handle | None = None

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def add(self, one: OutgoingMessage) -> Publication:
        """Add one message to a batch, without waiting.

        Raises `PublishFailed` if the producer has failed or was closed.
        """
        self._check_open()
        sequence_id = self._next_sequence_id(one)
        size = one.size
        batch = self._open
        if batch is not None and not self._fits(batch, one, size, sequence_id):
            self.close_batch()
            batch = None
        if batch is None:
            batch = self._open_batch(sequence_id)
        batch.add(one, size, sequence_id)
        self._window.take(size)
        publication = Publication(batch, len(batch.messages) - 1, self._partition, self._topic)
        if self._is_full(batch, one):
            self.close_batch()
        return publication

    def add_entry(
        self, messages: Sequence[OutgoingMessage], first_sequence_id: int, last_sequence_id: int
    ) -> Publication:
        """Send messages as one entry with these sequence ids. Raises like `add`."""
        self._check_open()
        if first_sequence_id <= self._last_added:
            raise PublishFailed(
                f"sequence id {first_sequence_id} must be greater than the last one, {self._last_added}"
            )
        self.close_batch()
        batch = self._open_batch(first_sequence_id)
        batch.add_all(messages, last_sequence_id)
        self._last_added = last_sequence_id
        self.last_sequence_id = max(self.last_sequence_id, last_sequence_id)
        self._window.take(batch.bytes, len(messages))
        self.close_batch()
        return Publication(batch, len(messages) - 1, self._partition, self._topic)

    def recorded(self, last_sequence_id: int) -> None:
        """Record the last sequence id that the broker has stored for this producer's name."""
        self.stored_before = last_sequence_id
        self.last_sequence_id = max(self.last_sequence_id, last_sequence_id)

    def _check_open(self) -> None:
        if self.failure is not None:
            raise PublishFailed(f"{self._topic} takes no more messages from this producer: {self.failure}")

    def _next_sequence_id(self, one: OutgoingMessage) -> int:
        if one.sequence_id is None:
            self.last_sequence_id += 1
            self._last_added = self.last_sequence_id
        elif one.sequence_id <= self._last_added:
            raise PublishFailed(
                f"sequence id {one.sequence_id} must be greater than the last one, {self._last_added}"
            )
        else:
            self._last_added = one.sequence_id
            self.last_sequence_id = max(self.last_sequence_id, one.sequence_id)
        return self._last_added

    def _fits(self, batch: Batch, one: OutgoingMessage, size: int, sequence_id: int) -> bool:
        settings = self._settings
        if batch.first_sequence_id <= self.stored_before < sequence_id:
            return False  # the batch would overlap with stored messages
        return (
            batch.bytes + size <= settings.batch_bytes_max
            and one.deliver_at_ms is None
            and (not settings.batch_by_key or batch.messages[0].key == one.key)
        )

    def _is_full(self, batch: Batch, one: OutgoingMessage) -> bool:
        settings = self._settings
        return (
            len(batch.messages) >= settings.batch_messages_max
            or batch.bytes >= settings.batch_bytes_max
            or not settings.batching
            or one.deliver_at_ms is not None
        )

    def _open_batch(self, first_sequence_id: int) -> Batch:
        settings = self._settings
        batch = Batch(first_sequence_id, self._loop.time() + settings.send_timeout_ms / 1000)
        self._open = batch
        if settings.batch_delay_ms:
            self._due = self._loop.call_later(settings.batch_delay_ms / 1000, self.close_batch)
        else:
            self._due = self._loop.call_soon(self.close_batch)
        return batch

    def close_batch(self) -> None:
        """Encode and send the open batch, if there is one."""
        batch, self._open = self._open, None
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if batch is not None:
            self._send(batch)


class InFlight:
    """Batches in flight, the oldest first."""

    def __init__(self, topic: str, window: Window, send_timeout_ms: int) -> None:
        self.batches: deque[Batch] = deque()
        self.acknowledged = 0
        """Number of messages with a receipt."""
        self._topic = topic
        self._window = window
        self._send_timeout_ms = send_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._timeout: asyncio.TimerHandle | None = None
        self._failed: list[Batch] = []
        """Failed batches that no caller has awaited, for `unseen_error`; at most `UNSEEN_FAILURES_MAX`."""

    def append(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._watch_deadlines()

    def settle(self, batch: Batch, id_data: pb.MessageIdData | None, error: QuireError | None) -> None:
        batch.settle(id_data, error)
        self._window.give_back(len(batch.messages), batch.bytes)
        if error is None:
            self.acknowledged += len(batch.messages)
        elif not batch.was_observed and len(self._failed) < UNSEEN_FAILURES_MAX:
            self._failed.append(batch)

    def unseen_error(self) -> QuireError | None:
        """Return the first error since the last call that no caller has awaited, or None."""
        failed, self._failed = self._failed, []
        return next((one.error for one in failed if not one.was_observed), None)

    def give_up(self, batch: Batch, error: QuireError) -> None:
        """Settle a batch that was refused or timed out, as `PublishFailed` or `PublishUnknown`."""
        is_refused = batch.attempts == 1 and not isinstance(error, Unavailable)
        if batch.attempts == 0 or is_refused:
            self.settle(batch, None, PublishFailed(str(error)))
        else:
            self.settle(batch, None, PublishUnknown(f"{error}; the message may or may not be stored"))

    def end(self, error: QuireError) -> None:
        """Give up all batches."""
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        batches, self.batches = self.batches, deque()
        for batch in batches:
            self.give_up(batch, Unavailable(str(error)))

    # -- Time --

    def _watch_deadlines(self) -> None:
        if self._timeout is None and self.batches:
            self._timeout = self._loop.call_at(self.batches[0].deadline_s, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timeout = None
        now_s = self._loop.time()
        while self.batches and self.batches[0].deadline_s <= now_s:
            waited = f"no receipt from {self._topic} within {self._send_timeout_ms} ms"
            self.give_up(self.batches.popleft(), Unavailable(waited))
        self._watch_deadlines()
