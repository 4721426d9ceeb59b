"""Reader of a topic's messages from a position on, without a durable subscription.

    async with client.reader("orders", start=EARLIEST) as reader:
        while await reader.has_next():
            message = await reader.read()

A reader is a consumer of a non-durable subscription. After a reconnect it continues after the last message that it
returned. It acknowledges each message that it returns, so that the broker need not track it as unacknowledged.
"""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

from quire.client.consumer import Consumer
from quire.client.messages import EARLIEST, Message, MessageId

T = TypeVar("T")


class Reader(Generic[T]):
    """Reader, created by `Client.reader`; it subscribes in `async with` (or `start`)."""

    def __init__(self, consumer: Consumer[T], start: MessageId, inclusive: bool) -> None:
        self._consumer = consumer
        self._start = start
        self._inclusive = inclusive
        self._is_at_a_time = False
        """True if the last seek was to a publish time, and no message was read since."""
        self._last: dict[str, MessageId] = {}
        self._ends: dict[str, tuple[MessageId, MessageId]] = {}
        """The last message and the mark-delete position by topic: the broker's last response since the last seek."""

    async def __aenter__(self) -> Reader[T]:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Reader[T]:
        return self

    async def __anext__(self) -> Message[T]:
        return await self._noted(await self._consumer.__anext__())

    async def read(self, timeout_s: float | None = None) -> Message[T]:
        """Wait for the next message and return it. Raises TimeoutError, `MessageUndecodable`, `Closed`."""
        return await self._noted(await self._consumer.receive(timeout_s))

    async def _noted(self, message: Message[T]) -> Message[T]:
        self._last[message.topic] = message.id
        await self._consumer.ack_cumulative(message)
        return message

    async def has_next(self) -> bool:
        """Return whether the topic contains a message that `read` has not returned yet.

        The broker's earlier response is reused only while messages wait in the inbox, because otherwise it may name a
        message that was trimmed since.
        """
        if not (self._consumer._has_arrivals and self._is_any_ahead()):
            self._ends = await self._consumer._ends()
        return self._is_any_ahead()

    def _is_any_ahead(self) -> bool:
        ends = self._ends.items()
        return any(self._is_ahead(last, mark, self._last.get(topic)) for topic, (last, mark) in ends)

    def _is_ahead(self, last: MessageId, mark: MessageId, seen: MessageId | None) -> bool:
        if last == EARLIEST:
            return False
        if seen is not None:
            return last.place > seen.place
        if self._is_at_a_time:
            return last[:2] > mark[:2]  # only the broker knows the message at this publish time
        return last.place >= self._start.place if self._inclusive else last.place > self._start.place

    async def seek(self, to: MessageId | None = None, *, publish_time_ms: int | None = None) -> None:
        """Move to a message (which is read next), `EARLIEST`, `LATEST`, or a publish time."""
        await self._consumer.seek(to, publish_time_ms=publish_time_ms)
        self._last.clear()
        self._ends.clear()
        self._start, self._inclusive, self._is_at_a_time = to or EARLIEST, True, to is None

    async def last_message_id(self) -> MessageId:
        """Return the id of the last message of an unpartitioned topic, or `EARLIEST` if it is empty."""
        return await self._consumer.last_message_id()

    async def start(self) -> None:
        """Subscribe. Raises the broker's error, or `Unavailable`."""
        await self._consumer.start()

    async def close(self) -> None:
        await self._consumer.close()
