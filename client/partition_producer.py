"""Producer of one partition (or of an unpartitioned topic): batches out, receipts in, all of it in order.

    messages ─▶ open batch ──full, or due──▶ encoded ─▶ pending ──SEND──▶ broker
                                                           ▲                 │
                            after a reconnect: resend all, │                 │ SEND_RECEIPT, in order
                                    with same sequence ids └── stays until ──┘

`batch.Gathering` holds the open batch, and `batch.InFlight` the pending batches. A batch stays pending until its
receipt arrives. After a reconnect all pending batches are sent again with the same sequence ids and the same producer
name, so that a broker with deduplication stores nothing twice. Of a chunked message, only the chunks without a receipt
are sent again (`sealing`, `chunks`).

A batch has one of three outcomes (`errors`):

    a receipt         the broker stored it
    PublishFailed     the broker refused its first attempt, or it was never sent
    PublishUnknown    it was sent, but its outcome is unknown
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from quire.client.attachment import Attachable
from quire.client.batch import Batch, Gathering, InFlight, Window
from quire.client.connection import Connection
from quire.client.crypto import Encryptor
from quire.client.errors import (
    Closed,
    ConnectionLost,
    NotStorable,
    PublishFailed,
    TopicTerminated,
    from_server,
)
from quire.client.members import ProducerEnd
from quire.client.sealing import Sealer
from quire.client.settings import ProducerSettings
from quire.runtime.clock import Clock
from quire.runtime.errors import Fenced, NotFound, QuireError, Unavailable
from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.compression import NAMES

ATTACHMENTS_KEPT: Final = 16
CHECKSUM_ATTEMPTS_MAX: Final = 3
"""Maximum number of times that a batch is sent if the broker reports checksum errors for undamaged entries."""


@dataclass(frozen=True)
class PublishAs:
    """Fields of a PRODUCER command besides topic and name."""

    access_mode: pb.ProducerAccessMode = pb.Shared
    schema: pb.Schema | None = None
    initial_subscription: str = ""
    """Name of a subscription to create on the topic together with the producer; "" for none."""


class PartitionProducer(Attachable):
    """Producer of one partition or unpartitioned topic; `window` is shared by all partitions of a producer."""

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
        self.gathering = Gathering(topic, self.partition, settings, window, self._seal_and_send)
        self.in_flight = InFlight(topic, window, settings.send_timeout_ms)
        self.recorded: deque[int] = deque(maxlen=ATTACHMENTS_KEPT)
        """The broker's `last_sequence_id` for this producer name at each of the last attachments, newest last."""
        self._is_named_by_user = bool(name)
        self._how = how
        self._clock = clock
        self._sealer = Sealer(
            NAMES[settings.compression], MESSAGE_BYTES_MAX, chunking=settings.chunking, encryptor=encryptor
        )
        self._encryptor = encryptor
        self._epoch = -1
        self.topic_epoch: int | None = None
        """Topic epoch of the exclusive access granted; a producer with a later epoch fences this one ([PIP-68]).

        [PIP-68]: https://github.com/apache/pulsar/wiki/PIP-68%3A-Exclusive-Producer
        """

    # -- Sending --

    @property
    def is_gathering(self) -> bool:
        return self.gathering.is_open

    def _seal_and_send(self, batch: Batch) -> None:
        try:
            batch.entries = self._sealed(batch)
        except (TypeError, ValueError, PublishFailed) as error:  # protobuf or the sealer refused it
            self.in_flight.settle(
                batch, None, PublishFailed(f"a message for {self.topic} cannot be encoded: {error}")
            )
            return
        self.in_flight.append(batch)
        if self.connection is not None:
            self._send(self.connection, batch)

    def _sealed(self, batch: Batch) -> list[bytes]:
        if self._encryptor is not None:
            self._encryptor.renew(asyncio.get_running_loop().time())
        return self._sealer.seal(batch.messages, self.name, batch.first_sequence_id, self._clock.now_ms())

    def _send(self, connection: Connection, batch: Batch) -> None:
        batch.attempts += 1
        count = len(batch.messages)
        highest = batch.last_sequence_id if count > 1 else 0
        is_chunked = len(batch.entries) > 1
        for entry in batch.entries[batch.answered :]:
            first = batch.first_sequence_id
            connection.write(*commands.send(self._id, first, count, entry, highest, chunk=is_chunked))

    # -- Responses of the broker --

    def receipt(self, body: pb.CommandSendReceipt) -> None:
        pending = self.in_flight.batches
        if not pending or body.sequence_id < pending[0].first_sequence_id:
            return  # the batch was given up before its receipt arrived
        batch = pending[0]
        if body.sequence_id > batch.first_sequence_id:
            self._start_over(f"a later receipt came before that of sequence id {batch.first_sequence_id}")
            return
        if batch.stored(body.message_id):
            pending.popleft()
            self.in_flight.settle(batch, body.message_id, None)

    def refused(self, body: pb.CommandSendError) -> None:
        batch = next(
            (one for one in self.in_flight.batches if one.first_sequence_id == body.sequence_id), None
        )
        if batch is None:
            return
        error = from_server(body.error, body.message, f"publishing to {self.topic}")
        damaged_on_the_way = (
            body.error == pb.ChecksumError
            and batch.attempts < CHECKSUM_ATTEMPTS_MAX
            and all(map(message.checksum_ok, batch.entries))
        )
        if damaged_on_the_way or isinstance(error, Unavailable):
            self._start_over(str(error))
            return
        if isinstance(error, TopicTerminated | Fenced | NotFound):
            self.gathering.failure = error
        self.in_flight.batches.remove(batch)
        self.in_flight.give_up(batch, error)

    def _start_over(self, why: str) -> None:
        """Close the connection, so that the producer reattaches and resends all pending batches in order."""
        if self.connection is not None:
            connection = self.connection
            connection.close(ConnectionLost(f"reconnecting to {connection.url}: {why}"))

    # -- Attaching --

    async def attach(self, connection: Connection) -> None:
        self._epoch += 1
        what = f"a producer on {self.topic}"
        answer = await self._enter(connection, what, self._request, pb.CommandProducerSuccess)
        self.name = answer.producer_name
        self._sealer.bytes_max = connection.message_bytes_max
        self.recorded.append(answer.last_sequence_id)
        self.gathering.recorded(answer.last_sequence_id)
        self._sealer.schema_version = answer.schema_version or None
        if answer.HasField("topic_epoch"):
            self.topic_epoch = answer.topic_epoch
        self.connection = connection
        for batch in self.in_flight.batches:
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
        return connection.members.producers

    def _close_command(self, request_id: int) -> bytes:
        return commands.close_producer(self._id, request_id)

    def kept_out(self, error: QuireError) -> None:
        """Fail pending messages at once if the broker cannot store them, because a full disk often stays full."""
        if isinstance(error, NotStorable):
            self.in_flight.end(error)

    def fail(self, error: QuireError) -> None:
        """Fail all pending messages, and refuse new ones from now on."""
        self.gathering.failure = error
        self.connection = None
        self.gathering.close_batch()
        self.in_flight.end(error)

    # -- The end --

    async def settle_all(self) -> None:
        """Wait until all messages added before have a receipt or an error."""
        self.gathering.close_batch()
        for batch in list(self.in_flight.batches):
            if not batch.is_settled:
                await batch.waiter()

    async def close(self) -> None:
        """Close the producer at the broker, and fail pending messages. Errors of the broker are only logged."""
        connection = self.connection
        if self.attachment is not None:
            await self.attachment.stop()
        self.fail(Closed(f"the producer of {self.topic} was closed"))
        await self._close_at_broker(connection, f"closing a producer on {self.topic}")
