"""Closing a WAL, as a state machine: what its record and its objects say in; reads, one fence and one record out.

    state      does
    CLAIMING   OPEN -> CLOSING in the record, by version; or joins one that is CLOSING
    PROBING    lists the objects, reads their headers from the trim point on, many at once, and judges them in order
    FENCING    puts the fence at the first hole
    DOUBTING   something seems damaged: looks at it again, and at the record, before it says so
    RECORDING  CLOSING -> CLOSED in the record, with the end, by version
    ENDED      closed, by us or by another, or damaged

From the claim on the WAL's writer cannot trim: what lies at the trim point is there, or is a hole for good (W6). The
end is where the lowest fence lies. It is put at the first hole, by a conditional upload, and only then is anything
judged absent: an upload of the writer's that was under way comes before the fence, and counts, or not at all (W7). Any
number of closes may run at once, or be cut off anywhere: they find the same fence, one of them records it, and the
others take the end that is recorded, whatever they have found: objects may be gone by then, for they are in a set.

A hole is only what the store says is not there; one that does not answer is asked again, by the shell (W13). A hole is
*damage* when an object behind it says that all up to there was durable once, and so is what cannot be read (W8). The
objects of a whole window may be gone, one after another, and what they knew with them. So the store is asked once what
it lists: nothing is put beyond the window of a hole before the hole's object is durable, and what is listed there says
so by its number, whatever it holds. A listing is evidence by what it shows, never by what it lacks.

But damage is said only of what is so when it is looked at once more: the object may have come between the look at its
place and that at its witness; and of a WAL that nobody has closed meanwhile. `accept_loss`, an operator's word, passes
over damage, and the record tells what was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, Protocol

from msgspec.structs import replace

from quire.metadata.records import WalRecord, WalState
from quire.runtime.errors import CorruptionError
from quire.runtime.limits import WAL_UPLOADS_MAX
from quire.runtime.transitions import Transitions
from quire.wal.wal_object import Header, Kind, data_name

READS_MAX: Final = 32
"""Headers that are read at once."""


class WalDamaged(CorruptionError):
    """Objects of a WAL that were acknowledged are gone, or cannot be read. The first is `seq`."""

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
    CLAIMED = "the record says that it is being closed"
    HOLE = "there is no object, and none behind it says that there was one"
    TAKEN = "an object or another fence came before"
    END_FOUND = "a fence lies there"
    DAMAGE_FOUND = "an object cannot be read, or is gone"
    WAS_NONE = "it came late, or is read now"
    LOSS_ACCEPTED = "nobody has closed it meanwhile, and an operator accepts the loss"
    CLOSED = "the record says where it ends"
    DAMAGED = "nobody has closed it meanwhile"


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
    },
)


class ClosingEffects(Protocol):
    """What a close asks of the world; each is answered by an event, not within the call, and once."""

    def read_record(self) -> None:
        """Answer by `core.record_read`."""
        ...

    def write_record(self, record: WalRecord, version: int) -> None:
        """Write the record over that version; answer by `core.record_written`, or `core.record_doubtful` when it was
        another version, or nobody knows."""
        ...

    def list_objects(self) -> None:
        """What the store lists of the WAL; answer by `core.listed`. Asked for once."""
        ...

    def read_header(self, seq: int) -> None:
        """The header of an object; answer by `core.header_read`."""
        ...

    def put_fence(self, seq: int) -> None:
        """A fence, if there is no object; answer by `core.fenced` or `core.fence_refused`."""
        ...

    def closed(self, record: WalRecord) -> None:
        """The WAL is closed, and this is its record."""
        ...

    def damaged(self, error: WalDamaged) -> None:
        """It stays as it is, being closed, until an operator accepts the loss."""
        ...


class ClosingCore:
    """`look_behind`: so many objects behind a hole may tell that it was an object once: the longest window there is."""

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
        """All before it is judged."""
        self._last_listed: int | None = None
        """The last object that is listed, -1 when none is; None: there is no listing yet."""
        self._found: dict[int, Header | CorruptionError | None] = {}
        """What lies behind what is judged, as far as it was read; None: nothing."""
        self._reading: set[int] = set()
        self._lost: list[int] = []
        self._damage: WalDamaged | None = None

    def start(self) -> None:
        self._effects.read_record()

    # -- the record --------------------------------------------------------------------------------------
    def record_read(self, record: WalRecord, version: int) -> None:
        """The record, and its version."""
        self._record, self._version = record, version
        if record.state is WalState.CLOSED:
            self._closed(record)
        elif self.state is State.CLAIMING:
            self._claim()
        elif self.state is State.DOUBTING:
            self._believe()
        else:
            assert self.state is State.RECORDING
            self._write_end()

    def record_written(self, record: WalRecord, version: int) -> None:
        """It is there, and has this version."""
        self._record, self._version = record, version
        if record.state is WalState.CLOSED:
            self._closed(record)
        else:
            self._claim()

    def record_doubtful(self) -> None:
        """Another version was there, or the outcome is not known."""
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
        self._effects.list_objects()
        self._judge()

    def listed(self, last_seq: int) -> None:
        """The greatest number of an object or a fence that the store lists, -1: it lists none."""
        self._last_listed = last_seq
        if self.state is State.PROBING:
            self._judge()

    def header_read(self, seq: int, found: Header | CorruptionError | None) -> None:
        """What an object says of itself; None: the store says that there is none."""
        self._reading.discard(seq)
        self._found[seq] = found
        if self.state is State.PROBING:
            self._judge()
        elif self.state is State.DOUBTING and seq == self._next_seq:
            self._look_again(found)

    def _judge(self) -> None:
        """Judge in order what was read; then read on."""
        while self._next_seq in self._found:
            found = self._found[self._next_seq]
            if found is None:
                if self._judge_hole():
                    return
                break
            if isinstance(found, CorruptionError):
                self._doubt(str(found))
                return
            if found.kind is Kind.FENCE:
                self._end()
                return
            self._pass()
        self._read_on()

    def _judge_hole(self) -> bool:
        """Whether what is behind it was listed and read, and so it is judged."""
        behind = self._behind()
        if self._last_listed is None or not all(seq in self._found for seq in behind):
            return False
        witness = next((seq for seq in behind if self._knows_of_hole(self._found[seq])), None)
        if witness is None and self._last_listed > behind[-1]:
            witness = self._last_listed
        if witness is not None:
            self._doubt(f"an object is gone that was durable when object {witness} was made")
        else:
            self.state = TRANSITIONS.next(self.state, Event.HOLE)
            self._effects.put_fence(self._next_seq)
        return True

    def _knows_of_hole(self, behind: Header | CorruptionError | None) -> bool:
        return isinstance(behind, Header) and behind.confirmed_seq >= self._next_seq

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
        """Our fence lies at the first hole."""
        self._end()

    def fence_refused(self) -> None:
        """Something lies there by now: all that was a hole may be none any more."""
        self.state = TRANSITIONS.next(self.state, Event.TAKEN)
        self._found = {seq: found for seq, found in self._found.items() if found is not None}
        self._judge()

    def _end(self) -> None:
        self.state = TRANSITIONS.next(self.state, Event.END_FOUND)
        self._write_end()

    # -- damage ------------------------------------------------------------------------------------------
    def _doubt(self, what: str) -> None:
        self.state = TRANSITIONS.next(self.state, Event.DAMAGE_FOUND)
        self._damage = WalDamaged(what, self._record.uuid, self._next_seq)
        self._effects.read_header(self._next_seq)

    def _look_again(self, found: Header | CorruptionError | None) -> None:
        if isinstance(found, Header):
            self.state = TRANSITIONS.next(self.state, Event.WAS_NONE)
            self._judge()
        else:
            self._effects.read_record()

    def _believe(self) -> None:
        """The record is as it was: objects go only when it says CLOSED."""
        assert self._damage is not None
        if not self._accept_loss:
            self.state = TRANSITIONS.next(self.state, Event.DAMAGED)
            self._effects.damaged(self._damage)
            return
        self.state = TRANSITIONS.next(self.state, Event.LOSS_ACCEPTED)
        self._lost.append(self._next_seq)
        self._pass()
        self._judge()
