"""All cursors of one bundle, in its state log.

A turn of the event loop may bring thousands of acknowledgements for hundreds of cursors. They change the cursors
at once; at the end of the turn every cursor that changed writes one record, and the log makes one block of all
of them. Whoever asked to know when an acknowledgement is durable is told when that block is.

    changed(cursor, done)  ──▶  end of the turn: one record per cursor  ──▶  durable: every done
    save(cursor)                the same, awaited: create, seek, delete are durable before they are answered

After a crash the cursors are what the log says, so exactly what was not durably acknowledged comes again. An
acknowledgement that nobody waits for is written all the same, in the same turn.

A snapshot is of one moment. To encode thousands of cursors takes longer than a turn may, so most of it is done before
(`prepare`), some cursors in each turn; what has changed since is encoded once more.

Cursor ids are given once and never again. The log may serve others too: a cursor's record begins with
`cursor_record.TAG`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from quire.runtime.errors import AlreadyExists, QuireError
from quire.runtime.tasks import promise
from quire.serving.ports import Position
from quire.serving.subscription import cursor_record
from quire.serving.subscription.cursor import Cursor, CursorKey
from quire.serving.subscription.cursor_record import Kind
from quire.serving.subscription.request import Done
from quire.serving.subscription.survey import Piece

CURSORS_A_TURN: Final = 100
"""That are encoded for a snapshot: two milliseconds."""

_log = logging.getLogger(__name__)


class Log(Protocol):
    """What is needed of `quire.ledger.state_log.StateLog`."""

    def append(self, record: bytes, done: Callable[[QuireError | None], None] | None = None) -> None: ...


class CursorStore:
    """The cursors of one bundle. `apply` and `snapshot` are for the log; `attach` it before any change."""

    def __init__(self) -> None:
        self._cursors: dict[int, Cursor] = {}
        self._by_topic: dict[str, list[Cursor]] = {}
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
        elif kind is Kind.DELETE:
            self._forget(cursor_id)
        elif cursor_id not in self._cursors:
            return
        elif delta is not None:
            self._cursors[cursor_id].apply(delta)
            self._cursors[cursor_id].rest()
        elif piece is not None:
            self._cursors[cursor_id].survey.extend(piece)

    async def prepare(self) -> None:
        """Encode what `snapshot` will need, some in each turn of the loop."""
        self._prepared = {}
        for count, cursor_id in enumerate(list(self._cursors), 1):
            cursor = self._cursors.get(cursor_id)
            if cursor is not None:
                self._prepared[cursor_id] = self._encoded(cursor_id, cursor)
            if count % CURSORS_A_TURN == 0:
                await asyncio.sleep(0)

    def snapshot(self) -> Iterator[bytes]:
        """Everything, as records that `apply` understands. What changed in this turn goes before it.

        Else it would be in the snapshot and come once more behind it, and redeliveries would be counted twice.
        """
        self._write()
        prepared, self._prepared = self._prepared, {}
        for cursor_id, cursor in sorted(self._cursors.items()):
            yield from prepared.get(cursor_id) or self._encoded(cursor_id, cursor)

    def _encoded(self, cursor_id: int, cursor: Cursor) -> list[bytes]:
        encoded = list(cursor_record.snapshot(cursor_id, cursor))
        cursor.rest()  # encoding has looked at parts that it does not have
        return encoded

    def attach(self, log: Log) -> None:
        """The log is open and was replayed: from now on changes go there."""
        self._log = log

    # -- for subscriptions -----------------------------------------------------------------------------

    def of_topic(self, topic: str) -> list[Cursor]:
        """The cursors of a topic, of all its generations."""
        return list(self._by_topic.get(topic, ()))

    def rest(self, topic: str) -> None:
        """The topic is unloaded: its cursors take as little as they can until it is loaded again."""
        for cursor in self._by_topic.get(topic, ()):
            if cursor.id not in self._waiting:
                cursor.rest()

    def create(self, key: CursorKey, mark_delete: Position, properties: Mapping[str, str]) -> Cursor:
        """A new cursor, durable after `save`. Raises `AlreadyExists`."""
        if any(one.key == key for one in self._by_topic.get(key.topic, ())):
            raise AlreadyExists(f"subscription {key.subscription} of {key.topic} exists already")
        cursor = Cursor(key, mark_delete, properties)
        self._know(self._next_id, cursor)
        self._next_id += 1
        self.changed(cursor)
        return cursor

    def changed(self, cursor: Cursor, done: Done | None = None) -> None:
        """Write down what changed at the end of this turn, then call `done`."""
        if not cursor.id:
            if done is not None:
                done(None)
            return
        self._prepared.pop(cursor.id, None)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        waiting = self._waiting.setdefault(cursor.id, [])
        if done is not None:
            waiting.append(done)

    def found(self, cursor: Cursor, piece: Piece) -> None:
        """Write down what a dispatcher found. It is only ever a shortcut, so nobody waits for it."""
        if cursor.id:
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
        for cursor_id, dones in waiting.items():
            done = _all_of(dones)
            try:
                *first, last = self._records(cursor_id, self._cursors[cursor_id])
                for record in first:
                    self._append(record, None)
                self._append(last, done)
            except Exception as error:
                # A mistake of ours, and of this cursor alone: it is written whole the next time.
                _log.exception("the cursor %s cannot be written", self._cursors[cursor_id].key)
                self._cursors[cursor_id].is_reset = True
                if done is not None:
                    done(QuireError(f"the cursor cannot be written: {error!r}"))

    def _records(self, cursor_id: int, cursor: Cursor) -> list[bytes]:
        if not cursor.is_reset:
            return cursor_record.deltas(cursor_id, cursor.take_delta())
        cursor.is_reset = False
        cursor.take_delta()
        return list(cursor_record.snapshot(cursor_id, cursor))

    def _append(self, record: bytes, done: Done | None) -> None:
        assert self._log is not None, "a cursor changed before its log was attached"
        self._log.append(record, done)

    def _know(self, cursor_id: int, cursor: Cursor) -> None:
        cursor.id = cursor_id
        self._cursors[cursor_id] = cursor
        self._by_topic.setdefault(cursor.key.topic, []).append(cursor)

    def _forget(self, cursor_id: int) -> list[Done]:
        """Drop a cursor if it is here; who waited for it."""
        cursor = self._cursors.pop(cursor_id, None)
        self._prepared.pop(cursor_id, None)
        if cursor is None:
            return []
        cursor.id = 0
        of_topic = self._by_topic[cursor.key.topic]
        of_topic.remove(cursor)
        if not of_topic:
            del self._by_topic[cursor.key.topic]
        return self._waiting.pop(cursor_id, [])


def _all_of(dones: list[Done]) -> Done | None:
    if len(dones) < 2:
        return dones[0] if dones else None

    def done(error: QuireError | None) -> None:
        for one in dones:
            one(error)

    return done
