"""Consumer of one partition (or of an unpartitioned topic) on its connection: entries in, permits and requests out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire.client.attachment import Attachable
from quire.client.beginning import sought_id
from quire.client.connection import Connection
from quire.client.deliveries import Arrival, Deliveries, Shared
from quire.client.members import ConsumerEnd
from quire.client.messages import EARLIEST, MessageId
from quire.client.permits import Permits
from quire.client.subscribe import SubscribeAs
from quire.runtime.errors import QuireError, Unavailable
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.frame import Delivery

SEEK_PAUSE_S: Final = 0.05

_log = logging.getLogger(__name__)


class PartitionConsumer(Attachable):
    """Consumer of one partition or unpartitioned topic. It calls `failed` after a final error."""

    def __init__(
        self,
        topic: str,
        consumer_id: int,
        how: SubscribeAs,
        shared: Shared,
        failed: Callable[[PartitionConsumer, QuireError], None],
    ) -> None:
        super().__init__(topic, consumer_id)
        self.is_active = True
        """True if this consumer of a failover subscription is the active one."""
        self.has_ended = False
        """True if the topic is terminated, and all its messages are acknowledged."""
        self.deliveries = Deliveries(self, consumer_id, how, shared)
        self._how = how
        self._schema, self._inbox = shared.schema, shared.inbox
        self._failed = failed
        self._may_attach = asyncio.Event()
        self._may_attach.set()
        self._attempt = 0
        self._permits = Permits(shared.settings.prefetch_messages_max, shared.settings.prefetch_bytes_max)

    # -- Commands from the broker --

    def delivered(self, delivery: Delivery) -> None:
        self._inbox.put(Arrival(self.deliveries, delivery, self.deliveries.generation, self._attempt))

    def active_changed(self, is_active: bool) -> None:
        self.is_active = is_active

    def reached_end(self) -> None:
        self.has_ended = True

    def take(self, attempt: int, messages: int, size: int) -> None:
        """Count `messages` with `size` bytes in total as taken, and grant new permits.

        Messages of an earlier attachment are not counted, because their permits ended with it.
        """
        if attempt == self._attempt:
            self._permits.take(messages, size)
            self._grant_permits()

    def _grant_permits(self) -> None:
        if self.connection is not None and (more := self._permits.due()):
            self.connection.write(commands.flow(self._id, more))

    # -- Requests --

    async def ends(self) -> tuple[MessageId, MessageId]:
        """Return the topic's last message and the mark-delete position; both are `EARLIEST` for an empty topic."""
        answer = await (await self.attached()).request(
            f"getting the last message id of {self.topic}",
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
        """Return the subscription's number of unacknowledged messages.

        Raises `Unavailable` if the broker cannot determine it.
        """
        answer = await (await self.attached()).request(
            f"getting the backlog of {self.topic}",
            lambda request_id: commands.ask_consumer_stats(self._id, request_id),
            pb.CommandConsumerStatsResponse,
        )
        return answer.msgBacklog

    async def seek(self, to: MessageId | None, publish_time_ms: int | None) -> None:
        """Move the subscription's cursor and wait until reattached; after that, no earlier delivery is returned.

        The seek is retried while no broker answers, until the operation timeout, so it may be executed twice.
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
        self.deliveries.sought(to or EARLIEST)

    async def unsubscribe(self) -> None:
        await (await self.attached()).request(
            f"unsubscribing {self._how.subscription} from {self.topic}",
            lambda request_id: commands.unsubscribe(self._id, request_id),
            pb.CommandSuccess,
        )

    # -- Attaching --

    async def attach(self, connection: Connection) -> None:
        await self._may_attach.wait()
        self._attempt += 1
        self._permits.begin()
        self.deliveries.begin_again()
        what = f"the subscription {self._how.subscription} on {self.topic}"
        await self._enter(connection, what, self._request, pb.CommandSuccess)
        self.connection = connection
        self.deliveries.beginning.attached()
        self.deliveries.acking.send()
        self._grant_permits()

    def _request(self, request_id: int) -> bytes:
        beginning = self.deliveries.beginning
        start = beginning.start, beginning.start_inclusive
        body = self._how.request(self.topic, self._id, request_id, *start)
        if (info := self._schema.info) is not None:
            body.schema.CopyFrom(info)
        return commands.subscribe(body)

    def _members(self, connection: Connection) -> dict[int, ConsumerEnd]:
        return connection.members.consumers

    def _close_command(self, request_id: int) -> bytes:
        return commands.close_consumer(self._id, request_id)

    def fail(self, error: QuireError) -> None:
        self.connection = None
        self._failed(self, error)

    async def close(self) -> None:
        """Send waiting acks, and close the consumer at the broker. Errors are only logged."""
        connection = self.connection
        try:
            if connection is not None:
                await self.deliveries.acking.flush()
        except QuireError as error:
            _log.warning("%s", error)
        finally:
            self.deliveries.stop()
            if self.attachment is not None:
                await self.attachment.stop()
        await self._close_at_broker(connection, f"closing a consumer on {self.topic}")
