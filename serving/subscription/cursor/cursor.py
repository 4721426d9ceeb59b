"""The cursor: what one subscription has acknowledged. A core: no I/O, no clock, no topic.

    mark-delete          everything up to and with it is acknowledged
    acked                entries after it that were acknowledged one by one: a bitmap per ledger
    partial              entries of which only some messages were: a set bit is a message still to come
    redeliveries         how often entries after it were given back

The rules:

- Nothing is dropped at a cap. The bitmaps grow as far as the acknowledgements are scattered.
- The mark-delete position is as high as it can be: when the entry after it is acknowledged it moves over the
  whole run at once, from one segment into the next, and what it passed is forgotten.
- An acknowledgement is kept once: an entry is in `acked`, or in `partial`, or below mark-delete, or neither.
- Every change is also gathered as a *delta* since the last `take_delta`: one record for all that a turn
  acknowledged. Replaying the deltas in order on the state before them gives the state again, and replaying
  one twice does no harm to what is acknowledged.

Positions given to `acknowledge` exist in the topic; whoever calls it has checked that (`dispatcher`).
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
from quire.serving.subscription.delayed.survey import Survey


class CursorKey(NamedTuple):
    """Whose cursor it is. `generation` tells a topic from a former one of its name."""

    topic: str
    generation: int
    subscription: str


class Delta(NamedTuple):
    """What changed: acked entries and changed partial ones are after `mark_delete`.

    `partial` holds remaining bits; `redelivered` are (ledger, bit, entries): add 2^bit to their counts.
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
    "survey": Survey,
    "_delta_acked": EntrySet,
    "_delta_partial": dict,
    "_delta_redelivered": list,
}


class Cursor:
    """The acknowledgements of one subscription."""

    __slots__ = (
        "_delta_acked",
        "_delta_partial",
        "_delta_redelivered",
        "acked",
        "id",
        "is_reset",
        "key",
        "mark_delete",
        "partial",
        "properties",
        "redeliveries",
        "survey",
    )

    def __init__(
        self, key: CursorKey, mark_delete: Position, properties: Mapping[str, str] | None = None
    ) -> None:
        self.id = 0
        """Where it is kept (`cursor_store`); 0: nowhere, or no longer."""
        self.key = key
        self.properties: Mapping[str, str] = dict(properties) if properties else NO_PROPERTIES
        self.mark_delete = mark_delete
        self.is_reset = True
        """The next record must be the whole state: the cursor is new or was moved."""

    acked: EntrySet
    partial: PartialAcks
    redeliveries: RedeliveryCounts
    survey: Survey
    """What was found after mark-delete; see there."""
    _delta_acked: EntrySet
    _delta_partial: dict[int, dict[int, int]]
    _delta_redelivered: list[tuple[int, int, BitMap]]

    def __getattr__(self, name: str) -> Any:
        """A part that is empty is made when somebody asks for it, for nearly all cursors are at rest without any."""
        made = _PARTS.get(name)
        if made is None:
            raise AttributeError(name)
        part = made()
        setattr(self, name, part)
        return part

    def rest(self) -> bool:
        """Nobody uses it for now: let go of the parts that are empty. Whether all of them are."""
        is_bare = True
        for name in _PARTS:
            if getattr(self, name):
                is_bare = False
            else:
                delattr(self, name)
        return is_bare

    # -- asking ----------------------------------------------------------------------------------------

    def unacknowledged(self, ledger_id: int, entries: BitMap) -> BitMap:
        """Those of `entries` that are not wholly acknowledged. `entries` is changed and returned."""
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
        """The bits of a partly acknowledged entry's messages that are still to come; 0 for any other entry."""
        return self.partial.get(*position)

    def is_plain(self, ledger_id: int, first: int, stop: int) -> bool:
        """Whether `first` .. `stop`-1 have no acknowledgement and no redelivery: the common case, cheaply."""
        if not (self.acked.by_ledger or self.partial or self.redeliveries):
            return True
        return not (
            self.acked.touches(ledger_id, first, stop)
            or self.partial.touches(ledger_id, first, stop)
            or self.redeliveries.touches(ledger_id, first, stop)
        )

    # -- acknowledging ---------------------------------------------------------------------------------

    def acknowledge(self, ledger_id: int, entries: BitMap, segments: Segments) -> None:
        """Acknowledge `entries`, none of which is acknowledged yet (see `unacknowledged`) and all of which exist."""
        first, last = entries.min(), entries.max()
        whole = last - first + 1 == len(entries)
        if self.mark_delete == (ledger_id, first - 1) and whole:
            self._move(Position(ledger_id, last))
        else:
            self.acked.add(ledger_id, entries)
            self._delta_acked.add(ledger_id, entries)
            self._forget_details(ledger_id, entries)
        self._advance(segments)

    def acknowledge_up_to(self, position: Position, segments: Segments) -> None:
        """Acknowledge everything up to and with `position`."""
        if position > self.mark_delete:
            self._move(position)
            self._advance(segments)

    def acknowledge_partly(self, position: Position, remaining: int) -> None:
        """Of an entry that is not acknowledged only the messages with bits in `remaining` (> 0) are still to come."""
        assert remaining > 0
        self.partial.put(*position, remaining)
        self._delta_partial.setdefault(position.ledger_id, {})[position.entry_id] = remaining

    def count_redelivery(self, ledger_id: int, entries: BitMap) -> None:
        """`entries` are given back and will be delivered once more."""
        self.redeliveries.add(ledger_id, entries)
        self._delta_redelivered.append((ledger_id, 0, BitMap(entries)))

    def reset(self, mark_delete: Position) -> None:
        """Seek: everything after `mark_delete` is to come again, with its counts forgotten."""
        self.mark_delete = mark_delete
        self.acked.clear()
        self.partial.clear()
        self.redeliveries.clear()
        self.survey = Survey()
        self._clear_delta()
        self.is_reset = True

    def _advance(self, segments: Segments) -> None:
        """Move mark-delete over all that is acknowledged right after it."""
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
        """What is acknowledged whole has neither remaining bits nor redeliveries."""
        if self.partial:
            self.partial.remove(ledger_id, entries)
        if self.redeliveries:
            self.redeliveries.remove(ledger_id, entries)

    # -- what to write down ----------------------------------------------------------------------------

    def take_delta(self) -> Delta:
        """All changes since the last call; only when not `is_reset`."""
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
        """What of `changed` was not acknowledged whole since."""
        still = self.partial.within(ledger_id, BitMap(changed))
        return changed if len(still) == len(changed) else {entry_id: changed[entry_id] for entry_id in still}

    def whole(self) -> Delta:
        """The state as a delta to an empty cursor."""
        return Delta(
            self.mark_delete, self.acked, list(self.partial.chunks()), list(self.redeliveries.items())
        )

    def apply(self, delta: Delta) -> None:
        """Replay one delta; afterwards the cursor is what it was after `take_delta`."""
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
