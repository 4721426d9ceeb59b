"""When acknowledgements of one partition are sent: gathered for some milliseconds, or at once when somebody waits.

Acks take effect in order, so an answer to the last stands for those that asked for none, on one connection; what was
under way with a connection that is lost is not known to have arrived, and `flush` says so once.
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
    """The consumer whose acks they are."""

    topic: str

    @property
    def connection(self) -> Connection | None: ...
    async def attached(self) -> Connection: ...


class Acknowledging:
    """`acks` is what waits."""

    def __init__(self, end: Attached, consumer_id: int, settings: ConsumerSettings) -> None:
        self.acks = Acks(settings.batch_index_ack)
        self._end = end
        self._id = consumer_id
        self._delay_s = settings.ack_delay_ms / 1000
        self._group_max = settings.ack_group_max
        self._loop = asyncio.get_running_loop()
        self._unanswered: tuple[list[pb.MessageIdData], bool] | None = None
        """The last ack that was sent and has no answer, and whether it is cumulative."""
        self._are_lost = False
        """Some were sent without asking for an answer, on a connection that is gone."""
        self._timer: asyncio.TimerHandle | None = None

    def send_soon(self) -> None:
        """Something was added to `acks`."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._delay_s, self.send)
        elif len(self.acks) >= self._group_max:
            self._timer.cancel()
            self.send()

    def send(self) -> None:
        """Tell the broker, without an answer. What is lost with a connection comes again."""
        self._timer = None
        connection = self._end.connection
        if connection is None:
            return  # whoever attaches sends them
        ids, cumulative = self.acks.take()
        if ids:
            connection.write(commands.ack(self._id, ids))
            self._unanswered = ids[-1:], False
        if cumulative is not None:
            connection.write(commands.ack(self._id, [cumulative], cumulative=True))
            self._unanswered = [cumulative], True

    def void(self, ids: Sequence[pb.MessageIdData]) -> None:
        """Acknowledge entries that no user will."""
        self.acks.add(ids)
        self.send_soon()

    async def flush(self) -> None:
        """Return when the broker has answered all acks so far. Raises `OutcomeUnknown`, or what it refuses."""
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
            return  # another one has waited for them
        last = self._unanswered = kinds[-1]  # also for who asks before these are answered
        try:
            for some, is_cumulative in kinds:
                await self._send_and_wait(connection, some, cumulative=is_cumulative)
        except Unavailable as error:
            self.acks.restore(ids)
            raise OutcomeUnknown(f"whether acks of {topic} arrived is not known: {error}") from None
        finally:
            if self._unanswered is last:
                self._unanswered = None  # else more was sent meanwhile

    def _tell_of_lost(self) -> None:
        if self._are_lost:
            self._are_lost = False
            raise OutcomeUnknown(
                f"acks of {self._end.topic} were under way when a connection was lost; what did not arrive comes again"
            )

    async def _send_and_wait(
        self, connection: Connection, ids: list[pb.MessageIdData], *, cumulative: bool
    ) -> None:
        await connection.request(
            f"an ack of {len(ids)} ids of {self._end.topic}",
            lambda request_id: commands.ack(self._id, ids, cumulative=cumulative, request_id=request_id),
            pb.CommandAckResponse,
        )

    def connection_changes(self) -> None:
        """What is under way will not be answered."""
        if self._unanswered is not None:
            self._are_lost, self._unanswered = True, None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
