"""The writer of one ledger as a state machine: blocks and answers in; sends, confirmations and changes out.

What comes changes the state only at the ends of an ensemble change and of the writer (`TRANSITIONS`); the state says
what becomes of what comes:

    state      an answer                a bookie lost                 a block
    STEADY     confirms a prefix        arms a change                 is sent to every live replica
    CHANGING   is counted, and waits    is kept for the next change   is sent to the replicas that stay
    ENDED      is ignored               is ignored                    is dropped

- A block is confirmed when `ack_quorum` bookies of the fragment have it and everything before it is confirmed (rule 1).
- Every place in an ensemble is a `Replica` with a bit of its own, never used again: acks are counted per (bookie,
  generation), so a bookie that was replaced and comes back counts only for what its new generation answered (2).
- While a change is not committed nothing is confirmed; what is confirmed stays where the metadata say it is (3).
  When it is committed the masks of live bits change in one step, which resets the acks of replaced bookies on every
  pending block before anyone hears anything.
- All bookies that failed when a change begins are replaced by that one change, or, for want of bookies, the fragment
  narrows, never below the ack quorum (4). The number of changes has a limit; a recovery counts anew at each block.
- FENCED, and whatever else ends the writer, leaves pending blocks with an unknown outcome (5).
- A block's bytes count until every live replica has answered it (6): confirmed blocks that wait for a slow bookie
  are `Lagging` until it answers or is dropped. When a process holds too much for bookies that are behind their
  quorum (`Lag`), each of its ledgers leaves those that its oldest such block waits for, as if they had failed.
- A narrow fragment is widened by a change like any other, when somebody offers bookies.

A recovery writes through the same machine, with effects that commit a change in memory at once.

Per block the path is: one `Pending`, one append, one `send` per replica; per answer one `|=`; then one `advance` per
writer and response. Effects are calls on `WriterEffects`; each is the last thing an event does, so a callee may add
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol
from weakref import ref

from quire.ledger import states
from quire.metadata.records import Fragment
from quire.runtime.errors import Fenced, OutcomeUnknown, QuireError
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
"""To look them up at the class costs as much as a comparison of ten, and is done for each block."""


class Event(Enum):
    CHANGE_BEGUN = "bookies that failed are to be replaced, or a narrow fragment to be widened"
    CHANGE_COMMITTED = "the metadata have the new fragment"
    ENDED = "it failed, or is closed, or nobody wants to know"


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
    """A block on its way. `acks`: the bits of the replicas that have it on disk.

    Who writes may add what it wants to know of the block itself.
    """

    __slots__ = ("acks", "block", "last_entry")

    def __init__(self, block: Buffer, last_entry: int) -> None:
        self.block = block
        self.last_entry = last_entry
        self.acks = 0


class Lag:
    """What a process holds, over all its writers, for bookies that are behind their quorum; and how much it may."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int = LAG_BYTES_MAX) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max


class Outgoing:
    """What waits for one bookie until the turn is over: an outbox's, found once for each replica."""

    __slots__ = ("__weakref__", "bookie", "waiting")

    def __init__(self, bookie: BookieId) -> None:
        self.bookie = bookie
        self.waiting: list[tuple[Pending, Replica]] = []


class Asker(Protocol):
    """Who is told what a bookie answered to a block, and once per response that all its answers were told."""

    ledger_id: int

    def answered(self, pending: Pending, replica: Replica, status: Status) -> None: ...

    def advance(self) -> None: ...


class Replica:
    """One bookie's place in the ensemble, in one generation of the fragment."""

    __slots__ = ("bit", "bookie", "core", "is_live", "outgoing")

    def __init__(self, core: Asker, bookie: BookieId, bit: int) -> None:
        self.core = core
        self.bookie = bookie
        self.bit = bit
        self.outgoing: Outgoing | None = None
        """Of its outbox, once something was sent."""
        self.is_live = True
        """False once it has failed or was replaced; its answers to earlier blocks may still come."""


class Ensemble:
    """The replicas of the fragment that is written to. `counted` are the bits of all, `awaited` those of the live.

    `lags` when some of the live owe answers to confirmed blocks (`Lagging`).
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
        """Make `kept` and `added` the ensemble. Returns the replicas that are new in it."""
        fresh = []
        for bookie in added:
            fresh.append(Replica(core, bookie, self._next_bit))
            self._next_bit <<= 1
        self.replicas = kept + fresh
        self.counted = sum(replica.bit for replica in self.replicas)
        self._look_who_lives()
        return fresh

    def lose(self, replica: Replica) -> None:
        """Its answers are not awaited any more."""
        replica.is_live = False
        self._look_who_lives()

    def leave(self) -> None:
        """Nobody is in it any more."""
        self.replicas = []
        self._look_who_lives()

    def _look_who_lives(self) -> None:
        self.live = [replica for replica in self.replicas if replica.is_live]
        self.awaited = sum(replica.bit for replica in self.live)


class Lagging:
    """Confirmed blocks that not every live replica has answered, oldest first, and what they add to the process's."""

    __slots__ = ("blocks", "of_process")

    def __init__(self, of_process: Lag) -> None:
        self.blocks: list[Pending] = []
        self.of_process = of_process

    def hold(self, byte_count: int) -> bool:
        """Count more bytes; whether the process now holds more than it may."""
        lag = self.of_process
        lag.bytes += byte_count
        return lag.bytes > lag.bytes_max

    def release(self, awaited: int) -> None:
        """Stop counting blocks that nobody owes an answer for."""
        released = block_bytes = 0
        for pending in self.blocks:
            if pending.acks & awaited != awaited:
                break
            released += 1
            block_bytes += len(pending.block)
        del self.blocks[:released]
        self.of_process.bytes -= block_bytes


class WriterEffects(Protocol):
    """What a writer asks of the world."""

    def send(self, pending: Pending, replica: Replica) -> None:
        """Send the block to the replica's bookie; answer by `core.answered`, then `core.advance`, never within."""
        ...

    def send_later(self, pending: Pending, replica: Replica) -> None:
        """The bookie is busy: send again after a while, if the replica is still live."""
        ...

    def confirmed(self, last_entry: int) -> None: ...

    def arm_change(self) -> None:
        """A bookie failed: after a short delay, choose replacements and call `core.begin_change`."""
        ...

    def commit(self, fragments: tuple[Fragment, ...]) -> None:
        """Write the fragments to the metadata by version; answer by `change_committed` or `fail`."""
        ...

    def failed(self, error: QuireError) -> None:
        """The end: what is pending has an unknown outcome."""
        ...


class _Change(NamedTuple):
    kept: list[Replica]
    added: Sequence[BookieId]
    fragments: tuple[Fragment, ...]


class _First:
    """Stands for a core's `send` until the first block is sent; see `WriterCore.before_first`."""

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
"""Answers that say: not this bookie. Any other refusal is about the ledger or the block, and ends the writer."""


class WriterCore:
    """`fragments` is the record's; `next_entry` where this writer begins. `effects`, its owner, is known weakly."""

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
        )  # an outbox's, which does not know the owner
        self._unconfirmed: list[Pending] = []
        self._lagging = Lagging(lag or Lag())
        self._change: _Change | None = None
        self._change_armed = False
        self._ensemble = Ensemble()
        self._ensemble.enter(self, [], states.ensemble(fragments[-1]))

    def before_first(self, begun: Callable[[], None]) -> None:
        """Call `begun` when the first block is about to be sent; no later one pays for it."""
        self._send = _First(self, self._send, begun)

    # -- what others may ask ---------------------------------------------------------------------------
    @property
    def blocks_pending(self) -> int:
        """Blocks that are not confirmed."""
        return len(self._unconfirmed)

    @property
    def bytes_pending(self) -> int:
        """Bytes of blocks that not every live replica has answered: confirmed ones may be among them."""
        return sum(len(pending.block) for pending in (*self._lagging.blocks, *self._unconfirmed))

    @property
    def last_added(self) -> int:
        """Last entry that was added, while this is not ended; the last confirmed one when nothing else is here."""
        return self._unconfirmed[-1].last_entry if self._unconfirmed else self.last_confirmed

    def live_bookies(self) -> list[BookieId]:
        return [replica.bookie for replica in self._ensemble.live]

    def failed_bookies(self) -> list[BookieId]:
        return [replica.bookie for replica in self._ensemble.failed()]

    @property
    def is_whole(self) -> bool:
        """Every bookie of the ensemble has answered every confirmed block of this writer that it was sent."""
        return not self._lagging.blocks and not self._ensemble.failed()

    # -- events ----------------------------------------------------------------------------------------
    def add(self, pending: Pending) -> None:
        """The next block. After the end it is dropped: its outcome is as unknown as that of those before it."""
        if self.state is ENDED:
            return
        queue, send = self._unconfirmed, self._send
        assert pending.last_entry > (queue[-1].last_entry if queue else self.last_confirmed)
        queue.append(pending)
        self.bytes_added += len(pending.block)
        for replica in self._ensemble.live:
            send(pending, replica)

    def answered(self, pending: Pending, replica: Replica, status: Status) -> None:
        """A bookie's answer to one block. Nothing is confirmed before `advance`."""
        if status is Status.OK:
            pending.acks |= replica.bit
        elif self.state is not State.ENDED:
            self._refused(pending, replica, status)

    def advance(self) -> None:
        """Confirm what may be confirmed: once per response, after all its answers."""
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
        """Replace every failed bookie by `replacements`, of which there may be too few: then narrow.

        Without a failed one the replacements widen a narrow fragment. `why_few` is told if the ledger ends here.
        """
        self._change_armed = False
        if self.state is not State.STEADY or not (self._ensemble.failed() or replacements):
            return None
        kept = self._ensemble.live
        bookies = [replica.bookie for replica in kept] + list(replacements)
        if len(bookies) < self.ack_quorum:
            return self.fail(
                OutcomeUnknown(
                    f"ledger {self.ledger_id}: {len(bookies)} bookies are left and {self.ack_quorum} must acknowledge"
                    + (f" ({why_few})" if why_few else "")
                )
            )
        self.changes += 1
        if self.changes > self._changes_max:
            return self.fail(
                OutcomeUnknown(f"ledger {self.ledger_id}: more than {self._changes_max} ensemble changes")
            )
        fragments = states.with_fragment(self.fragments, states.fragment(self.last_confirmed + 1, bookies))
        self.state = TRANSITIONS.next(self.state, Event.CHANGE_BEGUN)
        self._change = _Change(kept, replacements, fragments)
        return self._effects.commit(fragments)

    def change_committed(self) -> None:
        """The metadata have the new fragment: send it what is pending, and confirm again."""
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
        """End here, once, and say so."""
        if self.state is not State.ENDED:
            self.finish()
            self._effects.failed(error)

    def close(self) -> None:
        """End here, with all confirmed; answers that are owed for confirmed blocks still count, until `finish`."""
        assert not self._unconfirmed
        self.state = TRANSITIONS.next(self.state, Event.ENDED)
        self._change = None

    def finish(self) -> None:
        """End here in silence: the ledger is closed, or nobody wants to know.

        It lets go of its bookies, which may outlive it.
        """
        self.state = TRANSITIONS.next(self.state, Event.ENDED)
        self._ensemble.leave()
        self._change = None
        self._unconfirmed.clear()
        self._release()

    # -- inside ----------------------------------------------------------------------------------------
    @property
    def _effects(self) -> WriterEffects:
        """Raises `ReferenceError` when the owner is gone."""
        if (owner := self._owner()) is None:
            raise ReferenceError(f"nobody has the writer of ledger {self.ledger_id} any more")
        return owner

    def _enter(self, kept: list[Replica], added: Sequence[BookieId]) -> list[Replica]:
        """See `Ensemble.enter`. What is confirmed already is not sent to those that are new."""
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
        """Too much waits for slow bookies: lose those that the oldest block waits for, as far as a quorum stays."""
        if not self._lagging.blocks:
            return
        acks, live = self._lagging.blocks[0].acks, self._ensemble.live
        slow = [replica for replica in live if not acks & replica.bit]
        if len(live) - len(slow) >= self.ack_quorum:
            for replica in slow:
                self._lose(replica)

    def _refused(self, pending: Pending, replica: Replica, status: Status) -> None:
        if status is Status.FENCED or status is Status.DELETED:
            self.fail(Fenced(f"ledger {self.ledger_id} was taken over: {replica.bookie} says {status.name}"))
        elif status is Status.BUSY:
            if replica.is_live:
                self._effects.send_later(pending, replica)
        elif status in _BOOKIE_LOST:
            self._lose(replica)
        else:
            self.fail(
                OutcomeUnknown(f"ledger {self.ledger_id}: {replica.bookie} refused a block: {status.name}")
            )

    def _lose(self, replica: Replica) -> None:
        if not replica.is_live:
            return
        self._ensemble.lose(replica)
        self._release()
        self._arm()

    def _arm(self) -> None:
        """One change for all that fail until it begins; what fails during it waits for the next."""
        if self.state is State.STEADY and not self._change_armed:
            self._change_armed = True
            self._effects.arm_change()
