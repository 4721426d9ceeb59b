"""Cursor: the acknowledgements of one subscription. Performs no I/O; uses no clock and no topic.

    mark-delete          all entries up to and including it are acknowledged
    acked                individually acknowledged entries after it: a bitmap per ledger
    partial              partly acknowledged entries after it: a set bit is a remaining message
    redeliveries         redelivery counts of entries after it

The rules:

- There is no limit at which acknowledgements are dropped: the bitmaps grow with the number of acknowledged runs.
- The mark-delete position is always as high as possible. When the entry after it is acknowledged, it advances over the
  whole run at once, also into the next segment. Details of entries before it are dropped.
- An acknowledgement is stored once: an entry is in at most one of `acked`, `partial`, and the range up to mark-delete.
- Every change is also added to a *delta* since the last `take_delta`: one record for all acknowledgements of an event
  loop iteration. Replaying the deltas in order on the initial state restores the state, and replaying one twice does
  not change what is acknowledged.

Precondition of `acknowledge`: the entries exist in the topic (`dispatcher` checks this).

Pulsar's managed cursor has the same state (`individualDeletedMessages`, `batchDeletedIndexes`):
https://github.com/apache/pulsar/blob/master/managed-ledger/src/main/java/org/apache/bookkeeper/mledger/impl/ManagedCursorImpl.java
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.subscription.cursor.entry_set import EntrySet, run_end
from quire.serving.subscription.cursor.partial_acks import Chunk, PartialAcks, chunks_of
from quire.serving.subscription.cursor.redelivery import RedeliveryCounts
from quire.serving.subscription.delayed.delayed_snapshot import DelayedSnapshot


class CursorKey(NamedTuple):
    """Identity of a cursor. `generation` distinguishes a topic from a deleted topic of the same name."""

    topic: str
    generation: int
    subscription: str


class Delta(NamedTuple):
    """Changes of a cursor. Entries in `acked` and `partial` are after `mark_delete`.

    `partial` contains the bits of the remaining messages; each (ledger id, bit, entries) in `redelivered` adds 2^bit to
    the redelivery counts of these entries.
    """

    mark_delete: Position
    acked: EntrySet
    partial: list[Chunk]
    redelivered: list[tuple[int, int, BitMap]]


NO_PROPERTIES: Final[Mapping[str, str]] = {}
_PARTS: Final[Mapping[str, Callable[[], Any]]] = {
    "acked": EntrySet,
    "partial": PartialAcks,
    "redeliveries": RedeliveryCounts,
    "delayed_snapshot": DelayedSnapshot,
    "_delta_acked": EntrySet,
    "_delta_partial": dict,
    "_delta_redelivered": list,
}


class Cursor:
    """Acknowledgement state of one subscription."""

    __slots__ = (
        "_delta_acked",
        "_delta_partial",
        "_delta_redelivered",
        "acked",
        "delayed_snapshot",
        "id",
        "is_reset",
        "key",
        "mark_delete",
        "partial",
        "properties",
        "redeliveries",
    )

    def __init__(
        self, key: CursorKey, mark_delete: Position, properties: Mapping[str, str] | None = None
    ) -> None:
        self.id = 0
        """Cursor id in the cursor store; 0 if the cursor is not stored."""
        self.key = key
        self.properties: Mapping[str, str] = dict(properties) if properties else NO_PROPERTIES
        self.mark_delete = mark_delete
        self.is_reset = True
        """True if the next record must contain the whole state, because the cursor is new or was moved by a seek."""

    acked: EntrySet
    partial: PartialAcks
    redeliveries: RedeliveryCounts
    delayed_snapshot: DelayedSnapshot
    """Snapshot of entries after the mark-delete position, if some of them are delayed."""
    _delta_acked: EntrySet
    _delta_partial: dict[int, dict[int, int]]
    _delta_redelivered: list[tuple[int, int, BitMap]]

    def __getattr__(self, name: str) -> Any:
        """Create an empty part at its first use, because nearly all unused cursors have no parts."""
        made = _PARTS.get(name)
        if made is None:
            raise AttributeError(name)
        part = made()
        setattr(self, name, part)
        return part

    def rest(self) -> bool:
        """Drop empty parts, because the cursor is not in use. Return whether all parts were empty."""
        is_bare = True
        for name in _PARTS:
            if getattr(self, name):
                is_bare = False
            else:
                delattr(self, name)
        return is_bare

    # -- queries ---------------------------------------------------------------------------------------

    def unacknowledged(self, ledger_id: int, entries: BitMap) -> BitMap:
        """Remove completely acknowledged entries from `entries`, in place, and return `entries`."""
        marked = self.mark_delete
        if ledger_id <= marked.ledger_id:
            if ledger_id < marked.ledger_id:
                return BitMap()
            if marked.entry_id >= 0:
                entries.remove_range(0, marked.entry_id + 1)
        acked = self.acked.by_ledger.get(ledger_id)
        if acked is not None:
            entries -= acked
        return entries

    def is_acknowledged(self, position: Position) -> bool:
        return position <= self.mark_delete or position in self.acked

    def remaining(self, position: Position) -> int:
        """Return the bits of the remaining messages of a partly acknowledged entry; 0 for any other entry."""
        return self.partial.get(*position)

    def is_plain(self, ledger_id: int, first: int, stop: int) -> bool:
        """Return, cheaply, whether entries `first` .. `stop`-1 have no acknowledgements and no redeliveries."""
        if not (self.acked.by_ledger or self.partial or self.redeliveries):
            return True
        return not (
            self.acked.touches(ledger_id, first, stop)
            or self.partial.touches(ledger_id, first, stop)
            or self.redeliveries.touches(ledger_id, first, stop)
        )

    # -- acknowledging ---------------------------------------------------------------------------------

    def acknowledge(self, ledger_id: int, entries: BitMap, segments: Segments) -> None:
        """Acknowledge `entries`, which exist and are not acknowledged yet (see `unacknowledged`)."""
        first, last = entries.min(), entries.max()
        assert (ledger_id, first) > self.mark_delete
        whole = last - first + 1 == len(entries)
        if self.mark_delete == (ledger_id, first - 1) and whole:
            self._move(Position(ledger_id, last))
        else:
            self.acked.add(ledger_id, entries)
            self._delta_acked.add(ledger_id, entries)
            self._forget_details(ledger_id, entries)
        self._advance(segments)

    def acknowledge_up_to(self, position: Position, segments: Segments) -> None:
        """Acknowledge all entries up to and including `position`."""
        if position > self.mark_delete:
            self._move(position)
            self._advance(segments)

    def acknowledge_partly(self, position: Position, remaining: int) -> None:
        """Acknowledge the messages of an unacknowledged entry, except those with a bit set in `remaining` (> 0)."""
        assert remaining > 0 and position > self.mark_delete
        self.partial.put(*position, remaining)
        self._delta_partial.setdefault(position.ledger_id, {})[position.entry_id] = remaining

    def count_redelivery(self, ledger_id: int, entries: BitMap) -> None:
        """Count one redelivery of each of `entries`, which are not acknowledged."""
        assert entries and (ledger_id, entries.min()) > self.mark_delete
        self.redeliveries.add(ledger_id, entries)
        self._delta_redelivered.append((ledger_id, 0, BitMap(entries)))

    def reset(self, mark_delete: Position) -> None:
        """Mark all entries after `mark_delete` as unacknowledged and not redelivered, because of a seek."""
        self.mark_delete = mark_delete
        self.acked.clear()
        self.partial.clear()
        self.redeliveries.clear()
        self.delayed_snapshot = DelayedSnapshot()
        self._clear_delta()
        self.is_reset = True

    def _advance(self, segments: Segments) -> None:
        """Advance the mark-delete position over the acknowledged entries that follow it."""
        while self.acked.by_ledger:
            ledger_id, entry_id = self.mark_delete
            acked = self.acked.by_ledger.get(ledger_id)
            if acked is not None and entry_id + 1 in acked:
                self._move(Position(ledger_id, run_end(acked, entry_id + 1) - 1))
                continue
            following = segments.following(self.mark_delete)
            if following.ledger_id == ledger_id or following not in self.acked:
                return
            self._move(Position(following.ledger_id, -1))

    def _move(self, position: Position) -> None:
        self.mark_delete = position
        self.acked.remove_up_to(position)
        if self.partial:
            self.partial.remove_up_to(position)
        if self.redeliveries:
            self.redeliveries.remove_up_to(position)

    def _forget_details(self, ledger_id: int, entries: BitMap) -> None:
        """Drop remaining bits and redelivery counts of entries that are now completely acknowledged."""
        if self.partial:
            self.partial.remove(ledger_id, entries)
        if self.redeliveries:
            self.redeliveries.remove(ledger_id, entries)

    # -- records --------------------------------------------------------------------------------------

    def take_delta(self) -> Delta:
        """Return all changes since the last call, and clear them. Precondition: not `is_reset`."""
        assert not self.is_reset
        self._delta_acked.remove_up_to(self.mark_delete)
        partial = [
            chunk
            for ledger_id, changed in self._delta_partial.items()
            for chunk in chunks_of(ledger_id, self._still_partial(ledger_id, changed))
        ]
        delta = Delta(self.mark_delete, self._delta_acked, partial, self._delta_redelivered)
        self._clear_delta()
        return delta

    def _still_partial(self, ledger_id: int, changed: dict[int, int]) -> dict[int, int]:
        """Return the entries of `changed` that have not been completely acknowledged since."""
        still = self.partial.within(ledger_id, BitMap(changed))
        return changed if len(still) == len(changed) else {entry_id: changed[entry_id] for entry_id in still}

    def whole(self) -> Delta:
        """Return the whole state, as a delta to an empty cursor."""
        return Delta(
            self.mark_delete, self.acked, list(self.partial.chunks()), list(self.redeliveries.items())
        )

    def apply(self, delta: Delta) -> None:
        """Replay one delta, which restores the state that the cursor had when `take_delta` returned this delta."""
        for ledger_id, bit, entries in delta.redelivered:
            self.redeliveries.add(ledger_id, entries, bit)
        for chunk in delta.partial:
            self.partial.merge(chunk)
            acked = chunk.entries - self.unacknowledged(chunk.ledger_id, chunk.entries.copy())
            if acked:
                self.partial.remove(chunk.ledger_id, acked)
        for ledger_id, entries in delta.acked.items():
            self.acked.add(ledger_id, entries)
            self._forget_details(ledger_id, entries)
        self._move(max(delta.mark_delete, self.mark_delete))

    def _clear_delta(self) -> None:
        self._delta_acked = EntrySet()
        self._delta_partial = {}
        self._delta_redelivered = []
