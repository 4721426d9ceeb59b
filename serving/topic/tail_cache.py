"""The tail cache: confirmed blocks kept for readers that follow closely, bounded in bytes over all topics.

A tail reader never touches a bookie: the block it wants was confirmed a moment ago and is still here. Blocks enter
in the order of confirmation and leave in the same order whatever their topic, so eviction is one queue of the
topics whose turn it is; no clock, no use counts. The turns of a topic that was cleared leave when they are the greater
part of the queue: else it would keep one for every block of every topic that ever was. Within a topic the blocks are
consecutive up to the last one, so a position is found by bisection.
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
"""One look-up answers at most this much (and at least one block)."""

_COMPACT_AT: Final = 64


class TailCache:
    """The bytes of all topics' tails."""

    def __init__(self, bytes_max: int = TAIL_CACHE_BYTES) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._order: deque[Tail] = deque()
        self._turns_of_nobody = 0

    def tail(self) -> Tail:
        """A new topic's part of the cache."""
        return Tail(self)

    def _entered(self, tail: Tail, byte_count: int) -> None:
        self._order.append(tail)
        self.bytes_used += byte_count
        while self.bytes_used > self.bytes_max:
            tail = self._order.popleft()
            if tail.is_empty:
                self._turns_of_nobody -= 1
            tail._evict()

    def _cleared(self, turns: int) -> None:
        """So many turns of the queue are nobody's any more."""
        self._turns_of_nobody += turns
        if self._turns_of_nobody > max(_COMPACT_AT, len(self._order) // 2):
            self._order = deque(tail for tail in self._order if not tail.is_empty)
            self._turns_of_nobody = 0


class Tail:
    """One topic's newest confirmed blocks."""

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
        """Add the block that begins at `position`, behind all others of the topic."""
        self._keys.append(position)
        self._lasts.append(last_entry)
        self._blocks.append(block)
        self._cache._entered(self, len(block))

    def find(self, position: Position) -> Sequence[Buffer]:
        """Consecutive blocks from the one that contains `position` on; empty when that is not here."""
        at = bisect_right(self._keys, position, self._head) - 1
        if at < self._head or not self._contains(at, position):
            self.misses += 1
            return ()
        self.hits += 1
        return self._run(at)

    def _contains(self, at: int, position: Position) -> bool:
        return self._keys[at].ledger_id == position.ledger_id and position.entry_id <= self._lasts[at]

    def _run(self, at: int) -> Sequence[Buffer]:
        """Blocks of one ledger from `at` on, each beginning where the one before ended."""
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
        """Drop everything; the eviction queue finds nothing of this topic any more."""
        turns = len(self._blocks) - self._head
        self._cache.bytes_used -= sum(map(len, self._blocks[self._head :]))
        self._keys.clear()
        self._lasts.clear()
        self._blocks.clear()
        self._head = 0
        self._cache._cleared(turns)
