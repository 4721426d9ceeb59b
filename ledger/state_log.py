"""Log of small opaque records with a snapshot at its head: for the state of cursors, deduplication and transactions.

A record is an entry of a block: one byte for its kind, then the owner's bytes.

    1  snapshot begins        without further bytes
    2  part of a snapshot     after a record of kind 1
    3  snapshot is complete   a ledger without this record is ignored
    4  delta                  after a record of kind 3

The node at `path` lists the log's ledgers, oldest first. Each ledger begins with a snapshot, so a replay needs only the
last ledger with a complete one; earlier ledgers wait for their deletion. A *roll* (by size, and whenever the log is
opened) has three steps:

1. It creates a ledger. Deltas appended so far are written to the old ledger, and a snapshot that includes them to the
   new one. Later deltas are written to the new ledger, but are not reported as durable yet.
2. When the snapshot and all entries of the old ledger are confirmed, it adds the new ledger to the list by
   compare-and-set.
3. Then it reports the withheld records as durable, deletes the older ledgers, and removes them from the list.

After a crash before the list is changed, the old ledger has all records that were reported as durable. A second owner
that opens the log recovers (fences) the last ledger and then changes the list. So if two processes own the log, one of
them finds a fence or a conflict, and its log fails: `on_failed` is called, and every pending `done` gets the error. The
outcome of those records is unknown until the next owner replays the log.

When its bundle splits, a log is divided without a pause (`divide`). The log continues in its current ledger under
another path, and a part of its state is written to a second log, as in a roll. One transaction creates both logs' nodes
and marks the old node as split. Before this transaction, no record in the second log's ledger is reported as durable.
So after a crash there is either the one old log, or both new ones.

While the metadata store does not answer, a roll is retried until the owner closes or abandons the log. Only opening and
closing have a time limit, because a caller waits for them.

Records that are appended in one turn of the event loop share a block. Further records wait while the ledger has the
maximum number of blocks in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from sys import maxsize
from typing import Final

from quire.ledger.ledgers import Above, Ledgers
from quire.ledger.owned_node import OwnedNode
from quire.ledger.state_segment import Done, Segment, Waiting
from quire.metadata.records import StateLogRecord, decode, encode
from quire.metadata.store import Create, MetadataStore, Step
from quire.runtime.errors import (
    CorruptionError,
    Fenced,
    InUse,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    QuireError,
    Unavailable,
)
from quire.runtime.limits import BLOCK_ENTRIES_MAX, MIB, READ_BYTES_MAX
from quire.runtime.tasks import Tasks
from quire.wire import block

_log = logging.getLogger(__name__)

RECORD_BYTES_MAX: Final = 1 * MIB
"""Maximum size of one record: an owner splits larger state, so that a replay yields to the event loop between records.
"""
ROLL_BYTES: Final = 16 * MIB
"""Bytes of deltas after which the log rolls; this limits the time of the replay when the log is opened."""

DROP_RETRY_S: Final = 60.0
"""Delay in seconds before the deletion of former ledgers is tried again; the usual cause is an absent bookie."""

_BEGIN, _PART, _WHOLE, _DELTA = b"\x01", b"\x02", b"\x03", b"\x04"
_ATTEMPTS_MAX: Final = 50
_RETRY_S: Final = 0.1


@dataclass(frozen=True)
class StateLogOwner:
    """Callbacks of the owner of the state.

    - `apply` applies a record (a delta, or a part of a snapshot) to the state.
    - `snapshot` returns the whole state at one moment, as records of at most 1 MiB that `apply` accepts.
    - `prepare` is awaited just before `snapshot`, for parts of the snapshot that can be made in advance.
    - `on_failed` is called with the error that ended the log.
    """

    apply: Callable[[bytes], None]
    snapshot: Callable[[], Iterable[bytes]]
    prepare: Callable[[], Awaitable[None]] | None = None
    on_failed: Callable[[QuireError], None] | None = None


@dataclass
class _Handover:
    """Roll in progress: the segment before it, and callbacks that wait until the new ledger is in the list."""

    old: Segment | None
    held: list[Done] = field(default_factory=list)


class StateLog:
    """State log of one owner; created by `open`."""

    def __init__(
        self,
        ledgers: Ledgers,
        path: str,
        owner: StateLogOwner,
        *,
        purpose: str,
        roll_bytes: int,
    ) -> None:
        self._ledgers = ledgers
        self._owner = owner
        self._purpose = purpose
        self._roll_bytes = roll_bytes
        self._roll_at = roll_bytes
        self._drop_again_s = 0.0
        """Time of the next attempt to delete former ledgers (monotonic, s)."""
        self._ids: tuple[int, ...] = ()
        self._node = _node_at(self._ledgers.store, path)
        self._segment: Segment | None = None
        self._handover: _Handover | None = None
        self._waiting: deque[Waiting] = deque()
        self._is_armed = False
        self._rolling: asyncio.Task[None] | None = None
        self._error: QuireError | None = None
        self._tasks = Tasks("state log")

    @classmethod
    async def open(
        cls,
        ledgers: Ledgers,
        path: str,
        owner: StateLogOwner,
        *,
        purpose: str = "",
        roll_bytes: int = ROLL_BYTES,
    ) -> StateLog:
        """Take over the log: fence its last owner, pass snapshot and deltas to `owner` in order, begin a new ledger.

        After an error, the state in `owner` is incomplete. Raises `Fenced` if another owner opens the log meanwhile,
        `Unavailable`, `CorruptionError`.
        """
        log = cls(ledgers, path, owner, purpose=purpose or f"state:{path}", roll_bytes=roll_bytes)
        await log._load()
        if log._ids:
            try:
                await ledgers.recover(log._ids[-1])
                await log._replay()
            except NotFound as error:
                raise await log._why_gone(error) from error
        try:
            await log._roll()
        except BaseException as error:
            log._end(error if isinstance(error, QuireError) else OutcomeUnknown(f"opening failed: {error!r}"))
            raise
        log._node.attempts_max = maxsize
        return log

    @classmethod
    def of_part(cls, whole: StateLog, path: str, owner: StateLogOwner, *, purpose: str) -> StateLog:
        """Create the log for a part of the state of `whole`. Records may be appended only after `whole.divide`."""
        return cls(whole._ledgers, path, owner, purpose=purpose, roll_bytes=whole._roll_bytes)

    @property
    def error(self) -> QuireError | None:
        """Error that ended the log, or None."""
        return self._error

    def append(self, record: bytes, done: Done | None = None) -> None:
        """Append a delta; call `done(None)` when it is durable, `done(error)` if its outcome is unknown.

        Records become durable in the order of calls. Raises `LimitExceeded` for a record beyond 1 MiB.
        """
        if len(record) > RECORD_BYTES_MAX:
            raise LimitExceeded(f"a state record has {len(record)} bytes, the maximum is {RECORD_BYTES_MAX}")
        loop = asyncio.get_running_loop()
        if self._error is not None:
            if done is not None:
                loop.call_soon(done, self._error)
            return
        self._waiting.append(Waiting(_DELTA + record, done))
        if not self._is_armed:
            self._is_armed = True
            loop.call_soon(self._turn)

    async def close(self) -> None:
        """Write waiting records and close the ledger. Raises the error that ended the log."""
        self._roll_bytes = self._roll_at = maxsize
        self._node.attempts_max = _ATTEMPTS_MAX
        if self._rolling is not None:
            await asyncio.gather(self._rolling, return_exceptions=True)
        if self._error is not None:
            raise self._error
        assert self._segment is not None
        self._flush(everything=True)
        segment = self._segment
        try:
            await segment.drained()
            self._error = Unavailable(f"the state log {self._node.path} is closed")
            await segment.writer.close()
        finally:
            await self._tasks.stop()

    def abandon(self) -> None:
        """Stop writing, because another process may own the log now; waiting callbacks get `OutcomeUnknown`."""
        self._end(OutcomeUnknown(f"the state log {self._node.path} was abandoned by this process"))

    # -- opening ---------------------------------------------------------------------------------------
    async def _load(self) -> None:
        try:
            node = await self._ledgers.store.get(self._node.path)
        except NotFound:
            return
        record = decode(StateLogRecord, node.value, self._node.path)
        if record.split_into is not None:
            raise Unavailable(f"the state log {self._node.path} was split; look up its new path")
        self._ids = record.ledgers
        self._node.version = node.version

    async def _why_gone(self, error: NotFound) -> QuireError:
        """Return why a listed ledger does not exist: another owner rolled the log meanwhile, or the ledger is lost."""
        node = await self._ledgers.store.get(self._node.path)
        if node.version != self._node.version:
            return Fenced(f"the state log {self._node.path} was changed by another owner; open it again")
        return CorruptionError(f"the state log {self._node.path} lists a ledger that does not exist: {error}")

    async def _replay(self) -> None:
        for ledger_id in reversed(self._ids):
            if await self._replay_ledger(ledger_id):
                return
        raise CorruptionError(
            f"the state log {self._node.path}: no ledger has a complete snapshot: {self._ids}"
        )

    async def _replay_ledger(self, ledger_id: int) -> bool:
        """Apply the records of a ledger; return False, and apply nothing, if its snapshot is incomplete.

        Entries that an operator gave up are skipped, even in the snapshot.
        """
        reader = await self._ledgers.open(ledger_id)
        replay = _Replay(self._owner.apply)
        entry = 0
        while blocks := await reader.read(entry, READ_BYTES_MAX):
            for found in blocks:
                header = block.read_header(found)
                entry = header.last_entry + 1
                for view in block.entries(found, header):
                    if not replay.record(bytes(view)):
                        raise CorruptionError(
                            f"ledger {ledger_id} of the state log {self._node.path}: invalid record {bytes(view[:1])!r}"
                        )
                await replay.settle()
        if replay.lost:
            _log.error(
                "the state log %s: %d records of ledger %d are lost, because they were given up",
                self._node.path,
                replay.lost,
                ledger_id,
            )
        is_whole = replay.end()
        await replay.settle()
        return is_whole

    # -- writing ---------------------------------------------------------------------------------------
    def _turn(self) -> None:
        self._is_armed = False
        if self._error is None:
            self._flush()

    def _flush(self, *, everything: bool = False) -> None:
        segment = self._segment
        assert segment is not None
        while self._waiting and (everything or segment.has_room()):
            segment.write_block(self._waiting)
        if segment.bytes >= self._roll_at and self._rolling is None and self._error is None:
            self._begin(self._roll)

    def confirmed(self, segment: Segment, dones: list[Done]) -> None:
        """Call the callbacks `dones` of confirmed records, or withhold them during a roll to this segment."""
        if segment is self._segment and self._handover is not None:
            self._handover.held += dones
        else:
            for done in dones:
                done(None)
        if self._waiting and not self._is_armed and self._error is None and segment is self._segment:
            self._flush()

    def fail(self, error: QuireError) -> None:
        """End the log with an error, once: pass it to all waiting callbacks, and to the owner."""
        if self._end(error) and self._owner.on_failed is not None:
            self._owner.on_failed(error)

    def _end(self, error: QuireError) -> bool:
        """End the log, and pass the error to all waiting callbacks; return False if it has already ended."""
        if self._error is not None:
            return False
        self._error = error
        handover, self._handover = self._handover, None
        unanswered = handover.held if handover is not None else []
        for segment in (handover.old if handover is not None else None, self._segment):
            if segment is not None:
                unanswered += segment.abandon()
        unanswered += [waiting.done for waiting in self._waiting if waiting.done is not None]
        self._waiting.clear()
        for done in unanswered:
            done(error)
        return True

    def roll_if_writing_to(self, ledger_ids: Container[int]) -> None:
        """Roll if the current ledger is in `ledger_ids`. The owner calls this method at intervals.

        Otherwise, try again to delete former ledgers, because an existing ledger may delay the retirement of a bookie.
        """
        if self._rolling is not None or self._error is not None or not self._ids:
            return
        if self._ids[-1] in ledger_ids:
            self._begin(self._roll)
        elif len(self._ids) > 1 and self._ledgers.clock.monotonic() >= self._drop_again_s:
            self._begin(self._drop_older)

    # -- rolling ---------------------------------------------------------------------------------------
    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Start `work`, which changes the list of ledgers, in the background; only one change runs at a time."""
        self._rolling = self._tasks.start(self._in_background(work), f"roll {self._node.path}")

    async def _in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except QuireError as error:
            _log.warning("the state log %s failed: %s", self._node.path, error)
            self.fail(error)
        except Exception as error:
            # An internal error, such as in the owner's snapshot: a retry would create another ledger every turn.
            _log.exception("the state log %s cannot roll: internal error", self._node.path)
            self.fail(OutcomeUnknown(f"the state log {self._node.path} cannot roll: {error!r}"))
        finally:
            self._rolling = None

    async def _roll(self) -> None:
        """Roll to a new ledger. Raises `Fenced`, `OutcomeUnknown`, `Unavailable`."""
        new = Segment(self, self._ledgers.clock)
        if self._owner.prepare is not None:
            await self._owner.prepare()
        try:
            above = Above(max(self._ids, default=-1))
            new.writer = await self._ledgers.create(self._purpose, new, ledger_id=above)
        except Unavailable as error:
            if self._segment is None:
                raise
            _log.warning("the state log %s cannot roll now, trying again later: %s", self._node.path, error)
            self._roll_at = self._segment.bytes + self._roll_bytes
            return
        if self._error is not None:
            new.abandon()
            raise self._error
        try:
            handover = self._switch_to(new)
        except BaseException:
            new.abandon()
            raise
        await new.drained()
        if handover.old is not None:
            await handover.old.drained()
        await self._list((*self._ids, new.writer.ledger_id))
        if self._error is not None:
            raise self._error
        self._handover = None
        for done in handover.held:
            done(None)
        if handover.old is not None:
            handover.old.abandon()
        await self._drop_older()

    def _switch_to(self, new: Segment) -> _Handover:
        """Write waiting deltas to the old segment and a snapshot to the new one, without yielding to the event loop."""
        assert self._handover is None, "one roll at a time"
        snapshot = [Waiting(_PART + part, None) for part in self._owner.snapshot()]
        if self._segment is not None:
            while self._waiting:
                self._segment.write_block(self._waiting)
        handover = self._handover = _Handover(self._segment)
        self._segment = new
        entries = deque([Waiting(_BEGIN, None), *snapshot, Waiting(_WHOLE, None)])
        while entries:
            new.write_block(entries)
        self._roll_at = new.bytes + max(self._roll_bytes, 2 * new.bytes)
        return handover

    async def _drop_older(self) -> None:
        """Delete all ledgers except the last; ledgers that cannot be deleted now stay in the list."""
        self._drop_again_s = self._ledgers.clock.monotonic() + DROP_RETRY_S
        left = []
        for ledger_id in self._ids[:-1]:
            try:
                await self._ledgers.delete(ledger_id)
            except QuireError as error:
                _log.info(
                    "the state log %s: cannot delete a former ledger, trying again later: %s",
                    self._node.path,
                    error,
                )
                left.append(ledger_id)
        if len(left) + 1 < len(self._ids):
            await self._list((*left, self._ids[-1]))

    async def _list(self, ids: tuple[int, ...]) -> None:
        """Write the list `ids` to the node by compare-and-set.

        Raises `Fenced` if another process changed the list, `OutcomeUnknown`.
        """
        assert ids and list(ids) == sorted(set(ids)), "ledgers of a log have ascending ids"
        await self._node.put(encode(StateLogRecord(ledgers=ids)), given_up=lambda: self._error)
        self._ids = ids

    # -- dividing --------------------------------------------------------------------------------------
    async def divide(
        self, path: str, purpose: str, part: StateLog, steps: Callable[[], Awaitable[Sequence[Step]]]
    ) -> None:
        """Move this log to `path`, and a part of its state to the log `part`, in one transaction with `steps`.

        When the snapshot of `part` is made, its owner takes over this part of the state. Raises `InUse` while the log
        rolls, and the error that ended either log meanwhile. If an error occurs after that snapshot, both logs end, and
        the next owner finds out whether the log was divided when it opens the log.
        """
        if self._rolling is not None or self._error is not None:
            raise InUse(f"the state log {self._node.path} is rolling to another ledger; try again")
        work = self._divide(path, purpose, part, steps)
        self._rolling = dividing = self._tasks.start(work, f"divide {self._node.path}")
        try:
            await asyncio.shield(dividing)
            if (died := self.error or part.error) is not None:
                raise died
        except BaseException as error:
            if part._segment is not None:  # the snapshot was made, so the part's owner has its state
                known = (
                    error if isinstance(error, QuireError) else OutcomeUnknown(f"dividing failed: {error!r}")
                )
                self.fail(known)
                part.fail(known)
            raise
        finally:
            self._rolling = None
        self._begin(self._roll)  # to a ledger with the new purpose, whose snapshot lacks the part's state

    async def _divide(
        self, path: str, purpose: str, part: StateLog, steps: Callable[[], Awaitable[Sequence[Step]]]
    ) -> None:
        new = Segment(part, self._ledgers.clock)
        if self._owner.prepare is not None:
            await self._owner.prepare()
        new.writer = await self._ledgers.create(part._purpose, new, ledger_id=Above(max(self._ids)))
        if self._error is not None:
            new.abandon()
            raise self._error
        handover = part._switch_to(new)
        await new.drained()
        part._ids = (new.writer.ledger_id,)
        both = ((path, self._ids), (part._node.path, part._ids))
        made = [Create(where, encode(StateLogRecord(ledgers=ids))) for where, ids in both]
        mark = StateLogRecord(ledgers=self._ids, split_into=(path, part._node.path))
        await self._node.put(encode(mark), [*made, *await steps()], given_up=lambda: self._error)
        self._node = _node_at(self._ledgers.store, path)
        self._node.version = part._node.version = 0
        self._node.attempts_max = part._node.attempts_max = maxsize
        self._purpose = purpose
        part._handover = None
        for done in handover.held:
            done(None)


def _node_at(store: MetadataStore, path: str) -> OwnedNode:
    """Return the `OwnedNode` of the state log at `path`, whose version is unknown until it is created or read."""
    return OwnedNode(
        store,
        path,
        f"the state log {path}",
        -1,
        then="open it again",
        attempts_max=_ATTEMPTS_MAX,
        retry_s=_RETRY_S,
    )


class _Replay:
    """Replay of one ledger: its records are applied only after the end of its snapshot was read."""

    def __init__(self, apply: Callable[[bytes], None]) -> None:
        self._apply = apply
        self._parts: list[bytes] = []
        self._due: list[bytes] = []
        self._is_whole = False
        self.lost = 0
        """Number of lost records that an operator gave up."""

    def record(self, entry: bytes) -> bool:
        """Add the next record; return False if its kind is invalid at this place in the ledger."""
        kind, record = entry[:1], entry[1:]
        if not entry:
            self.lost += 1
        elif kind == _PART:
            self._parts.append(record)
        elif kind == _WHOLE or (kind == _DELTA and not self._is_whole and self.lost):
            self._snapshot_ends()
        if kind == _DELTA and self._is_whole:
            self._due.append(record)
        return kind in (b"", _BEGIN, _PART, _WHOLE) or (self._is_whole and kind == _DELTA)

    def end(self) -> bool:
        """Return whether the snapshot was complete, apart from given-up records."""
        if self.lost and not self._is_whole:
            self._snapshot_ends()
        return self._is_whole

    def _snapshot_ends(self) -> None:
        self._is_whole = True
        self._due += self._parts
        self._parts.clear()

    async def settle(self) -> None:
        """Apply the added records; yield to the event loop after every few milliseconds of work."""
        for count, record in enumerate(self._due, 1):
            self._apply(record)
            if count % BLOCK_ENTRIES_MAX == 0:
                await asyncio.sleep(0)
        self._due.clear()
        await asyncio.sleep(0)
