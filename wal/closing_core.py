"""State machine that closes a WAL. Input: its record, a listing, headers. Output: reads, one fence, one record.

Numbers such as W6 refer to the laws in `docs/decisions/wal.md`.

    state      action
    CLAIMING   changes the record from OPEN to CLOSING, by compare-and-set; or joins a close in progress
    PROBING    lists the objects, reads many headers in parallel from the trim point on, and judges them in order
    FENCING    puts the fence at the first hole (missing object)
    DOUBTING   reads an object that seems damaged or missing, and the record, again before it reports damage
    RECORDING  rereads the fence in the verified store; changes the record to CLOSED, with the end, by compare-and-set
    ENDED      the WAL is closed, by this process or another one, or damage was reported

**The end.** After the claim the writer cannot trim: no object from the trim point on is deleted until the WAL is closed
(W6). The WAL ends at its lowest fence. A close puts a fence at the first hole, by a conditional upload. Only the fence
makes the hole the end: an upload of the writer either precedes the fence and counts, or fails (W7). Any number of
processes may close the WAL concurrently, and each may crash at any step. They find the same fence, and one of them
records it. The others use the recorded end, even if they found no fence, because the objects may have been copied into
a set and deleted meanwhile.

**Holes.** Only the store's answer that the object does not exist proves a hole; the shell repeats requests without an
answer (W13). A hole is *damage* if a later object, its *witness*, proves that the missing object was durable: the
header of each object contains the number up to which all objects were durable (`confirmed_seq`). An object with a wrong
checksum is also damage (W8), and so is a fence with a witness: a close put the fence while the witness's file system
was not mounted.

All objects of the writer's upload window may be missing, so that no header can be a witness. Therefore the close also
lists the objects once. The writer uploads an object beyond the window of a hole only after the missing object was
durable, so a listed object beyond the window proves damage. A listing proves that its objects exist, but not that other
objects are absent.

**Outdated records.** If a set covers the hole, but the record does not name the set, the missing object was durable. It
was deleted after a newer record named the set. So this record is an older copy, for example after a restore of the
metadata, and the close fails, even with `accept_loss`.

**Damage.** An object that the store has but cannot read (`Unreadable`) is neither a hole nor damage, unless an operator
accepts its loss. Damage is reported only after a second read of the object, and only while the record is unchanged: the
object may have been uploaded after the first read and before the read of its witness. With `accept_loss`, on an
operator's order, the close skips damaged objects, and the record lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final, Protocol

from msgspec.structs import replace

from quire.metadata.records import WalRecord, WalState
from quire.runtime.errors import CorruptionError, QuireError, Unavailable, Unreadable
from quire.runtime.limits import WAL_UPLOADS_MAX
from quire.runtime.transitions import Transitions
from quire.wal.proof import RecordOutdated
from quire.wal.wal_object import Header, Kind, data_name

Found = Header | CorruptionError | Unreadable | None
"""Result of reading an object's header: the header, damage, or `Unreadable`; None if the object does not exist."""

READS_MAX: Final = 32
"""Number of headers that are read in parallel."""


class WalDamaged(CorruptionError):
    """Raised if objects with acknowledged blocks are missing or damaged; `seq` is the number of the first of them."""

    def __init__(self, what: str, wal: str, seq: int) -> None:
        super().__init__(f"WAL {wal} cannot be closed: {what}", data_name(wal, seq), 0)
        self.wal = wal
        self.seq = seq


class State(Enum):
    CLAIMING = auto()
    PROBING = auto()
    FENCING = auto()
    DOUBTING = auto()
    RECORDING = auto()
    ENDED = auto()


class Event(Enum):
    CLAIMED = "the record is CLOSING"
    HOLE = "the object does not exist, and no later one proves that it did"
    TAKEN = "another upload or another fence was first"
    END_FOUND = "there is a fence"
    DAMAGE_FOUND = "an object cannot be read, or is missing"
    WAS_NONE = "the object was put late, or can be read now"
    LOSS_ACCEPTED = "no other process has closed the WAL, and an operator accepts the loss"
    END_LOST = "the verified store does not contain the fence"
    CLOSED = "the record contains the end"
    DAMAGED = "no other process has closed the WAL"


TRANSITIONS: Final = Transitions(
    "the close of a WAL",
    {
        (State.CLAIMING, Event.CLAIMED): State.PROBING,
        (State.PROBING, Event.HOLE): State.FENCING,
        (State.FENCING, Event.TAKEN): State.PROBING,
        (State.FENCING, Event.END_FOUND): State.RECORDING,
        (State.PROBING, Event.END_FOUND): State.RECORDING,
        (State.PROBING, Event.DAMAGE_FOUND): State.DOUBTING,
        (State.DOUBTING, Event.WAS_NONE): State.PROBING,
        (State.DOUBTING, Event.LOSS_ACCEPTED): State.PROBING,
        (State.DOUBTING, Event.DAMAGED): State.ENDED,
        (State.CLAIMING, Event.CLOSED): State.ENDED,
        (State.DOUBTING, Event.CLOSED): State.ENDED,
        (State.RECORDING, Event.CLOSED): State.ENDED,
        (State.RECORDING, Event.END_LOST): State.ENDED,
    },
)


class ClosingEffects(Protocol):
    """Effects of a close. The shell reports the result of each by one later call to the core."""

    def read_record(self) -> None:
        """Start reading the record. The result is delivered to `core.record_read`."""
        ...

    def write_record(self, record: WalRecord, version: int) -> None:
        """Start writing the record, by compare-and-set with `version`. Success is delivered to `core.record_written`.

        After a conflict, or if the outcome is unknown, `core.record_doubtful` is called. A CLOSED record is written
        only if the verified store contains the fence and nothing that proves another end; else `core.end_unproven` is
        called.
        """
        ...

    def list_objects(self, record: WalRecord) -> None:
        """Start one listing of the WAL's objects in the store. The result is delivered to `core.listed`."""
        ...

    def read_header(self, seq: int) -> None:
        """Start reading the header of object `seq`. The result is delivered to `core.header_read`."""
        ...

    def look_again(self, seq: int) -> None:
        """Verify that both stores are the cluster's, then read the header again; call `core.header_read`."""
        ...

    def put_fence(self, seq: int) -> None:
        """Start the conditional upload of a fence as object `seq`. Calls `core.fenced` on success.

        Calls `core.fence_refused` if an object or another fence with this number exists.
        """
        ...

    def closed(self, record: WalRecord) -> None:
        """Complete the close: return the record to the caller."""
        ...

    def damaged(self, error: QuireError) -> None:
        """Raise `error` to the caller. A damaged WAL stays CLOSING until an operator accepts the loss."""
        ...


class ClosingCore:
    """Close of one WAL. `look_behind` is the maximum upload window of a writer, in objects.

    Each of the `look_behind` objects after a hole may prove that the missing object was durable.
    """

    def __init__(
        self,
        effects: ClosingEffects,
        *,
        accept_loss: bool = False,
        reads_max: int = READS_MAX,
        look_behind: int = WAL_UPLOADS_MAX,
    ) -> None:
        self.state = State.CLAIMING
        self._effects = effects
        self._accept_loss = accept_loss
        self._reads_max = reads_max
        self._look_behind = look_behind
        self._record: WalRecord
        self._version = -1
        self._next_seq = -1
        """Number of the object to judge next; all lower ones are judged."""
        self._last_listed: int | None = None
        """Number of the last listed object; -1 if the listing is empty, None before the listing."""
        self._covered_seq = -1
        """Number of the last object that is covered by sets which the record does not name."""
        self._found: dict[int, Found] = {}
        """Results of reads from the first unjudged object on; None where the object does not exist."""
        self._reading: set[int] = set()
        self._lost: list[int] = []
        self._is_unproven = False
        self._damage: WalDamaged | Unreadable | None = None

    def start(self) -> None:
        self._effects.read_record()

    # -- the record --------------------------------------------------------------------------------------
    def record_read(self, record: WalRecord, version: int) -> None:
        """Handle the record that was read, and its version."""
        self._record, self._version = record, version
        if record.state is WalState.CLOSED:
            self._closed(record)
        elif self.state is State.CLAIMING:
            self._claim()
        elif self.state is State.DOUBTING:
            self._believe()
        elif self._is_unproven:
            self.state = TRANSITIONS.next(self.state, Event.END_LOST)
            self._effects.damaged(
                Unavailable(
                    f"WAL {record.uuid} is not closed: its end {self._next_seq} could not be proven again, as when a "
                    "mount vanishes for a while; try again"
                )
            )
        else:
            assert self.state is State.RECORDING
            self._write_end()

    def record_written(self, record: WalRecord, version: int) -> None:
        """Handle the record that was written, and its new version."""
        self._record, self._version = record, version
        if record.state is WalState.CLOSED:
            self._closed(record)
        else:
            self._claim()

    def record_doubtful(self) -> None:
        """Read the record again, after a conflict or an unknown outcome."""
        self._effects.read_record()

    def end_unproven(self) -> None:
        """Fail the close, unless another process has finished it, because the verified store does not prove the end."""
        self._is_unproven = True
        self._effects.read_record()

    def _claim(self) -> None:
        if self._record.state is WalState.OPEN:
            self._effects.write_record(replace(self._record, state=WalState.CLOSING), self._version)
            return
        self._probe()

    def _write_end(self) -> None:
        end = replace(
            self._record, state=WalState.CLOSED, end_seq=self._next_seq, lost=tuple(sorted(self._lost))
        )
        self._effects.write_record(end, self._version)

    def _closed(self, record: WalRecord) -> None:
        self.state = TRANSITIONS.next(self.state, Event.CLOSED)
        self._effects.closed(record)

    # -- its objects -------------------------------------------------------------------------------------
    def _probe(self) -> None:
        self.state = TRANSITIONS.next(self.state, Event.CLAIMED)
        self._next_seq = self._record.trim_seq
        self._effects.list_objects(self._record)
        self._judge()

    def listed(self, last_seq: int, covered_seq: int = -1) -> None:
        """Handle the listing: `last_seq` is the greatest number of an object or fence; -1 if there are none.

        `covered_seq` is the last object that is covered by sets which the record does not name; -1 if there are no such
        sets.
        """
        self._last_listed, self._covered_seq = last_seq, covered_seq
        if self.state is State.PROBING:
            self._judge()

    def header_read(self, seq: int, found: Found) -> None:
        """Handle the result of a read; None if the store answered that the object does not exist."""
        self._reading.discard(seq)
        self._found[seq] = found
        if self.state is State.PROBING:
            self._judge()
        elif self.state is State.DOUBTING and seq == self._next_seq:
            self._look_again(found)

    def _judge(self) -> None:
        """Judge the results that were read, in order; then read more headers."""
        while self._next_seq in self._found:
            found = self._found[self._next_seq]
            if found is None or _is_fence(found):
                if self._judge_end():
                    return
                break
            if isinstance(found, Unreadable):
                self._doubt(found)
                return
            if isinstance(found, CorruptionError):
                self._doubt(self._damaged(str(found)))
                return
            self._pass()
        self._read_on()

    def _judge_end(self) -> bool:
        """Judge the hole or fence at `_next_seq`. Return False until the listing and later objects are read."""
        behind = self._behind()
        if self._last_listed is None or not all(seq in self._found for seq in behind):
            return False
        witness = next((seq for seq in behind if self._knows_of_hole(self._found[seq])), None)
        if witness is None and self._last_listed > behind[-1]:
            witness = self._last_listed
        unreadable = None if self._accept_loss else self._unreadable(behind)
        if witness is not None:
            self._doubt(
                self._damaged(f"an object is missing that was durable when object {witness} was created")
            )
        elif self._covered_seq >= self._next_seq:
            self._doubt(self._damaged("an object is missing whose blocks are in a set"))
        elif unreadable is not None:
            self._doubt(unreadable)
        elif self._found[self._next_seq] is not None:
            self.fenced()
        else:
            self.state = TRANSITIONS.next(self.state, Event.HOLE)
            self._effects.put_fence(self._next_seq)
        return True

    def _knows_of_hole(self, behind: Found) -> bool:
        return isinstance(behind, Header) and behind.confirmed_seq >= self._next_seq

    def _unreadable(self, seqs: Iterable[int]) -> Unreadable | None:
        """Return the error of the first unreadable object of `seqs`; that object may be a witness of the hole."""
        found = (self._found[seq] for seq in seqs)
        return next((each for each in found if isinstance(each, Unreadable)), None)

    def _behind(self) -> Sequence[int]:
        return range(self._next_seq + 1, self._next_seq + 1 + self._look_behind)

    def _read_on(self) -> None:
        for seq in (self._next_seq, *self._behind()):
            if len(self._reading) >= self._reads_max:
                return
            if seq not in self._found and seq not in self._reading:
                self._reading.add(seq)
                self._effects.read_header(seq)

    def _pass(self) -> None:
        del self._found[self._next_seq]
        self._next_seq += 1

    # -- the fence ---------------------------------------------------------------------------------------
    def fenced(self) -> None:
        """Record the end at the fence that this close, or another one, has put at the first hole."""
        self.state = TRANSITIONS.next(self.state, Event.END_FOUND)
        self._write_end()

    def fence_refused(self) -> None:
        """Read the missing objects again, because one of them or another fence was uploaded before this fence."""
        self.state = TRANSITIONS.next(self.state, Event.TAKEN)
        self._found = {seq: found for seq, found in self._found.items() if found is not None}
        self._judge()

    # -- damage ------------------------------------------------------------------------------------------
    def _damaged(self, what: str) -> WalDamaged:
        return WalDamaged(what, self._record.uuid, self._next_seq)

    def _doubt(self, damage: WalDamaged | Unreadable) -> None:
        self.state = TRANSITIONS.next(self.state, Event.DAMAGE_FOUND)
        self._damage = damage
        self._effects.look_again(self._next_seq)

    def _look_again(self, found: Found) -> None:
        if isinstance(found, Header) and found.kind is Kind.DATA:
            self.state = TRANSITIONS.next(self.state, Event.WAS_NONE)
            self._judge()
        else:
            self._effects.read_record()

    def _believe(self) -> None:
        """Report the damage, or skip the object if the operator accepts the loss.

        The record is unchanged, and objects are deleted only in state CLOSED, so the object was not trimmed.
        """
        assert self._damage is not None
        found = self._found[self._next_seq]
        is_outdated = (found is None or _is_fence(found)) and self._covered_seq >= self._next_seq
        if is_outdated or not self._accept_loss:
            self.state = TRANSITIONS.next(self.state, Event.DAMAGED)
            what = f"sets that it does not name cover objects up to {self._covered_seq}"
            self._effects.damaged(RecordOutdated(self._record.uuid, what) if is_outdated else self._damage)
            return
        self.state = TRANSITIONS.next(self.state, Event.LOSS_ACCEPTED)
        self._lost.append(self._next_seq)
        self._pass()
        self._judge()


def _is_fence(found: Found) -> bool:
    return isinstance(found, Header) and found.kind is Kind.FENCE
