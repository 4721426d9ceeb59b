"""Store of all cursors of one bundle, in the bundle's state log, with group commit of acknowledgements.

One iteration (*turn*) of the event loop may process thousands of acknowledgements for hundreds of cursors. They change
the cursors immediately. At the end of the turn the store appends one record for each changed cursor, and the log writes
them as one block. When that block is durable, the store calls `done` of each acknowledgement.

    changed(cursor, done)  ──▶  end of the turn: one record per cursor  ──▶  durable: every done
    save(cursor)                the same, awaited: create, seek and delete are durable before the client is answered

After a crash the log is replayed, so exactly the messages without a durable acknowledgement are delivered again. An
acknowledgement without a `done` is written in the same way, in the same turn.

A broker keeps the cursors of all topics that it owns, most of which are not loaded. Nearly every unused cursor is just
a mark-delete position. The store packs such a cursor into its BEGIN record, a `bytes` object, and unpacks it when its
topic is loaded.

A snapshot must be consistent. Encoding thousands of cursors takes too long for one turn, so most are encoded in advance
(`prepare`), a few per turn; cursors that changed since are encoded again. A packed cursor is already encoded.

Cursor ids are never reused. The log also contains other records; the records of cursors begin with `cursor_record.TAG`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from quire.runtime.clock import Clock, SystemClock
from quire.runtime.errors import AlreadyExists, QuireError
from quire.runtime.tasks import promise
from quire.serving.model.ports import Position, was_unloaded
from quire.serving.model.rates import Totals
from quire.serving.model.request import Done
from quire.serving.subscription.cursor import cursor_record
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.cursor.cursor_record import Kind
from quire.serving.subscription.delayed.delayed_snapshot import SnapshotSegment

CURSORS_A_TURN: Final = 100
"""Number of cursors encoded for a snapshot in one event loop iteration, which takes two milliseconds."""

_log = logging.getLogger(__name__)


class Log(Protocol):
    """Part of `quire.ledger.state_log.StateLog` that the store calls."""

    def append(self, record: bytes, done: Callable[[QuireError | None], None] | None = None) -> None: ...


class CursorStore:
    """Cursors of one bundle. The state log calls `apply` and `snapshot`, and is attached before the first change.

    `totals` are the bundle's counters; they include the times from the end of a turn until its acknowledgements are
    durable.
    """

    def __init__(self, clock: Clock | None = None, totals: Totals | None = None) -> None:
        self._clock = clock or SystemClock()
        self.totals = totals or Totals()
        self._cursors: dict[int, Cursor | bytes] = {}
        """Cursors by id. A cursor packed as `bytes` is unused, and its BEGIN record contains all of its state."""
        self._by_topic: dict[str, tuple[int, ...]] = {}
        self._next_id = 1
        self._log: Log | None = None
        self._waiting: dict[int, list[Done]] = {}
        """Callbacks that are called when a cursor's changes of this turn are durable, by cursor id."""
        self._prepared: dict[int, list[bytes]] = {}
        """Records for the next snapshot, by cursor id, of cursors that have not changed since they were encoded."""

    # -- for the log -----------------------------------------------------------------------------------

    def apply(self, raw: bytes) -> None:
        """Replay one record of the state log. Raises `CorruptionError`."""
        kind, cursor_id, begun, delta, segment = cursor_record.parse(raw)
        self._next_id = max(self._next_id, cursor_id + 1)
        if kind is Kind.BEGIN:
            assert begun is not None
            self._forget(cursor_id)
            self._insert(cursor_id, begun)
            self._pack(cursor_id)
        elif kind is Kind.DELETE:
            self._forget(cursor_id)
        elif cursor_id not in self._cursors:
            return
        elif delta is not None:
            # The next record may belong to this cursor, too, so it is packed only after the replay (`prepare`).
            cursor = self._unpack(cursor_id)
            cursor.apply(delta)
            cursor.rest()
        elif segment is not None:
            self._unpack(cursor_id).delayed_snapshot.extend(segment)

    async def prepare(self) -> None:
        """Encode cursors for the next `snapshot`, a few in each event loop iteration."""
        self._prepared = {}
        for count, cursor_id in enumerate(list(self._cursors), 1):
            if self._log is None:
                self._pack(cursor_id)  # the log was just replayed, and no topic uses the cursors yet
            cursor = self._cursors.get(cursor_id)
            if isinstance(cursor, Cursor):
                self._prepared[cursor_id] = self._encoded(cursor_id, cursor)
            if count % CURSORS_A_TURN == 0:
                await asyncio.sleep(0)

    def snapshot(self) -> Iterator[bytes]:
        """Yield all cursors as records for `apply`, after writing the changes of this turn to the log.

        Otherwise a change would be in the snapshot and also in the log after it, and redeliveries would be counted
        twice.
        """
        self._write()
        prepared, self._prepared = self._prepared, {}
        for cursor_id, cursor in sorted(self._cursors.items()):
            if isinstance(cursor, bytes):
                yield cursor
            else:
                yield from prepared.get(cursor_id) or self._encoded(cursor_id, cursor)

    def _encoded(self, cursor_id: int, cursor: Cursor) -> list[bytes]:
        encoded = list(cursor_record.snapshot(cursor_id, cursor))
        cursor.rest()  # encoding created empty parts
        return encoded

    def give(self, other: CursorStore, is_given: Callable[[str], bool]) -> None:
        """Move the cursors of the topics that `is_given` selects to another store.

        Changes of this turn are first written to this store's log.
        """
        self._write()
        other._next_id = self._next_id
        for topic in [topic for topic in self._by_topic if is_given(topic)]:
            other._by_topic[topic] = given = self._by_topic.pop(topic)
            for cursor_id in given:
                other._cursors[cursor_id] = self._cursors.pop(cursor_id)
                if cursor_id in self._prepared:
                    other._prepared[cursor_id] = self._prepared.pop(cursor_id)

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Forget the cursors of all topics that `is_kept` does not select."""
        for topic in [topic for topic in self._by_topic if not is_kept(topic)]:
            for cursor_id in self._by_topic[topic]:
                self._forget(cursor_id)

    def attach(self, log: Log) -> None:
        """Attach the state log, which is open and replayed; later changes are appended to it."""
        self._log = log

    # -- for subscriptions -----------------------------------------------------------------------------

    def of_topic(self, topic: str) -> list[Cursor]:
        """Return the unpacked cursors of all generations of a topic, which may be used until `rest`."""
        return [self._unpack(cursor_id) for cursor_id in self._by_topic.get(topic, ())]

    def rest(self, topic: str) -> None:
        """Pack the cursors of an unloaded topic. Later changes of the unpacked objects are rejected (see `changed`).

        A cursor stays unpacked if it has more state than its BEGIN record, or changes that are not written yet.
        """
        for cursor_id in self._by_topic.get(topic, ()):
            if cursor_id not in self._waiting:
                self._pack(cursor_id)

    def create(self, key: CursorKey, mark_delete: Position, properties: Mapping[str, str]) -> Cursor:
        """Create a cursor, which is durable after `save`. Raises `AlreadyExists`."""
        if any(one.key == key for one in self.of_topic(key.topic)):
            raise AlreadyExists(f"subscription {key.subscription} of {key.topic} already exists")
        cursor = Cursor(key, mark_delete, properties)
        self._insert(self._next_id, cursor)
        self._next_id += 1
        self.changed(cursor)
        return cursor

    def changed(self, cursor: Cursor, done: Done | None = None) -> None:
        """Write the cursor's changes at the end of this turn; call `done` when they are durable.

        If the cursor is not stored (id 0), `done` is called immediately. If the store has no object or another object
        for its id, the topic was unloaded, and `done` is called with an error.
        """
        if self._cursors.get(cursor.id) is not cursor:
            if done is not None:
                done(was_unloaded(cursor.key.topic) if cursor.id else None)
            return
        self._prepared.pop(cursor.id, None)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        waiting = self._waiting.setdefault(cursor.id, [])
        if done is not None:
            waiting.append(done)

    def found(self, cursor: Cursor, segment: SnapshotSegment) -> None:
        """Write a segment of a delayed snapshot.

        No caller waits for its durability, because a snapshot only saves reads.
        """
        if self._cursors.get(cursor.id) is cursor:
            cursor.delayed_snapshot.extend(segment)
            self._prepared.pop(cursor.id, None)
            self._append(cursor_record.delayed_snapshot(cursor.id, segment), None)

    async def save(self, cursor: Cursor) -> None:
        """Wait until all changes of `cursor` are durable. Raises the error of the log."""
        future, done = promise()
        self.changed(cursor, done)
        await future

    async def delete(self, cursor: Cursor) -> None:
        """Delete a cursor, and wait until that is durable; do nothing if the store does not contain it."""
        cursor_id = cursor.id
        if not cursor_id:
            return
        future, done = promise()
        # Acknowledgements of this turn are not written: their `done` is called when the deletion is durable.
        self._append(cursor_record.delete(cursor_id), _all_of([*self._forget(cursor_id), done]))
        await future

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if waiting:
            waiting[next(reversed(waiting))].append(self._timer())
        for cursor_id, dones in waiting.items():
            done, cursor = _all_of(dones), self._unpack(cursor_id)
            try:
                *first, last = self._records(cursor_id, cursor)
                for record in first:
                    self._append(record, None)
                self._append(last, done)
            except Exception as error:
                # This internal error affects only this cursor, whose next record will contain its whole state.
                _log.exception("cannot write a cursor: key=%s", cursor.key)
                cursor.is_reset = True
                if done is not None:
                    done(QuireError(f"cannot write the cursor, internal error: {error!r}"))

    def _timer(self) -> Done:
        began_s = self._clock.monotonic()

        def written(error: QuireError | None) -> None:
            if error is None:
                self.totals.ack_s.observe(self._clock.monotonic() - began_s)

        return written

    def _records(self, cursor_id: int, cursor: Cursor) -> list[bytes]:
        if not cursor.is_reset:
            return cursor_record.deltas(cursor_id, cursor.take_delta())
        cursor.is_reset = False
        cursor.take_delta()
        return list(cursor_record.snapshot(cursor_id, cursor))

    def _append(self, record: bytes, done: Done | None) -> None:
        assert self._log is not None, "a cursor changed before its log was attached"
        self._log.append(record, done)

    # -- cursors in memory -----------------------------------------------------------------------------

    def _insert(self, cursor_id: int, cursor: Cursor) -> None:
        cursor.id = cursor_id
        self._cursors[cursor_id] = cursor
        topic = cursor.key.topic
        self._by_topic[topic] = (*self._by_topic.get(topic, ()), cursor_id)

    def _forget(self, cursor_id: int) -> list[Done]:
        """Drop a cursor, if the store contains it. Return the callbacks that wait for its changes."""
        self._prepared.pop(cursor_id, None)
        if cursor_id not in self._cursors:
            return []
        cursor = self._unpack(cursor_id)
        del self._cursors[cursor_id]
        cursor.id = 0
        topic = cursor.key.topic
        self._by_topic[topic] = tuple(one for one in self._by_topic[topic] if one != cursor_id)
        if not self._by_topic[topic]:
            del self._by_topic[topic]
        return self._waiting.pop(cursor_id, [])

    def _pack(self, cursor_id: int) -> None:
        """Replace a cursor by its BEGIN record, if that contains all of its state. Later users get a new object."""
        cursor = self._cursors.get(cursor_id)
        if isinstance(cursor, Cursor) and cursor.rest() and not cursor.is_reset:
            self._cursors[cursor_id] = cursor_record.begin(cursor_id, cursor)

    def _unpack(self, cursor_id: int) -> Cursor:
        """Return the cursor, after unpacking it if necessary."""
        kept = self._cursors[cursor_id]
        if isinstance(kept, Cursor):
            return kept
        cursor = cursor_record.parse(kept).cursor
        assert cursor is not None
        cursor.id = cursor_id
        self._cursors[cursor_id] = cursor
        return cursor


def _all_of(dones: list[Done]) -> Done | None:
    if len(dones) < 2:
        return dones[0] if dones else None

    def done(error: QuireError | None) -> None:
        for one in dones:
            one(error)

    return done
