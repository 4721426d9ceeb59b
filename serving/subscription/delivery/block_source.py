"""Where a subscription gets its blocks: the topic's tail cache, and, when it is behind, reads of the topic.

`take(position)` never waits: it returns the block that holds the position, from what was fetched or from the
tail cache, or None. `fetch(position)` starts a read; when it has returned, `wake` is called, and the subscription
takes again. While fetched blocks are being dispatched the chunk after them is read already, so a consumer that
catches up waits for one read only. One read is under way at most, and at most two chunks (`READ_CHUNK_BYTES`) are
held, however far behind the subscription is. A thousand subscriptions that are behind share a `ReadLimit`: so many
reads at once, so many bytes held.

A failed read is tried again after a while, for as long as somebody wants it; a position that was trimmed is
reported to `trimmed`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from quire.runtime.errors import NotFound, QuireError
from quire.runtime.limits import READ_CHUNK_BYTES, READ_HELD_BYTES_MAX, READS_MAX
from quire.runtime.tasks import Tasks
from quire.serving.model.ports import Position, TopicPort
from quire.serving.model.positions import following
from quire.serving.subscription.delivery import stretch
from quire.serving.subscription.delivery.delivery import BlockView
from quire.wire import block
from quire.wire.block import Buffer

RETRY_S_MIN = 0.05
RETRY_S_MAX = 5.0

_log = logging.getLogger(__name__)


class Reading(Protocol):
    """A subscription's pump, as its source sees it."""

    def wake(self) -> None: ...

    def trimmed(self) -> None:
        """What it wants to read is gone from the front of the topic."""
        ...


class _Nobody:
    """What a source that was closed wakes."""

    def wake(self) -> None: ...

    def trimmed(self) -> None: ...


_NOBODY: Final = _Nobody()


class ReadLimit:
    """What all subscriptions of a process together may read at once, and hold read and not dispatched."""

    def __init__(self, reads_max: int = READS_MAX, bytes_max: int = READ_HELD_BYTES_MAX) -> None:
        self._reads_max = reads_max
        self._bytes_max = bytes_max
        self._reads = 0
        self._waiting: dict[Reading, None] = {}
        self.bytes_held = 0

    @property
    def is_spent(self) -> bool:
        """More is held than should be: nothing is read ahead, and who cannot dispatch what it holds lets go of it."""
        return self.bytes_held > self._bytes_max

    def begin(self, reading: Reading) -> bool:
        """Whether `reading` may read now; if not, it is woken when it may ask again."""
        if self._reads >= self._reads_max:
            self._waiting[reading] = None
            return False
        self._reads += 1
        return True

    def end(self) -> None:
        self._reads -= 1
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        """Wake who waits, in order, until as many read as may: one that is woken may not want to any more."""
        while self._waiting and self._reads < self._reads_max:
            reading = next(iter(self._waiting))
            del self._waiting[reading]
            reading.wake()


class BlockSource:
    """The blocks of one topic for one subscription."""

    def __init__(self, topic: TopicPort, reading: Reading, tasks: Tasks, limit: ReadLimit) -> None:
        self._topic = topic
        self._reading: Reading = reading
        self._tasks = tasks
        self._limit = limit
        self._ready: list[BlockView] = []
        self._ready_bytes = 0
        self._fetched = False
        """Whether `_ready` was read rather than found in the tail cache."""
        self._task: asyncio.Task[None] | None = None
        self._is_reading = False
        """Whether one of the limit's reads is ours."""
        self._is_closed = False
        self._epoch = 0
        self._retry_s = RETRY_S_MIN
        self.last_error = ""
        """Why reading fails at present; "" when it does not."""

    def take(self, position: Position) -> BlockView | None:
        """The block that holds `position`, if it is at hand."""
        ready = self._ready
        while ready and ready[0].ledger_id == position.ledger_id and ready[0].stop_entry <= position.entry_id:
            self._count(-ready.pop(0).bytes)
        if not (ready and ready[0].holds(*position)):
            self.drop()
            self._fetched = False
            self._add(self._topic.cached(position))
            if not (ready and ready[0].holds(*position)):
                self.drop()
                return None
        if self._fetched:
            self._read_ahead()
        return ready[0]

    def fetch(self, position: Position) -> None:
        """Read the block at `position`, which is confirmed, and those after it; then wake."""
        if self._task is None and not self._is_closed and self._limit.begin(self._reading):
            work = self._fetch(position, self._epoch)
            self._is_reading = True
            self._task = self._tasks.start(work, f"reading {self._topic.name} at {position}")
            self._task.add_done_callback(self._fetched_or_cancelled)

    def rest(self) -> None:
        """Nobody takes anything now: what is at hand is kept, unless all hold too much together."""
        if self._limit.is_spent:
            self.drop()

    def clear(self) -> None:
        """Forget what is at hand, and what a read under way will bring."""
        self.drop()
        self._epoch += 1

    def instead(self, topic: TopicPort) -> BlockSource:
        """One that reads `topic` for the same subscription; this one is closed."""
        reading = self._reading
        self.close()
        return BlockSource(topic, reading, self._tasks, self._limit)

    def close(self) -> None:
        """Stop reading for good."""
        self._is_closed = True
        self._reading = _NOBODY
        self.clear()
        if self._task is not None:
            self._task.cancel()

    def _read_ahead(self) -> None:
        if self._task is not None or self._ready_bytes > READ_CHUNK_BYTES or self._limit.is_spent:
            return
        last = self._ready[-1]
        position = following(Position(last.ledger_id, last.stop_entry - 1), self._topic.segments())
        if position <= self._topic.last_confirmed and not self._topic.cached(position):
            self.fetch(position)

    async def _fetch(self, position: Position, epoch: int) -> None:
        error = await self._read(position, epoch)
        if isinstance(error, NotFound) and position < self._topic.first_position():
            self._reading.trimmed()
        elif error is not None:
            await self._failed(error)

    def _fetched_or_cancelled(self, task: asyncio.Task[None]) -> None:
        """However the task ended, even if it was cancelled before its first step: nothing of it may stay."""
        self._end_read()
        self._task = None
        if not task.cancelled():
            self._reading.wake()

    def _end_read(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._limit.end()

    async def _read(self, position: Position, epoch: int) -> QuireError | None:
        """Read one chunk; what went wrong, if anything did."""
        try:
            found = await self._topic.read(position, READ_CHUNK_BYTES)
        except QuireError as error:
            return error
        except Exception as error:
            _log.exception("a mistake of ours, while %s was to be read at %s", self._topic.name, position)
            return QuireError(f"reading {self._topic.name} at {position} failed: {error!r}")
        finally:
            self._end_read()
        if not found or not _holds(found[0], position):
            return QuireError(f"topic {self._topic.name} has no block at confirmed {position}")
        self._retry_s, self.last_error = RETRY_S_MIN, ""
        if epoch == self._epoch:
            self._keep(position, found)
        return None

    def _add(self, found: Iterable[Buffer]) -> None:
        for view in stretch.views([(buffer, block.peek(buffer)) for buffer in found]):
            self._ready.append(view)
            self._count(view.bytes)

    def drop(self) -> None:
        """Forget what is at hand."""
        if self._ready:
            self._ready.clear()
            self._count(-self._ready_bytes)

    def _count(self, byte_count: int) -> None:
        self._ready_bytes += byte_count
        self._limit.bytes_held += byte_count

    def _keep(self, position: Position, found: Iterable[Buffer]) -> None:
        """What was read goes after what is at hand, or replaces it when it is of another place."""
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


def _holds(buffer: Buffer, position: Position) -> bool:
    header = block.peek(buffer)
    return (
        header.ledger_id == position.ledger_id
        and header.first_entry <= position.entry_id <= header.last_entry
    )
