"""Writer of one ledger as a state machine: blocks and answers in; sends, confirmations and ensemble changes out.

It is the counterpart of BookKeeper's
[LedgerHandle](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/client/LedgerHandle.java)
and
[PendingAddOp](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/client/PendingAddOp.java).
The state changes only when an ensemble change begins or is committed, and when the writer ends (`TRANSITIONS`). It
determines how events are handled:

    state      an answer                  a failed bookie               a block
    STEADY     may confirm blocks         arms a change                 is sent to every live replica
    CHANGING   is only counted            is kept for the next change   is sent to the replicas that stay
    ENDED      is ignored                 is ignored                    is dropped

- A block is confirmed when `ack_quorum` bookies of the fragment have it and everything before it is confirmed (rule 1).
- Every member of an ensemble is a `Replica` with its own bit, which is never reused. Acks are counted per (bookie,
  generation): a bookie that was replaced and comes back counts only for the answers of its new generation (rule 2).
- While a change is not committed, no block is confirmed, so confirmed blocks are always on the bookies in the metadata
  (rule 3). The commit changes the masks of live bits in one step. That discards the acks of replaced bookies on every
  pending block before any callback runs.
- One change replaces all bookies that failed before it began. If there are too few replacements, the fragment becomes
  narrow, but keeps at least the ack quorum (rule 4). The number of changes has a limit; a recovery resets the count at
  each block.
- FENCED, like any other error that ends the writer, leaves pending blocks with an unknown outcome (rule 5).
- CONFLICT proves that another ledger had the id before the metadata store was lost or restored, so the writer ends
  (`IdUsedBefore`). In a recovery, CONFLICT only means that this bookie has no copy.
- A block's bytes are counted until every live replica has acknowledged it (rule 6). Confirmed blocks that a slow bookie
  has not acknowledged are `Lagging` until it does, or is dropped. When a process holds too many bytes of such blocks
  (`Lag`), a ledger drops the bookies that have not acknowledged its oldest one.
- A narrow fragment is widened by an ordinary change when more bookies are available.

A recovery writes through the same machine; its effects commit a change in memory at once.

A block costs one `Pending`, one append, and one `send` per replica. An answer costs one `|=`, and a response one
`advance` per writer. Effects are calls on `WriterEffects`. Each is the last action of an event, so a callee may add
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol
from weakref import ref

from quire.ledger import states
from quire.metadata.records import Fragment
from quire.runtime.errors import Fenced, IdUsedBefore, OutcomeUnknown, QuireError
from quire.runtime.limits import LAG_BYTES_MAX
from quire.runtime.transitions import Transitions
from quire.wire.block import Buffer
from quire.wire.bookie import BookieId, Status


class State(Enum):
    STEADY = auto()
    CHANGING = auto()
    ENDED = auto()


STEADY: Final = State.STEADY
ENDED: Final = State.ENDED
"""Aliases for code that runs for each block: a lookup on the class costs as much as ten comparisons."""


class Event(Enum):
    CHANGE_BEGUN = "failed bookies are to be replaced, or a narrow fragment is to be widened"
    CHANGE_COMMITTED = "the metadata contain the new fragment"
    ENDED = "it failed, was closed or was abandoned"


TRANSITIONS: Final = Transitions(
    "a writer",
    {
        (State.STEADY, Event.CHANGE_BEGUN): State.CHANGING,
        (State.CHANGING, Event.CHANGE_COMMITTED): State.STEADY,
        (State.STEADY, Event.ENDED): State.ENDED,
        (State.CHANGING, Event.ENDED): State.ENDED,
        (State.ENDED, Event.ENDED): State.ENDED,
    },
)


class Pending:
    """Block that is being written. `acks` contains the bits of the replicas that have it on disk.

    A caller may subclass it to add its own data about the block.
    """

    __slots__ = ("acks", "block", "last_entry")

    def __init__(self, block: Buffer, last_entry: int) -> None:
        self.block = block
        self.last_entry = last_entry
        self.acks = 0


class Lag:
    """Bytes of confirmed blocks that all writers of a process hold for slow bookies, and their limit."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int = LAG_BYTES_MAX) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max


class Outgoing:
    """Queue of blocks for one bookie until the end of the event loop's turn.

    An outbox creates it; each replica of the bookie looks it up at its first block, and keeps a reference.
    """

    __slots__ = ("__weakref__", "bookie", "waiting")

    def __init__(self, bookie: BookieId) -> None:
        self.bookie = bookie
        self.waiting: list[tuple[Pending, Replica]] = []


class AnswerSink(Protocol):
    """Receiver of a bookie's status for each block, and of one `advance` after all statuses of a response.

    Implemented by `WriterCore`, and for labels of ledgers by `labels._Sending`.
    """

    ledger_id: int

    def answered(self, pending: Pending, replica: Replica, status: Status) -> None: ...

    def advance(self) -> None: ...


class Replica:
    """Member of the ensemble: one bookie, in one generation of the fragment."""

    __slots__ = ("bit", "bookie", "core", "is_live", "outgoing")

    def __init__(self, core: AnswerSink, bookie: BookieId, bit: int) -> None:
        self.core = core
        self.bookie = bookie
        self.bit = bit
        self.outgoing: Outgoing | None = None
        """Queue in the outbox; set by the first send."""
        self.is_live = True
        """False after the replica failed or was replaced; its responses to earlier blocks may still arrive."""


class Ensemble:
    """Replicas of the current fragment, with the bits of all replicas (`counted`) and of the live ones (`awaited`).

    `lags` is set while a live replica has not acknowledged all confirmed blocks (`Lagging`).
    """

    __slots__ = ("_next_bit", "awaited", "counted", "lags", "live", "replicas")

    def __init__(self) -> None:
        self.replicas: list[Replica] = []
        self.live: list[Replica] = []
        self.counted = self.awaited = 0
        self.lags = False
        self._next_bit = 1

    def failed(self) -> list[Replica]:
        return [replica for replica in self.replicas if not replica.is_live]

    def enter(self, core: WriterCore, kept: list[Replica], added: Sequence[BookieId]) -> list[Replica]:
        """Make `kept` and `added` the ensemble; return the new replicas."""
        fresh = []
        for bookie in added:
            fresh.append(Replica(core, bookie, self._next_bit))
            self._next_bit <<= 1
        self.replicas = kept + fresh
        self.counted = sum(replica.bit for replica in self.replicas)
        self._update_live()
        return fresh

    def lose(self, replica: Replica) -> None:
        """Mark a replica as failed, so that its answers are not awaited any more."""
        replica.is_live = False
        self._update_live()

    def leave(self) -> None:
        """Remove all replicas."""
        self.replicas = []
        self._update_live()

    def _update_live(self) -> None:
        self.live = [replica for replica in self.replicas if replica.is_live]
        self.awaited = sum(replica.bit for replica in self.live)
        assert self.awaited & ~self.counted == 0, "a live replica is not a member"


class Lagging:
    """Confirmed blocks that not every live replica has acknowledged, oldest first.

    Their bytes are counted in the process's `Lag`.
    """

    __slots__ = ("blocks", "of_process")

    def __init__(self, of_process: Lag) -> None:
        self.blocks: list[Pending] = []
        self.of_process = of_process

    def hold(self, byte_count: int) -> bool:
        """Add bytes of new lagging blocks to the process's `Lag`; return whether they exceed its limit now."""
        lag = self.of_process
        lag.bytes += byte_count
        return lag.bytes > lag.bytes_max

    def release(self, awaited: int) -> None:
        """Release the leading blocks that all `awaited` replicas (bits) have acknowledged."""
        released = block_bytes = 0
        for pending in self.blocks:
            if pending.acks & awaited != awaited:
                break
            released += 1
            block_bytes += len(pending.block)
        del self.blocks[:released]
        self.of_process.bytes -= block_bytes
        assert self.of_process.bytes >= 0, "released bytes that were not held"


class WriterEffects(Protocol):
    """Effects of a writer, performed by its shell: `writer.BlockWriter`, whose `send` is `outbox.Outbox.send`."""

    def send(self, pending: Pending, replica: Replica) -> None:
        """Send the block to the replica's bookie.

        The response is delivered to `core.answered`, followed by `core.advance`, after this call has returned.
        """
        ...

    def send_later(self, pending: Pending, replica: Replica) -> None:
        """Send the block again after a delay, because the bookie is busy, if the replica is still live."""
        ...

    def confirmed(self, last_entry: int) -> None:
        """Report that all entries up to `last_entry` are confirmed."""
        ...

    def conflict(self, replica: Replica) -> None:
        """Handle a bookie that has other bytes for this block: call `core.conflicts` or `core.lose`."""
        ...

    def arm_change(self) -> None:
        """Choose replacements for failed bookies after a short delay, then call `core.begin_change`."""
        ...

    def commit(self, fragments: tuple[Fragment, ...]) -> None:
        """Write the fragments to the metadata by compare-and-set; then call `core.change_committed` or `core.fail`."""
        ...

    def failed(self, error: QuireError) -> None:
        """Report the end of the writer: pending blocks have an unknown outcome."""
        ...


class TombstoneFound(Fenced):
    """Raised in a writer when a bookie has a tombstone: the ledger was deleted, or another ledger had its id before."""

    def __init__(self, bookie: BookieId, what: str) -> None:
        super().__init__(what)
        self.bookie = bookie


class _Change(NamedTuple):
    kept: list[Replica]
    added: Sequence[BookieId]
    fragments: tuple[Fragment, ...]


class _First:
    """Replacement of a core's `send` for the first block only; see `WriterCore.before_first`."""

    __slots__ = ("_begun", "_core", "_send")

    def __init__(
        self, core: WriterCore, send: Callable[[Pending, Replica], None], begun: Callable[[], None]
    ) -> None:
        self._core = ref(core)
        self._send = send
        self._begun = begun

    def __call__(self, pending: Pending, replica: Replica) -> None:
        if (core := self._core()) is not None and core._send is self:
            core._send = self._send
            self._begun()
        self._send(pending, replica)


_BOOKIE_LOST = frozenset(
    {Status.UNREACHABLE, Status.READ_ONLY, Status.IO_ERROR, Status.LIMBO, Status.WRONG_BOOKIE}
)
"""Statuses after which the bookie is replaced. Any other refusal concerns the ledger or the block and ends the writer.
"""


class WriterCore:
    """Writer of a ledger's blocks from `next_entry` on. `fragments` are those of the ledger's record.

    The core refers weakly to `effects`, its owner.
    """

    __slots__ = (
        "__weakref__",
        "_change",
        "_change_armed",
        "_changes_max",
        "_ensemble",
        "_lagging",
        "_owner",
        "_send",
        "_unconfirmed",
        "ack_quorum",
        "bytes_added",
        "changes",
        "fragments",
        "last_confirmed",
        "ledger_id",
        "state",
    )

    def __init__(
        self,
        ledger_id: int,
        fragments: tuple[Fragment, ...],
        ack_quorum: int,
        effects: WriterEffects,
        *,
        changes_max: int,
        next_entry: int = 0,
        lag: Lag | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.fragments = fragments
        self.ack_quorum = ack_quorum
        self.state = State.STEADY
        self.last_confirmed = next_entry - 1
        self.bytes_added = 0
        self.changes = 0
        self._changes_max = changes_max
        self._owner = ref(effects)
        self._send: Callable[[Pending, Replica], None] = (
            effects.send
        )  # a method of the outbox, so no reference to the owner
        self._unconfirmed: list[Pending] = []
        self._lagging = Lagging(lag or Lag())
        self._change: _Change | None = None
        self._change_armed = False
        self._ensemble = Ensemble()
        self._ensemble.enter(self, [], states.ensemble(fragments[-1]))
        assert 1 <= ack_quorum <= len(self._ensemble.replicas)

    def before_first(self, begun: Callable[[], None]) -> None:
        """Call `begun` immediately before the first block is sent, at no cost for later blocks."""
        self._send = _First(self, self._send, begun)

    # -- state -----------------------------------------------------------------------------------------
    @property
    def blocks_pending(self) -> int:
        """Number of blocks that are not confirmed."""
        return len(self._unconfirmed)

    @property
    def bytes_pending(self) -> int:
        """Bytes of blocks that not every live replica has acknowledged, including confirmed ones."""
        return sum(len(pending.block) for pending in (*self._lagging.blocks, *self._unconfirmed))

    @property
    def last_added(self) -> int:
        """Last entry of the last pending block; the last confirmed entry if no block is pending."""
        return self._unconfirmed[-1].last_entry if self._unconfirmed else self.last_confirmed

    def live_bookies(self) -> list[BookieId]:
        return [replica.bookie for replica in self._ensemble.live]

    def failed_bookies(self) -> list[BookieId]:
        return [replica.bookie for replica in self._ensemble.failed()]

    @property
    def is_whole(self) -> bool:
        """True if no bookie of the ensemble has failed or still has to acknowledge a confirmed block."""
        return not self._lagging.blocks and not self._ensemble.failed()

    # -- events ----------------------------------------------------------------------------------------
    def add(self, pending: Pending) -> None:
        """Write the next block.

        After the writer's end, the block is dropped, and its outcome is unknown, like the outcome of pending blocks.
        """
        if self.state is ENDED:
            return
        queue, send = self._unconfirmed, self._send
        assert pending.last_entry > (queue[-1].last_entry if queue else self.last_confirmed)
        queue.append(pending)
        self.bytes_added += len(pending.block)
        for replica in self._ensemble.live:
            send(pending, replica)

    def answered(self, pending: Pending, replica: Replica, status: Status) -> None:
        """Handle a bookie's status for one block. After OK, the next `advance` may confirm the block."""
        if status is Status.OK:
            pending.acks |= replica.bit
        elif self.state is not State.ENDED:
            self._refused(pending, replica, status)

    def advance(self) -> None:
        """Confirm the leading blocks that have an ack quorum. Called once per response, after all its statuses."""
        ensemble = self._ensemble
        if ensemble.lags:
            self._release()
        if self.state is not STEADY:
            return
        queue, quorum = self._unconfirmed, self.ack_quorum
        counted, awaited = ensemble.counted, ensemble.awaited
        confirmed = lagging_bytes = 0
        for pending in queue:
            if (pending.acks & counted).bit_count() < quorum:
                break
            confirmed += 1
            if pending.acks & awaited != awaited:
                self._lagging.blocks.append(pending)
                ensemble.lags = True
                lagging_bytes += len(pending.block)
        if confirmed:
            last_entry = queue[confirmed - 1].last_entry
            assert last_entry > self.last_confirmed
            del queue[:confirmed]
            self.last_confirmed = last_entry
            if lagging_bytes and self._lagging.hold(lagging_bytes):
                self._leave_behind()
            if (owner := self._owner()) is not None:
                owner.confirmed(last_entry)

    def begin_change(self, replacements: Sequence[BookieId], why_few: str = "") -> None:
        """Replace every failed bookie by `replacements`; with too few of them, the fragment becomes narrow.

        If no bookie failed, the replacements widen a narrow fragment. `why_few` becomes part of the error if too few
        bookies remain and the writer ends.
        """
        self._change_armed = False
        if self.state is not State.STEADY or not (self._ensemble.failed() or replacements):
            return None
        kept = self._ensemble.live
        bookies = [replica.bookie for replica in kept] + list(replacements)
        if len(bookies) < self.ack_quorum:
            return self.fail(
                OutcomeUnknown(
                    f"ledger {self.ledger_id}: {len(bookies)} bookies are left, the ack quorum is {self.ack_quorum}"
                    + (f" ({why_few})" if why_few else "")
                )
            )
        self.changes += 1
        if self.changes > self._changes_max:
            return self.fail(
                OutcomeUnknown(f"ledger {self.ledger_id}: more than {self._changes_max} ensemble changes")
            )
        assert self.last_confirmed >= self.fragments[-1].first_entry - 1, "the LAC never moves back"
        fragments = states.with_fragment(self.fragments, states.fragment(self.last_confirmed + 1, bookies))
        self.state = TRANSITIONS.next(self.state, Event.CHANGE_BEGUN)
        self._change = _Change(kept, replacements, fragments)
        return self._effects.commit(fragments)

    def change_committed(self) -> None:
        """Resume when the ledger's record contains the new fragment.

        Pending blocks are sent to the new replicas, and blocks may be confirmed again.
        """
        if self.state is not State.CHANGING:
            return
        assert self._change is not None
        kept, added, self.fragments = self._change
        self._change = None
        self.state = TRANSITIONS.next(self.state, Event.CHANGE_COMMITTED)
        fresh = self._enter(kept, added)
        for pending in self._unconfirmed:
            for replica in fresh:
                self._effects.send(pending, replica)
        if self._ensemble.failed():
            self._arm()
        self.advance()

    def fail(self, error: QuireError) -> None:
        """End the writer with an error, and report it, unless the writer has already ended."""
        if self.state is not State.ENDED:
            self.finish()
            self._effects.failed(error)

    def fenced(self, bookie: BookieId, status: Status) -> None:
        """End the writer because a bookie returned DELETED (it has a tombstone) or FENCED.

        The fence was set by another owner, or by the bookie itself after it lost state.
        """
        what = f"ledger {self.ledger_id} was taken over: {bookie} returned {status.name}"
        self.fail(TombstoneFound(bookie, what) if status is Status.DELETED else Fenced(what))

    def conflicts(self, bookie: BookieId) -> None:
        """End the writer because the bookie has other bytes for an entry, from another ledger with this id."""
        what = f"ledger {self.ledger_id}: {bookie} has another ledger under this id"
        self.fail(IdUsedBefore(f"{what}: the metadata store is older than the bookies' data", bookie.uuid))

    def lose(self, replica: Replica) -> None:
        """Stop sending blocks to the bookie; the next ensemble change replaces it."""
        if not replica.is_live:
            return
        self._ensemble.lose(replica)
        self._release()
        self._arm()

    def close(self) -> None:
        """End the writer after all blocks are confirmed.

        Outstanding responses to these blocks are still counted until `finish`.
        """
        assert not self._unconfirmed
        self.state = TRANSITIONS.next(self.state, Event.ENDED)
        self._change = None

    def finish(self) -> None:
        """End the writer without a report to its owner. Release its replicas and all blocks that it holds."""
        self.state = TRANSITIONS.next(self.state, Event.ENDED)
        self._ensemble.leave()
        self._change = None
        self._unconfirmed.clear()
        self._release()
        assert not self._lagging.blocks, "an ended writer holds bytes of the process's limit"

    # -- inside ----------------------------------------------------------------------------------------
    @property
    def _effects(self) -> WriterEffects:
        """Owner of this core. Raises `ReferenceError` if it was garbage-collected."""
        if (owner := self._owner()) is None:
            raise ReferenceError(f"the writer of ledger {self.ledger_id} was garbage-collected")
        return owner

    def _enter(self, kept: list[Replica], added: Sequence[BookieId]) -> list[Replica]:
        """Replace the ensemble by the replicas `kept` and new ones for the bookies `added`; return the new ones.

        Lagging blocks are confirmed, so they are not sent to the new replicas, and do not wait for them.
        """
        fresh = self._ensemble.enter(self, kept, added)
        never_sent = sum(replica.bit for replica in fresh)
        for pending in self._lagging.blocks:
            pending.acks |= never_sent
        self._release()
        return fresh

    def _release(self) -> None:
        self._lagging.release(self._ensemble.awaited)
        self._ensemble.lags = bool(self._lagging.blocks)

    def _leave_behind(self) -> None:
        """Drop the bookies that the oldest lagging block waits for, if an ack quorum remains without them."""
        if not self._lagging.blocks:
            return
        acks, live = self._lagging.blocks[0].acks, self._ensemble.live
        slow = [replica for replica in live if not acks & replica.bit]
        if len(live) - len(slow) >= self.ack_quorum:
            for replica in slow:
                self.lose(replica)

    def _refused(self, pending: Pending, replica: Replica, status: Status) -> None:
        if status is Status.FENCED or status is Status.DELETED:
            self.fenced(replica.bookie, status)
        elif status is Status.BUSY:
            if replica.is_live:
                self._effects.send_later(pending, replica)
        elif status in _BOOKIE_LOST:
            self.lose(replica)
        elif status is Status.CONFLICT:
            self._effects.conflict(replica)
        else:
            self.fail(
                OutcomeUnknown(f"ledger {self.ledger_id}: {replica.bookie} refused a block: {status.name}")
            )

    def _arm(self) -> None:
        """Schedule an ensemble change for all failures until it begins; later failures wait for the next change."""
        if self.state is State.STEADY and not self._change_armed:
            self._change_armed = True
            self._effects.arm_change()
