"""All cursors of one bundle, in its state log.

A turn of the event loop may bring thousands of acknowledgements for hundreds of cursors. They change the cursors
at once; at the end of the turn every cursor that changed writes one record, and the log makes one block of all
of them. Whoever asked to know when an acknowledgement is durable is told when that block is.

    changed(cursor, done)  ──▶  end of the turn: one record per cursor  ──▶  durable: every done
    save(cursor)                the same, awaited: create, seek, delete are durable before they are answered

After a crash the cursors are what the log says, so exactly what was not durably acknowledged comes again. An
acknowledgement that nobody waits for is written all the same, in the same turn.

A broker keeps the cursors of all topics that it owns, of which few are in use. Nearly every other is nothing but a
mark-delete position: it is laid down as its record, one string of bytes, and made again when its topic is loaded.

A snapshot is of one moment. To encode thousands of cursors takes longer than a turn may, so most of it is done before
(`prepare`), some cursors in each turn; what has changed since is encoded once more. What is laid down is encoded.

Cursor ids are given once and never again. The log may serve others too: a cursor's record begins with
`cursor_record.TAG`.
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
from quire.serving.subscription.delayed.survey import Piece

CURSORS_A_TURN: Final = 100
"""That are encoded for a snapshot: two milliseconds."""

_log = logging.getLogger(__name__)


class Log(Protocol):
    """What is needed of `quire.ledger.state_log.StateLog`."""

    def append(self, record: bytes, done: Callable[[QuireError | None], None] | None = None) -> None: ...


class CursorStore:
    """The cursors of one bundle. `apply` and `snapshot` are for the log; `attach` it before any change.

    `totals` has what its subscriptions did, and how long what was acknowledged in a turn took to be durable.
    """

    def __init__(self, clock: Clock | None = None, totals: Totals | None = None) -> None:
        self._clock = clock or SystemClock()
        self.totals = totals or Totals()
        self._cursors: dict[int, Cursor | bytes] = {}
        """By their ids; laid down (bytes) what its record says wholly and nobody uses."""
        self._by_topic: dict[str, tuple[int, ...]] = {}
        self._next_id = 1
        self._log: Log | None = None
        self._waiting: dict[int, list[Done]] = {}
        """Cursors that changed in this turn, and who wants to know when that is durable."""
        self._prepared: dict[int, list[bytes]] = {}
        """Parts of the next snapshot, of cursors that have not changed since."""

    # -- for the log -----------------------------------------------------------------------------------

    def apply(self, raw: bytes) -> None:
        """Replay one record. Raises `CorruptionError`."""
        kind, cursor_id, begun, delta, piece = cursor_record.parse(raw)
        self._next_id = max(self._next_id, cursor_id + 1)
        if kind is Kind.BEGIN:
            assert begun is not None
            self._forget(cursor_id)
            self._know(cursor_id, begun)
            self._lay_down(cursor_id)
        elif kind is Kind.DELETE:
            self._forget(cursor_id)
        elif cursor_id not in self._cursors:
            return
        elif delta is not None:
            cursor = self._take_up(cursor_id)  # until all is replayed: the next delta may be its, too
            cursor.apply(delta)
            cursor.rest()
        elif piece is not None:
            self._take_up(cursor_id).survey.extend(piece)

    async def prepare(self) -> None:
        """Encode what `snapshot` will need, some in each turn of the loop."""
        self._prepared = {}
        for count, cursor_id in enumerate(list(self._cursors), 1):
            if self._log is None:
                self._lay_down(cursor_id)  # the log was replayed, and nobody uses any of them yet
            cursor = self._cursors.get(cursor_id)
            if isinstance(cursor, Cursor):
                self._prepared[cursor_id] = self._encoded(cursor_id, cursor)
            if count % CURSORS_A_TURN == 0:
                await asyncio.sleep(0)

    def snapshot(self) -> Iterator[bytes]:
        """Everything, as records that `apply` understands. What changed in this turn goes before it.

        Else it would be in the snapshot and come once more after it, and redeliveries would be counted twice.
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
        cursor.rest()  # encoding has looked at parts that it does not have
        return encoded

    def give(self, other: CursorStore, is_given: Callable[[str], bool]) -> None:
        """The cursors of some topics are the other's from now on, as they are. What changed in this turn is written."""
        self._write()
        other._next_id = self._next_id
        for topic in [topic for topic in self._by_topic if is_given(topic)]:
            other._by_topic[topic] = given = self._by_topic.pop(topic)
            for cursor_id in given:
                other._cursors[cursor_id] = self._cursors.pop(cursor_id)
                if cursor_id in self._prepared:
                    other._prepared[cursor_id] = self._prepared.pop(cursor_id)

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Forget the cursors of all other topics."""
        for topic in [topic for topic in self._by_topic if not is_kept(topic)]:
            for cursor_id in self._by_topic[topic]:
                self._forget(cursor_id)

    def attach(self, log: Log) -> None:
        """The log is open and was replayed: from now on changes go there."""
        self._log = log

    # -- for subscriptions -----------------------------------------------------------------------------

    def of_topic(self, topic: str) -> list[Cursor]:
        """The cursors of a topic, of all its generations, for use until it rests."""
        return [self._take_up(cursor_id) for cursor_id in self._by_topic.get(topic, ())]

    def rest(self, topic: str) -> None:
        """The topic is unloaded: nothing that is done to the cursors that it had counts any more.

        Each is laid down, or keeps what it holds beside its mark-delete.
        """
        for cursor_id in self._by_topic.get(topic, ()):
            if cursor_id not in self._waiting:
                self._lay_down(cursor_id)

    def create(self, key: CursorKey, mark_delete: Position, properties: Mapping[str, str]) -> Cursor:
        """A new cursor, durable after `save`. Raises `AlreadyExists`."""
        if any(one.key == key for one in self.of_topic(key.topic)):
            raise AlreadyExists(f"subscription {key.subscription} of {key.topic} exists already")
        cursor = Cursor(key, mark_delete, properties)
        self._know(self._next_id, cursor)
        self._next_id += 1
        self.changed(cursor)
        return cursor

    def changed(self, cursor: Cursor, done: Done | None = None) -> None:
        """Write down what changed at the end of this turn, then call `done`."""
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

    def found(self, cursor: Cursor, piece: Piece) -> None:
        """Write down what a dispatcher found. It is only ever a shortcut, so nobody waits for it."""
        if self._cursors.get(cursor.id) is cursor:
            cursor.survey.extend(piece)
            self._prepared.pop(cursor.id, None)
            self._append(cursor_record.survey(cursor.id, piece), None)

    async def save(self, cursor: Cursor) -> None:
        """Returns when all that was done to `cursor` is durable. Raises what the log failed with."""
        future, done = promise()
        self.changed(cursor, done)
        await future

    async def delete(self, cursor: Cursor) -> None:
        """Durable when it returns; a cursor that is not here is deleted already."""
        cursor_id = cursor.id
        if not cursor_id:
            return
        future, done = promise()
        # What was acknowledged in this turn is not written any more: it is durable when the deletion is.
        self._append(cursor_record.delete(cursor_id), _all_of([*self._forget(cursor_id), done]))
        await future

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if waiting:
            waiting[next(reversed(waiting))].append(self._timer())
        for cursor_id, dones in waiting.items():
            done, cursor = _all_of(dones), self._take_up(cursor_id)
            try:
                *first, last = self._records(cursor_id, cursor)
                for record in first:
                    self._append(record, None)
                self._append(last, done)
            except Exception as error:
                # A mistake of ours, and of this cursor alone: it is written whole the next time.
                _log.exception("the cursor %s cannot be written", cursor.key)
                cursor.is_reset = True
                if done is not None:
                    done(QuireError(f"the cursor cannot be written: {error!r}"))

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

    # -- what is kept ----------------------------------------------------------------------------------

    def _know(self, cursor_id: int, cursor: Cursor) -> None:
        cursor.id = cursor_id
        self._cursors[cursor_id] = cursor
        topic = cursor.key.topic
        self._by_topic[topic] = (*self._by_topic.get(topic, ()), cursor_id)

    def _forget(self, cursor_id: int) -> list[Done]:
        """Drop a cursor if it is here; who waited for it."""
        self._prepared.pop(cursor_id, None)
        if cursor_id not in self._cursors:
            return []
        cursor = self._take_up(cursor_id)
        del self._cursors[cursor_id]
        cursor.id = 0
        topic = cursor.key.topic
        self._by_topic[topic] = tuple(one for one in self._by_topic[topic] if one != cursor_id)
        if not self._by_topic[topic]:
            del self._by_topic[topic]
        return self._waiting.pop(cursor_id, [])

    def _lay_down(self, cursor_id: int) -> None:
        """Keep a cursor as its record, if that says all of it. Whoever has it has another one from now on."""
        cursor = self._cursors.get(cursor_id)
        if isinstance(cursor, Cursor) and cursor.rest() and not cursor.is_reset:
            self._cursors[cursor_id] = cursor_record.begin(cursor_id, cursor)

    def _take_up(self, cursor_id: int) -> Cursor:
        """The cursor, made again if it was laid down."""
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
