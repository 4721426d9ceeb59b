"""A small log of opaque records with a snapshot at its head: where cursors, deduplication and transactions keep state.

A record is the entry of a block: one byte that says what it is, then the owner's bytes.

    1  snapshot begins        nothing behind it
    2  a part of a snapshot   behind a 1
    3  the snapshot is whole  without it the ledger is as if it were not there
    4  a delta                behind a 3

The node at `path` lists the ledgers, oldest first. Each begins with a snapshot, so the last whole one is all that a
replay needs; the others wait for their deletion. A *roll* (by size, and whenever the log is opened):

1. creates a ledger, lets the deltas so far go to the old one, and writes the snapshot of that moment into the new one;
   deltas from then on go there, but nobody hears that they are durable yet;
2. when the snapshot and all of the old ledger are confirmed, adds the new ledger to the list, by version;
3. now answers what was held, deletes the older ledgers and takes them off the list.

A crash before 2 leaves the old ledger, with all that anybody was told is durable. A second owner that opens the log
recovers (fences) the last ledger and then changes the list; so of two owners one meets a fence or a conflict, and is
dead from then on: `on_failed` tells it, and every `done` that is not answered hears the error. The outcome of those
records is unknown; whoever opens the log again finds out.

A log becomes two, as its bundle does, without a pause (`divide`): it goes on at another path, in the ledger that it
has, and a part of its state goes into a log of its own, as if that rolled. One transaction lists both, and marks the
node that there was. Until then nobody hears that anything in the part's ledger is durable, so a crash before leaves the
log as it was, and one after it two.

Records of one turn of the loop travel in one block; while the ledger has enough blocks in flight they gather.
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
ROLL_BYTES: Final = 16 * MIB
"""A ledger of a state log, beyond its snapshot; bounds what a start has to replay."""

DROP_RETRY_S: Final = 60.0
"""A former ledger mostly stays because a bookie is away."""

_BEGIN, _PART, _WHOLE, _DELTA = b"\x01", b"\x02", b"\x03", b"\x04"
_ATTEMPTS_MAX: Final = 50
_RETRY_S: Final = 0.1


@dataclass(frozen=True)
class StateLogOwner:
    """Whose state it is.

    `apply` takes a record. `snapshot` gives the whole state of one moment as records of at most 1 MiB that `apply`
    understands; `prepare` is awaited a moment before, for what of that can be made in advance. `on_failed` hears why
    the log is dead.
    """

    apply: Callable[[bytes], None]
    snapshot: Callable[[], Iterable[bytes]]
    prepare: Callable[[], Awaitable[None]] | None = None
    on_failed: Callable[[QuireError], None] | None = None


@dataclass
class _Handover:
    """A roll is under way: the segment before it, and answers that wait until the new one is on the list."""

    old: Segment | None
    held: list[Done] = field(default_factory=list)


class StateLog:
    """Made by `open`."""

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
        """When the deletion of former ledgers is tried again, by the monotonic clock."""
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
        """Take the log over: fence its last owner, hand snapshot and deltas to `owner` in order, begin a new ledger.

        After an error the owner's state is to be thrown away. Raises `Fenced` when another owner is opening it too,
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
        return log

    @classmethod
    def of_part(cls, whole: StateLog, path: str, owner: StateLogOwner, *, purpose: str) -> StateLog:
        """A log for a part of the state of `whole`, which is to `divide`. Nothing may be appended before it does."""
        return cls(whole._ledgers, path, owner, purpose=purpose, roll_bytes=whole._roll_bytes)

    @property
    def error(self) -> QuireError | None:
        """Why the log is dead, or None."""
        return self._error

    def append(self, record: bytes, done: Done | None = None) -> None:
        """Write a delta; `done(None)` when it is durable, `done(error)` when its outcome is unknown.

        Records are durable in the order of calls. Raises `LimitExceeded` for a record beyond 1 MiB.
        """
        if len(record) > RECORD_BYTES_MAX:
            raise LimitExceeded(
                f"a state record of {len(record)} bytes; at most {RECORD_BYTES_MAX} are allowed"
            )
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
        """Write what waits, close the ledger, end. Raises what the log failed with."""
        self._roll_bytes = self._roll_at = maxsize
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
        """Write nothing more, for another owner may have the log; who waits hears that the outcome is unknown."""
        self._end(OutcomeUnknown(f"the state log {self._node.path} was given up by this process"))

    # -- opening ---------------------------------------------------------------------------------------
    async def _load(self) -> None:
        try:
            node = await self._ledgers.store.get(self._node.path)
        except NotFound:
            return
        record = decode(StateLogRecord, node.value, self._node.path)
        if record.split_into is not None:
            raise Unavailable(f"the state log {self._node.path} was split: look up again where its state is")
        self._ids = record.ledgers
        self._node.version = node.version

    async def _why_gone(self, error: NotFound) -> QuireError:
        """A listed ledger was deleted: by another owner that rolled meanwhile, or it is lost."""
        node = await self._ledgers.store.get(self._node.path)
        if node.version != self._node.version:
            return Fenced(f"the state log {self._node.path} was changed by another owner; open it again")
        return CorruptionError(f"the state log {self._node.path} lists a ledger that is gone: {error}")

    async def _replay(self) -> None:
        for ledger_id in reversed(self._ids):
            if await self._replay_ledger(ledger_id):
                return
        raise CorruptionError(
            f"no ledger of the state log {self._node.path} has a whole snapshot: {self._ids}"
        )

    async def _replay_ledger(self, ledger_id: int) -> bool:
        """Apply a ledger; False, and nothing applied, when its snapshot is not whole.

        A ledger is listed when its snapshot is whole, so what an operator gave up of it since counts as nothing.
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
                            f"ledger {ledger_id} of the state log {self._node.path}: record {bytes(view[:1])!r}"
                        )
                await replay.settle()
        if replay.lost:
            _log.error(
                "the state log %s goes on without %d records of ledger %d, which were given up",
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
        """Of a segment: these records are durable in it."""
        if segment is self._segment and self._handover is not None:
            self._handover.held += dones
        else:
            for done in dones:
                done(None)
        if self._waiting and not self._is_armed and self._error is None and segment is self._segment:
            self._flush()

    def fail(self, error: QuireError) -> None:
        """Dead: everyone who waits hears of it, once, and the owner."""
        if self._end(error) and self._owner.on_failed is not None:
            self._owner.on_failed(error)

    def _end(self, error: QuireError) -> bool:
        """Everyone who waits hears of it; False when the log was dead before."""
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
        """Roll when the ledger that is written to is among `ledger_ids`. Called now and then.

        Else try again to delete former ledgers: each may keep a bookie that is to be retired.
        """
        if self._rolling is not None or self._error is not None or not self._ids:
            return
        if self._ids[-1] in ledger_ids:
            self._begin(self._roll)
        elif len(self._ids) > 1 and self._ledgers.clock.monotonic() >= self._drop_again_s:
            self._begin(self._drop_older)

    # -- rolling ---------------------------------------------------------------------------------------
    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Change the list in the background: one at a time."""
        self._rolling = self._tasks.start(self._in_background(work), f"roll {self._node.path}")

    async def _in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except QuireError as error:
            _log.warning("the state log %s ends: %s", self._node.path, error)
            self.fail(error)
        except Exception as error:
            # A mistake of ours, as in the owner's snapshot: going on would begin another ledger every turn.
            _log.exception("the state log %s cannot roll", self._node.path)
            self.fail(OutcomeUnknown(f"the state log {self._node.path} cannot roll: {error!r}"))
        finally:
            self._rolling = None

    async def _roll(self) -> None:
        """Raises `Fenced`, `OutcomeUnknown`, `Unavailable`."""
        new = Segment(self, self._ledgers.clock)
        if self._owner.prepare is not None:
            await self._owner.prepare()
        try:
            above = Above(max(self._ids, default=-1))
            new.writer = await self._ledgers.create(self._purpose, new, ledger_id=above)
        except Unavailable as error:
            if self._segment is None:
                raise
            _log.warning("the state log %s cannot roll now: %s", self._node.path, error)
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
        """In one step: deltas so far to the old segment, the state of this moment and what follows to the new one."""
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
        """Delete all ledgers but the last; those that cannot be deleted now stay on the list."""
        self._drop_again_s = self._ledgers.clock.monotonic() + DROP_RETRY_S
        left = []
        for ledger_id in self._ids[:-1]:
            try:
                await self._ledgers.delete(ledger_id)
            except QuireError as error:
                _log.info("a former ledger of the state log %s stays: %s", self._node.path, error)
                left.append(ledger_id)
        if len(left) + 1 < len(self._ids):
            await self._list((*left, self._ids[-1]))

    async def _list(self, ids: tuple[int, ...]) -> None:
        """Make `ids` the list, by version. Raises `Fenced` when somebody else changed it, `OutcomeUnknown`."""
        await self._node.put(encode(StateLogRecord(ledgers=ids)))
        self._ids = ids

    # -- dividing --------------------------------------------------------------------------------------
    async def divide(
        self, path: str, purpose: str, part: StateLog, steps: Callable[[], Awaitable[Sequence[Step]]]
    ) -> None:
        """Go on at `path`, and let `part` have the rest of the state, in one transaction with `steps`.

        The snapshot of `part` takes its state away from this log's owner. Raises `InUse` while the log rolls, and what
        either log died of meanwhile. After an error since that snapshot both logs are dead, and whoever opens the log
        finds out whether it was divided.
        """
        if self._rolling is not None or self._error is not None:
            raise InUse(f"the state log {self._node.path} begins another ledger now; try again")
        work = self._divide(path, purpose, part, steps)
        self._rolling = dividing = self._tasks.start(work, f"divide {self._node.path}")
        try:
            await asyncio.shield(dividing)
            if (died := self.error or part.error) is not None:
                raise died
        except BaseException as error:
            if part._segment is not None:  # it has its state
                known = error if isinstance(error, QuireError) else OutcomeUnknown(f"it failed: {error!r}")
                self.fail(known)
                part.fail(known)
            raise
        finally:
            self._rolling = None
        self._begin(self._roll)  # into a ledger that says whose it is, without the state that went

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
        await self._node.put(encode(mark), [*made, *await steps()])
        self._node = _node_at(self._ledgers.store, path)
        self._node.version = part._node.version = 0
        self._purpose = purpose
        part._handover = None
        for done in handover.held:
            done(None)


def _node_at(store: MetadataStore, path: str) -> OwnedNode:
    """Yet to be made."""
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
    """The records of one ledger, in order: nothing is applied before the snapshot is whole."""

    def __init__(self, apply: Callable[[bytes], None]) -> None:
        self._apply = apply
        self._parts: list[bytes] = []
        self._due: list[bytes] = []
        self._is_whole = False
        self.lost = 0
        """Records that were lost and given up."""

    def record(self, entry: bytes) -> bool:
        """Take the next one; False when it is none."""
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
        """Whether the snapshot was whole, but for what was given up."""
        if self.lost and not self._is_whole:
            self._snapshot_ends()
        return self._is_whole

    def _snapshot_ends(self) -> None:
        self._is_whole = True
        self._due += self._parts
        self._parts.clear()

    async def settle(self) -> None:
        """Apply what was taken, some milliseconds of it in each turn of the loop."""
        for count, record in enumerate(self._due, 1):
            self._apply(record)
            if count % BLOCK_ENTRIES_MAX == 0:
                await asyncio.sleep(0)
        self._due.clear()
        await asyncio.sleep(0)
