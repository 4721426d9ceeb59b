"""Block source of a subscription: the topic's tail cache and, for a subscription with a backlog, reads of the topic.

`take(position)` never waits: it returns the block that contains the position, from fetched blocks or from the tail
cache, or None. `fetch(position)` starts a read. After the read the source calls `wake`, and the subscription calls
`take` again. While the subscription dispatches fetched blocks, the source reads the next chunk (read-ahead), so a
consumer with a backlog waits only for the first read.

A source has at most one read in progress and holds at most about two chunks (`READ_CHUNK_BYTES`), independent of the
backlog. All subscriptions of a broker share a `ReadLimit` of concurrent reads and of bytes held.

A failed read is retried with exponential back-off as long as the subscription needs the block. If the position was
trimmed, the source calls `trimmed` instead.
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
from quire.serving.subscription.delivery import coalescing
from quire.serving.subscription.delivery.delivery import BlockView
from quire.wire import block
from quire.wire.block import Buffer

RETRY_S_MIN = 0.05
RETRY_S_MAX = 5.0

_log = logging.getLogger(__name__)


class Reading(Protocol):
    """Port from a source to its subscription's pump."""

    def wake(self) -> None: ...

    def trimmed(self) -> None:
        """Skip the requested position, which was trimmed."""
        ...


class _Closed:
    """Null object that replaces the pump of a closed source."""

    def wake(self) -> None: ...

    def trimmed(self) -> None: ...


_CLOSED: Final = _Closed()


class ReadLimit:
    """Limit, over all subscriptions of a process, on concurrent reads and on bytes read but not yet dispatched."""

    def __init__(self, reads_max: int = READS_MAX, bytes_max: int = READ_HELD_BYTES_MAX) -> None:
        self._reads_max = reads_max
        self._bytes_max = bytes_max
        self._reads = 0
        self._waiting: dict[Reading, None] = {}
        self.bytes_held = 0

    @property
    def is_spent(self) -> bool:
        """True if too many bytes are held: sources do not read ahead, and drop blocks that they cannot dispatch."""
        return self.bytes_held > self._bytes_max

    def begin(self, reading: Reading) -> bool:
        """Return whether `reading` may read now. If not, its `wake` is called when it may try again."""
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
        """Wake waiting subscriptions in order while reads are available; a woken one may need no read any more."""
        while self._waiting and self._reads < self._reads_max:
            reading = next(iter(self._waiting))
            del self._waiting[reading]
            reading.wake()


class BlockSource:
    """Block source of one subscription of a topic."""

    def __init__(self, topic: TopicPort, reading: Reading, tasks: Tasks, limit: ReadLimit) -> None:
        self._topic = topic
        self._reading: Reading = reading
        self._tasks = tasks
        self._limit = limit
        self._ready: list[BlockView] = []
        self._ready_bytes = 0
        self._fetched = False
        """True if the blocks in `_ready` were read from the topic; False if they came from the tail cache."""
        self._task: asyncio.Task[None] | None = None
        self._is_reading = False
        """True while this source uses one of the limit's concurrent reads."""
        self._is_closed = False
        self._epoch = 0
        self._retry_s = RETRY_S_MIN
        self.last_error = ""
        """Error of the last read; an empty string if it succeeded."""

    def take(self, position: Position) -> BlockView | None:
        """Return the block that contains `position`, if it was fetched or is cached; otherwise None."""
        ready = self._ready
        while ready and ready[0].ledger_id == position.ledger_id and ready[0].stop_entry <= position.entry_id:
            self._count(-ready.pop(0).header.length)
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
        """Read the block at `position`, which is confirmed, and the following ones; then call `wake`."""
        if self._task is None and not self._is_closed and self._limit.begin(self._reading):
            work = self._fetch(position, self._epoch)
            self._is_reading = True
            self._task = self._tasks.start(work, f"reading {self._topic.name} at {position}")
            self._task.add_done_callback(self._fetched_or_cancelled)

    def rest(self) -> None:
        """Keep the fetched blocks while no consumer is ready, unless all subscriptions together hold too many bytes."""
        if self._limit.is_spent:
            self.drop()

    def clear(self) -> None:
        """Drop the fetched blocks, and ignore the result of a read in progress."""
        self.drop()
        self._epoch += 1

    def instead(self, topic: TopicPort) -> BlockSource:
        """Close this source, and return a new one that reads `topic` for the same subscription."""
        reading = self._reading
        self.close()
        return BlockSource(topic, reading, self._tasks, self._limit)

    def close(self) -> None:
        """Stop reading permanently."""
        self._is_closed = True
        self._reading = _CLOSED
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
        """End a read whose task finished, even if it was cancelled before its first step; then call `wake`."""
        self._end_read()
        self._task = None
        if not task.cancelled():
            self._reading.wake()

    def _end_read(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._limit.end()

    async def _read(self, position: Position, epoch: int) -> QuireError | None:
        """Read one chunk. Return the error if the read failed."""
        try:
            found = await self._topic.read(position, READ_CHUNK_BYTES)
        except QuireError as error:
            return error
        except Exception as error:
            _log.exception(
                "internal error while reading a topic: topic=%s position=%s", self._topic.name, position
            )
            return QuireError(f"reading {self._topic.name} at {position} failed: {error!r}")
        finally:
            self._end_read()
        if not found or not _holds(found[0], position):
            return QuireError(
                f"topic {self._topic.name} has no block at {position}, although that entry was confirmed"
            )
        self._retry_s, self.last_error = RETRY_S_MIN, ""
        if epoch == self._epoch:
            self._keep(position, found)
        return None

    def _add(self, found: Iterable[Buffer]) -> None:
        for view in coalescing.views([(buffer, block.peek(buffer)) for buffer in found]):
            self._ready.append(view)
            self._count(view.header.length)

    def drop(self) -> None:
        """Drop the fetched blocks."""
        if self._ready:
            self._ready.clear()
            self._count(-self._ready_bytes)

    def _count(self, byte_count: int) -> None:
        self._ready_bytes += byte_count
        self._limit.bytes_held += byte_count

    def _keep(self, position: Position, found: Iterable[Buffer]) -> None:
        """Append the blocks of a read to the fetched blocks; discard them if they are not consecutive."""
        if self._ready:
            last = self._ready[-1]
            end = Position(last.ledger_id, last.stop_entry - 1)
            if following(end, self._topic.segments()) != position:
                return
        self._fetched = True
        self._add(found)

    async def _failed(self, error: QuireError) -> None:
        if str(error) != self.last_error:
            _log.warning(
                "read for a subscription failed, retrying: topic=%s error=%s", self._topic.name, error
            )
        self.last_error = str(error)
        self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)
        await asyncio.sleep(self._retry_s)


def _holds(buffer: Buffer, position: Position) -> bool:
    header = block.peek(buffer)
    return (
        header.ledger_id == position.ledger_id
        and header.first_entry <= position.entry_id <= header.last_entry
    )
