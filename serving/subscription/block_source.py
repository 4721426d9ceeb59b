"""Where a subscription gets its blocks: the topic's tail cache, and, when it is behind, reads of the topic.

`take(position)` never waits: it answers the block that holds the position, from what was fetched or from the
tail cache, or None. `fetch(position)` starts a read; when it has answered, `wake` is called, and the subscription
takes again. While fetched blocks are being dealt the chunk behind them is read already, so a consumer that
catches up waits for one read only. One read is under way at most, and at most two chunks (`READ_CHUNK_BYTES`) are
held, however far behind the subscription is.

A failed read is tried again after a while, for as long as somebody wants it; a position that was trimmed is
reported to `trimmed`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from quire.runtime.errors import NotFound, QuireError
from quire.runtime.limits import READ_CHUNK_BYTES
from quire.runtime.tasks import Tasks
from quire.serving.ports import Position, TopicPort
from quire.serving.subscription.delivery import BlockView
from quire.serving.subscription.positions import following
from quire.wire import block
from quire.wire.block import Buffer

RETRY_S_MIN = 0.05
RETRY_S_MAX = 5.0

_log = logging.getLogger(__name__)


class Reading(Protocol):
    """The subscription, as its source sees it."""

    def wake(self) -> None: ...

    def trimmed(self) -> None:
        """What it wants to read is gone from the front of the topic."""
        ...


class BlockSource:
    """The blocks of one topic for one subscription."""

    def __init__(self, topic: TopicPort, reading: Reading, tasks: Tasks) -> None:
        self._topic = topic
        self._reading = reading
        self._tasks = tasks
        self._ready: deque[BlockView] = deque()
        self._ready_bytes = 0
        self._fetched = False
        """Whether `_ready` was read rather than found in the tail cache."""
        self._task: asyncio.Task[None] | None = None
        self._epoch = 0
        self._retry_s = RETRY_S_MIN
        self.last_error = ""

    @property
    def is_empty(self) -> bool:
        return not self._ready

    def take(self, position: Position) -> BlockView | None:
        """The block that holds `position`, if it is at hand."""
        ready = self._ready
        while ready and ready[0].ledger_id == position.ledger_id and ready[0].stop_entry <= position.entry_id:
            self._ready_bytes -= ready.popleft().bytes
        if not (ready and ready[0].holds(*position)):
            self._drop()
            self._fetched = False
            self._add(self._topic.cached(position))
            if not (ready and ready[0].holds(*position)):
                self._drop()
                return None
        if self._fetched:
            self._read_ahead()
        return ready[0]

    def fetch(self, position: Position) -> None:
        """Read the block at `position`, which is confirmed, and those behind it; then wake."""
        if self._task is None:
            work = self._fetch(position, self._epoch)
            self._task = self._tasks.start(work, f"reading {self._topic.name} at {position}")

    def clear(self) -> None:
        """Forget what is at hand, and what a read under way will bring."""
        self._drop()
        self._epoch += 1

    def close(self) -> None:
        """Stop reading for good."""
        self.clear()
        if self._task is not None:
            self._task.cancel()

    def _read_ahead(self) -> None:
        if self._task is not None or self._ready_bytes > READ_CHUNK_BYTES:
            return
        last = self._ready[-1]
        position = following(Position(last.ledger_id, last.stop_entry - 1), self._topic.segments())
        if position <= self._topic.last_confirmed and not self._topic.cached(position):
            self.fetch(position)

    async def _fetch(self, position: Position, epoch: int) -> None:
        try:
            found = await self._topic.read(position, READ_CHUNK_BYTES)
            if not found:
                raise QuireError(f"topic {self._topic.name} has no block at confirmed {position}")
            self._retry_s, self.last_error = RETRY_S_MIN, ""
            if epoch == self._epoch:
                self._keep(position, found)
        except NotFound as error:
            if position < self._topic.first_position():
                self._reading.trimmed()
            else:
                await self._failed(error)
        except QuireError as error:
            await self._failed(error)
        self._task = None
        self._reading.wake()

    def _add(self, found: Iterable[Buffer]) -> None:
        for buffer in found:
            view = BlockView(buffer, block.peek(buffer))
            self._ready.append(view)
            self._ready_bytes += view.bytes

    def _drop(self) -> None:
        self._ready.clear()
        self._ready_bytes = 0

    def _keep(self, position: Position, found: Iterable[Buffer]) -> None:
        """What was read goes behind what is at hand, or replaces it when it is of another place."""
        if self._ready:
            last = self._ready[-1]
            end = Position(last.ledger_id, last.stop_entry - 1)
            if following(end, self._topic.segments()) != position:
                return
        self._fetched = True
        self._add(found)

    async def _failed(self, error: QuireError) -> None:
        if str(error) != self.last_error:
            _log.warning("reading %s for a subscription failed, trying again: %s", self._topic.name, error)
        self.last_error = str(error)
        self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)
        await asyncio.sleep(self._retry_s)
