"""A reader: messages from a position on, without a subscription that the broker would remember.

    async with client.reader("orders", start=EARLIEST) as reader:
        while await reader.has_next():
            message = await reader.read()

It is a consumer of a subscription that is not durable. After a reconnect it goes on after the last message that it
handed out. It acknowledges what it hands out, so that the broker need not remember it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

from quire.client.consumer import Consumer
from quire.client.messages import EARLIEST, Message, MessageId

T = TypeVar("T")


class Reader(Generic[T]):
    """Made by `Client.reader`; begins with `async with` (or `start`)."""

    def __init__(self, consumer: Consumer[T], start: MessageId, inclusive: bool) -> None:
        self._consumer = consumer
        self._start = start
        self._inclusive = inclusive
        self._is_at_a_time = False
        """It was sought by publish time, and no message was read since."""
        self._last: dict[str, MessageId] = {}
        self._ends: dict[str, tuple[MessageId, MessageId]] = {}
        """What the broker said when it was asked last, since the last seek."""

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
        """The next message, waiting for it. Raises TimeoutError, `MessageUndecodable`, `Closed`."""
        return await self._noted(await self._consumer.receive(timeout_s))

    async def _noted(self, message: Message[T]) -> Message[T]:
        self._last[message.topic] = message.id
        await self._consumer.ack_cumulative(message)
        return message

    async def has_next(self) -> bool:
        """Whether the topic holds a message that `read` has not given yet.

        The broker is asked only when nothing is at hand: what has arrived is there, and what it said before may be
        trimmed by now.
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
            return last[:2] > mark[:2]  # only the broker knows which message the time is at
        return last.place >= self._start.place if self._inclusive else last.place > self._start.place

    async def seek(self, to: MessageId | None = None, *, publish_time_ms: int | None = None) -> None:
        """Go to a message (it comes next), `EARLIEST`, `LATEST`, or a publish time."""
        await self._consumer.seek(to, publish_time_ms=publish_time_ms)
        self._last.clear()
        self._ends.clear()
        self._start, self._inclusive, self._is_at_a_time = to or EARLIEST, True, to is None

    async def last_message_id(self) -> MessageId:
        """The last message of the topic (without partitions); `EARLIEST` when it is empty."""
        return await self._consumer.last_message_id()

    async def start(self) -> None:
        """Begin. Raises what a broker refuses, or `Unavailable`."""
        await self._consumer.start()

    async def close(self) -> None:
        await self._consumer.close()
