"""Sender of one partition's acknowledgements, in groups after the ack delay, or at once for a waiting caller.

The broker applies the acks of a connection in order, so its response to the last ack also covers earlier acks that
requested no response. When a connection is lost, the outcome of unanswered acks is unknown; `flush` raises
`OutcomeUnknown` once for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from quire.client.acks import Acks
from quire.client.connection import Connection
from quire.client.settings import ConsumerSettings
from quire.runtime.errors import OutcomeUnknown, Unavailable
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb


class Attached(Protocol):
    """Interface of one partition's consumer: its topic and its connection."""

    topic: str

    @property
    def connection(self) -> Connection | None: ...
    async def attached(self) -> Connection: ...


class Acknowledging:
    """The waiting acks of one partition (`acks`), and the timer that sends them."""

    def __init__(self, end: Attached, consumer_id: int, settings: ConsumerSettings) -> None:
        self.acks = Acks(settings.batch_index_ack)
        self._end = end
        self._id = consumer_id
        self._delay_s = settings.ack_delay_ms / 1000
        self._group_max = settings.ack_group_max
        self._loop = asyncio.get_running_loop()
        self._unanswered: tuple[list[pb.MessageIdData], bool] | None = None
        """The last ack that was sent and has no response yet, and whether it is cumulative."""
        self._are_lost = False
        """True if acks without a requested response were sent on a connection that was lost since."""
        self._timer: asyncio.TimerHandle | None = None

    def send_soon(self) -> None:
        """Schedule a send; if a full group of acks is waiting, send it at once."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._delay_s, self.send)
        elif len(self.acks) >= self._group_max:
            self._timer.cancel()
            self.send()

    def send(self) -> None:
        """Send the waiting acks without requesting a response. If an ack is lost, the broker redelivers the entries."""
        self._timer = None
        connection = self._end.connection
        if connection is None:
            return  # the next attachment sends them
        ids, cumulative = self.acks.take()
        if ids:
            connection.write(commands.ack(self._id, ids))
            self._unanswered = ids[-1:], False
        if cumulative is not None:
            connection.write(commands.ack(self._id, [cumulative], cumulative=True))
            self._unanswered = [cumulative], True

    def void(self, ids: Sequence[pb.MessageIdData]) -> None:
        """Acknowledge entries that the application will never see."""
        self.acks.add(ids)
        self.send_soon()

    async def flush(self) -> None:
        """Wait until the broker has answered all acks so far. Raises `OutcomeUnknown`, or the broker's error."""
        topic = self._end.topic
        self._tell_of_lost()
        if not len(self.acks) and self._unanswered is None:
            return
        connection = await self._end.attached()
        self._tell_of_lost()
        ids, cumulative = self.acks.take()
        kinds = [(ids, False), ([cumulative] if cumulative is not None else [], True)]
        kinds = [one for one in kinds if one[0]] or ([] if self._unanswered is None else [self._unanswered])
        if not kinds:
            return  # another caller has flushed them meanwhile
        last = self._unanswered = kinds[-1]  # a concurrent flush waits for these, too
        try:
            for some, is_cumulative in kinds:
                await self._send_and_wait(connection, some, cumulative=is_cumulative)
        except Unavailable as error:
            self.acks.restore(ids)
            raise OutcomeUnknown(
                f"acks of {topic} were sent, but the broker's response was lost, so they may not be stored: {error}"
            ) from None
        finally:
            if self._unanswered is last:
                self._unanswered = None  # else more acks were sent meanwhile

    def _tell_of_lost(self) -> None:
        if self._are_lost:
            self._are_lost = False
            raise OutcomeUnknown(
                f"acks of {self._end.topic} were in flight when the connection was lost; "
                "the broker redelivers messages whose ack was lost"
            )

    async def _send_and_wait(
        self, connection: Connection, ids: list[pb.MessageIdData], *, cumulative: bool
    ) -> None:
        await connection.request(
            f"acknowledging {len(ids)} entries of {self._end.topic}",
            lambda request_id: commands.ack(self._id, ids, cumulative=cumulative, request_id=request_id),
            pb.CommandAckResponse,
        )

    def connection_changes(self) -> None:
        """Record, on a change of connection, that acks in flight will get no response."""
        if self._unanswered is not None:
            self._are_lost, self._unanswered = True, None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
