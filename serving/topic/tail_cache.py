"""Tail cache: confirmed blocks for readers close to the end of a topic, bounded in bytes over all topics.

A tail reader usually needs no bookie, because its next block was confirmed recently and is still cached. Eviction is
FIFO over all topics, in the order of confirmation, so it needs neither a clock nor use counts. One queue has a slot for
each cached block, with a reference to the block's topic. Slots of cleared topics are removed when they exceed half of
the queue; otherwise, the queue would keep a slot for every block of every cleared topic. The positions of a topic's
blocks are ascending, so a position is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

from quire.runtime.limits import MIB, TAIL_CACHE_BYTES
from quire.serving.model.ports import Position
from quire.wire.block import Buffer

ANSWER_BYTES_MAX: Final = 1 * MIB
"""Maximum number of bytes that one look-up returns; it always returns at least one block."""

_COMPACT_AT: Final = 64


class TailCache:
    """Tail cache of all topics of a broker."""

    def __init__(self, bytes_max: int = TAIL_CACHE_BYTES) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._order: deque[Tail] = deque()
        self._cleared_slots = 0

    def tail(self) -> Tail:
        """Create the part of the cache for a new topic."""
        return Tail(self)

    def _entered(self, tail: Tail, byte_count: int) -> None:
        self._order.append(tail)
        self.bytes_used += byte_count
        while self.bytes_used > self.bytes_max:
            tail = self._order.popleft()
            if tail.is_empty:
                self._cleared_slots -= 1
            tail._evict()

    def _cleared(self, slots: int) -> None:
        """Count queue slots of cleared topics, and remove such slots when they exceed half of the queue."""
        self._cleared_slots += slots
        if self._cleared_slots > max(_COMPACT_AT, len(self._order) // 2):
            self._order = deque(tail for tail in self._order if not tail.is_empty)
            self._cleared_slots = 0


class Tail:
    """Newest confirmed blocks of one topic."""

    __slots__ = ("_blocks", "_cache", "_head", "_keys", "_lasts", "hits", "misses")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._keys: list[Position] = []
        self._lasts: list[int] = []
        self._blocks: list[Buffer] = []
        self._head = 0
        self.hits = 0
        self.misses = 0

    @property
    def is_empty(self) -> bool:
        return self._head == len(self._blocks)

    def put(self, position: Position, last_entry: int, block: Buffer) -> None:
        """Add the block that begins at `position`, after all earlier blocks of the topic."""
        self._keys.append(position)
        self._lasts.append(last_entry)
        self._blocks.append(block)
        self._cache._entered(self, len(block))

    def find(self, position: Position) -> Sequence[Buffer]:
        """Return consecutive blocks from the one that contains `position` on.

        Return an empty sequence if that block is not cached.
        """
        at = bisect_right(self._keys, position, self._head) - 1
        if at < self._head or not self._contains(at, position):
            self.misses += 1
            return ()
        self.hits += 1
        return self._run(at)

    def _contains(self, at: int, position: Position) -> bool:
        return self._keys[at].ledger_id == position.ledger_id and position.entry_id <= self._lasts[at]

    def _run(self, at: int) -> Sequence[Buffer]:
        """Collect consecutive blocks of one ledger from index `at` on, up to `ANSWER_BYTES_MAX`."""
        keys, lasts, found = self._keys, self._lasts, [self._blocks[at]]
        room = ANSWER_BYTES_MAX - len(found[0])
        for i in range(at + 1, len(keys)):
            room -= len(self._blocks[i])
            if room < 0 or keys[i] != (keys[at].ledger_id, lasts[i - 1] + 1):
                break
            found.append(self._blocks[i])
        return found

    def _evict(self) -> None:
        head = self._head
        if self.is_empty:
            return
        self._cache.bytes_used -= len(self._blocks[head])
        self._blocks[head] = b""
        self._head = head + 1
        if head > _COMPACT_AT and 2 * head > len(self._blocks):
            self._compact()

    def _compact(self) -> None:
        del self._keys[: self._head], self._lasts[: self._head], self._blocks[: self._head]
        self._head = 0

    def clear(self) -> None:
        """Drop all blocks. The topic's slots in the eviction queue then evict nothing."""
        slots = len(self._blocks) - self._head
        self._cache.bytes_used -= sum(map(len, self._blocks[self._head :]))
        self._keys.clear()
        self._lasts.clear()
        self._blocks.clear()
        self._head = 0
        self._cache._cleared(slots)
