"""The producer of one partition (or of a topic that has none): batches out, receipts in, all of it in order.

    messages ─▶ open batch ──full, or due──▶ encoded ─▶ pending ──SEND──▶ broker
                                                           ▲                 │
                              attached again: all of them  │                 │ SEND_RECEIPT, in order
                              once more, same sequence ids └── stays until ──┘

A batch stays in `pending` until its receipt came. After a reconnect all that is pending is sent again with the same
sequence ids and the same producer name, so that a broker that deduplicates stores nothing twice. Of a
message in chunks only those are sent again that have no receipt (`sealing`, `chunks`).

The end of a batch is one of three (`errors`): a receipt; `PublishFailed` when it was refused at its first
attempt or never left; `PublishUnknown` when it left and nobody knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quire.client.attachment import Attachable
from quire.client.batch import Batch, Publication, Window
from quire.client.connection import Connection, ProducerEnd
from quire.client.crypto import Encryptor
from quire.client.errors import (
    Closed,
    ConnectionLost,
    NotStorable,
    PublishFailed,
    PublishUnknown,
    TopicTerminated,
    from_server,
)
from quire.client.routing import partition_index
from quire.client.sealing import Sealer
from quire.client.settings import ProducerSettings
from quire.runtime.clock import Clock
from quire.runtime.errors import Fenced, NotFound, QuireError, Unavailable
from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.compression import NAMES
from quire.wire.message import OutgoingMessage

UNSEEN_FAILURES_MAX: Final = 100
ATTACHMENTS_KEPT: Final = 16


@dataclass(frozen=True)
class PublishAs:
    """What a PRODUCER says beside its topic and name."""

    access_mode: pb.ProducerAccessMode = pb.Shared
    schema: pb.Schema | None = None
    initial_subscription: str = ""
    """Made on the topic with the producer."""


class PartitionProducer(Attachable):
    """One PRODUCER of one topic; `window` is shared by the partitions of a producer."""

    def __init__(
        self,
        topic: str,
        producer_id: int,
        name: str,
        how: PublishAs,
        settings: ProducerSettings,
        window: Window,
        clock: Clock,
        encryptor: Encryptor | None,
    ) -> None:
        super().__init__(topic, producer_id)
        self.name = name
        self._failed: list[Batch] = []
        """Batches whose failure nobody awaited, up to now; a few are enough to tell of."""
        self.last_sequence_id = -1
        """The highest that was given to a message, or that the broker has of an earlier producer of this name."""
        self.acknowledged = 0
        """Messages that are stored."""
        self.recorded: deque[int] = deque(maxlen=ATTACHMENTS_KEPT)
        """What the broker had as the last sequence id of this name, at each of the last attachments."""
        self._is_named_by_user = bool(name)
        self._partition = partition_index(topic)
        self._how = how
        self._settings = settings
        self._window = window
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._sealer = Sealer(
            NAMES[settings.compression], MESSAGE_BYTES_MAX, chunking=settings.chunking, encryptor=encryptor
        )
        self._encryptor = encryptor
        self._epoch = -1
        self.topic_epoch: int | None = None
        """Of the exclusive access that it was given; who had it after that fences us."""
        self._last_added = -1
        self._open: Batch | None = None
        self._due: asyncio.Handle | None = None
        self._pending: deque[Batch] = deque()
        self._timeout: asyncio.TimerHandle | None = None
        self._failure: QuireError | None = None

    # -- Taking messages --

    @property
    def is_gathering(self) -> bool:
        return self._open is not None

    def add(self, one: OutgoingMessage) -> Publication:
        """Take one message; never waits. Raises `PublishFailed` when the producer is at its end."""
        self._check_open()
        sequence_id = self._next_sequence_id(one)
        size = one.size
        batch = self._open
        if batch is not None and not self._fits(batch, one, size):
            self.close_batch()
            batch = None
        if batch is None:
            batch = self._open_batch(sequence_id)
        batch.add(one, size, sequence_id)
        self._window.take(size)
        publication = Publication(batch, len(batch.messages) - 1, self._partition, self.topic)
        if self._is_full(batch, one):
            self.close_batch()
        return publication

    def add_entry(
        self, messages: Sequence[OutgoingMessage], first_sequence_id: int, last_sequence_id: int
    ) -> Publication:
        """Take messages as one entry with these numbers, and send it. Raises as `add`."""
        self._check_open()
        if first_sequence_id <= self._last_added:
            raise PublishFailed(f"sequence id {first_sequence_id} does not follow {self._last_added}")
        self.close_batch()
        batch = self._open_batch(first_sequence_id)
        batch.add_all(messages, last_sequence_id)
        self._last_added = last_sequence_id
        self.last_sequence_id = max(self.last_sequence_id, last_sequence_id)
        self._window.take(batch.bytes, len(messages))
        self.close_batch()
        return Publication(batch, len(messages) - 1, self._partition, self.topic)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise PublishFailed(f"{self.topic} takes no more messages from this producer: {self._failure}")

    def _next_sequence_id(self, one: OutgoingMessage) -> int:
        if one.sequence_id is None:
            self.last_sequence_id += 1
            self._last_added = self.last_sequence_id
        elif one.sequence_id <= self._last_added:
            raise PublishFailed(f"sequence id {one.sequence_id} does not follow {self._last_added}")
        else:
            self._last_added = one.sequence_id
            self.last_sequence_id = max(self.last_sequence_id, one.sequence_id)
        return self._last_added

    def _fits(self, batch: Batch, one: OutgoingMessage, size: int) -> bool:
        settings = self._settings
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
        """Send the open batch, if there is one."""
        batch, self._open = self._open, None
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if batch is None:
            return
        try:
            batch.entries = self._sealed(batch)
        except (TypeError, ValueError, PublishFailed) as error:  # protobuf's, for text that is none; ours
            self._settle(batch, None, PublishFailed(f"a message for {self.topic} cannot be encoded: {error}"))
            return
        self._pending.append(batch)
        self._watch_deadlines()
        if self.connection is not None:
            self._send(self.connection, batch)

    def _sealed(self, batch: Batch) -> list[bytes]:
        if self._encryptor is not None:
            self._encryptor.renew(self._loop.time())
        return self._sealer.seal(batch.messages, self.name, batch.first_sequence_id, self._clock.now_ms())

    def _send(self, connection: Connection, batch: Batch) -> None:
        batch.attempts += 1
        count = len(batch.messages)
        highest = batch.last_sequence_id if count > 1 else 0
        is_chunked = len(batch.entries) > 1
        for entry in batch.entries[batch.answered :]:
            first = batch.first_sequence_id
            connection.write(*commands.send(self._id, first, count, entry, highest, chunk=is_chunked))

    # -- What the broker answers --

    def receipt(self, body: pb.CommandSendReceipt) -> None:
        if not self._pending or body.sequence_id < self._pending[0].first_sequence_id:
            return  # it was given up meanwhile
        batch = self._pending[0]
        if body.sequence_id > batch.first_sequence_id:
            self._start_over(f"the receipt of sequence id {batch.first_sequence_id} is missing")
            return
        if batch.stored(body.message_id):
            self._pending.popleft()
            self._settle(batch, body.message_id, None)

    def refused(self, body: pb.CommandSendError) -> None:
        batch = next((one for one in self._pending if one.first_sequence_id == body.sequence_id), None)
        if batch is None:
            return
        error = from_server(body.error, body.message, f"a message for {self.topic}")
        damaged_on_the_way = body.error == pb.ChecksumError and all(map(message.checksum_ok, batch.entries))
        if damaged_on_the_way or isinstance(error, Unavailable):
            self._start_over(str(error))
            return
        if isinstance(error, TopicTerminated | Fenced | NotFound):
            self._failure = error
        self._pending.remove(batch)
        self._give_up(batch, error)

    def _start_over(self, why: str) -> None:
        """Attach again and send again all that is pending, so that the order is kept."""
        if self.connection is not None:
            connection = self.connection
            connection.close(ConnectionLost(f"the connection to {connection.url} is of no use ({why})"))

    def _settle(self, batch: Batch, id_data: pb.MessageIdData | None, error: QuireError | None) -> None:
        batch.settle(id_data, error)
        self._window.give_back(len(batch.messages), batch.bytes)
        if error is None:
            self.acknowledged += len(batch.messages)
        elif not batch.was_observed and len(self._failed) < UNSEEN_FAILURES_MAX:
            self._failed.append(batch)

    def unseen_error(self) -> QuireError | None:
        """The first failure since it was asked for that nobody awaited."""
        failed, self._failed = self._failed, []
        return next((one.error for one in failed if not one.was_observed), None)

    def _give_up(self, batch: Batch, error: QuireError) -> None:
        """Refused, or out of time: what is the end of this batch?"""
        is_refused = batch.attempts == 1 and not isinstance(error, Unavailable)
        if batch.attempts == 0 or is_refused:
            self._settle(batch, None, PublishFailed(str(error)))
        else:
            self._settle(batch, None, PublishUnknown(f"{error}; whether the message is stored is not known"))

    # -- Time --

    def _watch_deadlines(self) -> None:
        if self._timeout is None and self._pending:
            self._timeout = self._loop.call_at(self._pending[0].deadline_s, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timeout = None
        now_s = self._loop.time()
        while self._pending and self._pending[0].deadline_s <= now_s:
            waited = f"no receipt from {self.topic} within {self._settings.send_timeout_ms} ms"
            self._give_up(self._pending.popleft(), Unavailable(waited))
        self._watch_deadlines()

    # -- Attaching --

    async def attach(self, connection: Connection) -> None:
        self._epoch += 1
        what = f"a producer on {self.topic}"
        answer = await self._enter(connection, what, self._request, pb.CommandProducerSuccess)
        self.name = answer.producer_name
        self._sealer.bytes_max = connection.message_bytes_max
        self.recorded.append(answer.last_sequence_id)
        self.last_sequence_id = max(self.last_sequence_id, answer.last_sequence_id)
        self._sealer.schema_version = answer.schema_version or None
        if answer.HasField("topic_epoch"):
            self.topic_epoch = answer.topic_epoch
        self.connection = connection
        for batch in self._pending:
            self._send(connection, batch)

    def _request(self, request_id: int) -> bytes:
        return commands.producer(
            pb.CommandProducer(
                topic=self.topic,
                producer_id=self._id,
                request_id=request_id,
                producer_name=self.name or None,
                user_provided_producer_name=self._is_named_by_user,
                encrypted=self._encryptor is not None,
                schema=self._how.schema,
                epoch=self._epoch,
                producer_access_mode=self._how.access_mode,
                topic_epoch=self.topic_epoch,
                initial_subscription_name=self._how.initial_subscription or None,
            )
        )

    def _members(self, connection: Connection) -> dict[int, ProducerEnd]:
        return connection.producers

    def _close_command(self, request_id: int) -> bytes:
        return commands.close_producer(self._id, request_id)

    def kept_out(self, error: QuireError) -> None:
        """A disk that is full stays so for longer than a message should wait: its sender is to hear of it now."""
        if isinstance(error, NotStorable):
            self._end_pending(error)

    def _end_pending(self, error: QuireError) -> None:
        pending, self._pending = self._pending, deque()
        for batch in pending:
            self._give_up(batch, Unavailable(str(error)))

    def fail(self, error: QuireError) -> None:
        """No message will be taken any more; what is pending ends now."""
        self._failure = error
        self.connection = None
        self.close_batch()
        self._end_pending(error)
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    # -- The end --

    async def settle_all(self) -> None:
        """Return when all that was added before has a receipt or an error."""
        self.close_batch()
        for batch in list(self._pending):
            if not batch.is_settled:
                await batch.waiter()

    async def close(self) -> None:
        """Tell the broker, give up what is pending. Never raises for the broker's sake."""
        connection = self.connection
        if self.attachment is not None:
            await self.attachment.stop()
        self.fail(Closed(f"the producer of {self.topic} was closed"))
        await self._close_at_broker(connection, f"closing a producer on {self.topic}")
