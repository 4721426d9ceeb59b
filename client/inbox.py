"""What a consumer has received and its user has not taken yet. No I/O but one event.

Entries of all partitions queue up as they came; the one whose turn it is gets decoded as a whole, and its messages
are handed out one by one. A message leaves the inbox in the same step in which it is handed to the user, so
a cancelled `receive` loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from quire.client.messages import Message
from quire.client.partition_consumer import Arrival
from quire.runtime.errors import QuireError


class Inbox:
    """The sink of all partitions of one consumer."""

    def __init__(self) -> None:
        self._arrived: deque[Arrival] = deque()
        self._ready: deque[Message[Any]] = deque()
        self._something = asyncio.Event()
        self._error: QuireError | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing has come that was not taken."""
        return not self._arrived and not self._ready

    def put(self, arrival: Arrival) -> None:
        self._arrived.append(arrival)
        self._something.set()

    def look_again(self) -> None:
        """What the arrival whose turn it is waited for is here."""
        self._something.set()

    def fail(self, error: QuireError) -> None:
        """Nothing more will come; what is here can still be taken."""
        self._error = error
        self._something.set()

    def pop(self) -> Message[Any] | None:
        """The next message; None when there is none. Raises `MessageUndecodable`, or what `fail` was given."""
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
        """The next message, as soon as there is one. Several tasks may wait."""
        while (message := self.pop()) is None:
            self._something.clear()
            await self._something.wait()
        return message
