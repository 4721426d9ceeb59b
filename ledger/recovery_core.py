"""Taking a ledger over, as a state machine: answers in; fencing reads, writes and one end out.

    state      does
    FENCING    a fencing read beyond any entry, at each bookie
    READING    a fencing read of entry e, at each bookie
    WRITING    hands the blocks found to a writer that passes the fence
    ENDED      closes before e, or stops and is tried again

`w` is the length of the ledger's last fragment as it was when recovery began. With w - Qa + 1 bookies fenced the old
writer can gather no ack quorum any more. Reading starts behind the greatest LAC that was answered, and not before the
last fragment (11). Every read fences (9): there is no read effect that does not.

A block exists if one bookie has it. It is absent only after w - Qa + 1 explicit negatives about its first entry; an
error, a bookie in limbo or one that never heard of the ledger under this incarnation is *unknown* (12): then
recovery stops, and never closes. If what is absent was confirmed (a bookie's LAC is beyond it), data was lost: that is
no end. It is lost for good when every bookie has answered so, and nobody is missing that might have it.

Only `accept_loss`, an operator's word, makes damage count as absence (26): the ledger is then closed before it.
Silence never does: a bookie that does not answer may come back, unless the operator has said that it will not (`gone`).
On such a word `others` are asked, too, which an earlier fragment names or which were left: what one has, exists. They
prove no absence, and no fence.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from quire.ledger import states
from quire.ledger.answers import FINAL, told, valid_run
from quire.metadata.records import Fragment
from quire.runtime.errors import LostForGood, NotFound, QuireError, Unavailable
from quire.runtime.transitions import Transitions
from quire.wire.block import BlockHeader, Buffer
from quire.wire.bookie import BookieId, ReadResponse, Status

BEYOND: Final = 1 << 62
"""An entry that no ledger has: a read of it only fences, and tells the LAC."""


class State(Enum):
    FENCING = auto()
    READING = auto()
    WRITING = auto()
    ENDED = auto()


class Event(Enum):
    FENCED = "w - Qa + 1 bookies are fenced, or an operator's word stands for those that are not"
    FOUND = "a bookie has the entry"
    WRITTEN = "Qa bookies hold what was found, and the next entry is read"
    ABSENT = "the entry is absent, or given up on an operator's word"
    STOPPED = "the end is unknown, or the ledger was deleted"


TRANSITIONS: Final = Transitions(
    "a recovery",
    {
        (State.FENCING, Event.FENCED): State.READING,
        (State.READING, Event.FOUND): State.WRITING,
        (State.WRITING, Event.WRITTEN): State.READING,
        (State.READING, Event.ABSENT): State.ENDED,
        (State.FENCING, Event.STOPPED): State.ENDED,
        (State.READING, Event.STOPPED): State.ENDED,
        (State.WRITING, Event.STOPPED): State.ENDED,
    },
)


class RecoveryEffects(Protocol):
    """What a recovery asks of the world."""

    def read(self, bookie: BookieId, first_entry: int) -> None:
        """A read with the fence flag; answer by `core.answered`, not within the call."""
        ...

    def write(self, found: Buffer, header: BlockHeader) -> None:
        """Write the block again, past the fence; answer by `core.written` when `Qa` bookies hold it."""
        ...

    def end(self, last_entry: int) -> None:
        """The ledger ends here; close it."""
        ...

    def stop(self, error: QuireError) -> None:
        """The end is not known; the ledger stays as it is."""
        ...


@dataclass(frozen=True, slots=True)
class CutOff:
    """What an operator's `accept_loss` gave up: everything from `first_entry` on, for the damage named."""

    first_entry: int
    damage: str


class RecoveryCore:
    def __init__(
        self,
        ledger_id: int,
        last_fragment: Fragment,
        ack_quorum: int,
        effects: RecoveryEffects,
        *,
        accept_loss: bool = False,
        gone: Collection[str] = (),
        others: Collection[BookieId] = (),
    ) -> None:
        """`gone`: UUIDs of bookies that are not up and never come back. `others`: see the top of the file."""
        self.ledger_id = ledger_id
        self.state = State.FENCING
        self.lac = -1
        self.cut_off: CutOff | None = None
        self._first_entry = last_fragment.first_entry
        self._ensemble = states.ensemble(last_fragment)
        self._asked = (*self._ensemble, *others)
        self._coverage = len(self._ensemble) - ack_quorum + 1
        assert self._coverage >= 1
        self._effects = effects
        self._accept_loss = accept_loss
        self._gone = gone
        self._entry = BEYOND
        self._answers: dict[BookieId, ReadResponse] = {}

    def start(self) -> None:
        self._ask(BEYOND)

    # -- events ----------------------------------------------------------------------------------------
    def answered(self, bookie: BookieId, first_entry: int, response: ReadResponse) -> None:
        """A bookie's answer to the read of `first_entry`; one that comes late only adds to the LAC."""
        if self.state is State.ENDED:
            return
        self.lac = max(self.lac, response.lac)
        if first_entry != self._entry or self.state is State.WRITING:
            return
        if response.status is Status.DELETED:
            self._stop(NotFound(f"ledger {self.ledger_id} was deleted"))
        elif self.state is State.FENCING:
            self._fenced(bookie, response)
        else:
            self._read(bookie, response)

    def written(self, last_entry: int) -> None:
        """`Qa` bookies hold everything up to `last_entry`."""
        if self.state is State.WRITING and last_entry >= self._written_last:
            self.state = TRANSITIONS.next(self.state, Event.WRITTEN)
            self._ask(self._written_last + 1)

    def write_failed(self, error: QuireError) -> None:
        if self.state is not State.ENDED:
            self._stop(error)

    # -- inside ----------------------------------------------------------------------------------------
    def _ask(self, entry: int) -> None:
        self._entry = entry
        self._answers = {}
        for bookie in self._asked:
            self._effects.read(bookie, entry)

    def _fenced(self, bookie: BookieId, response: ReadResponse) -> None:
        self._answers[bookie] = response
        if self._count(Status.OK, Status.NO_SUCH_ENTRY) >= self._coverage or (
            self._all_answered() and self._may_give_up()
        ):
            self.state = TRANSITIONS.next(self.state, Event.FENCED)
            self._ask(max(self.lac, self._first_entry - 1) + 1)
        elif self._all_answered():
            self._stop(self._unknown("its end"))

    def _read(self, bookie: BookieId, response: ReadResponse) -> None:
        if response.status is Status.OK:
            run = valid_run(response.blocks, self.ledger_id, self._entry)
            if run.blocks and run.blocks[0][1].first_entry == self._entry:
                return self._write(run.blocks)
            damage = (
                run.damage or f"a block that begins before entry {self._entry}, which is the end of another"
            )
            response = ReadResponse(Status.IO_ERROR, response.lac, detail=damage)
        self._answers[bookie] = response
        if self._count(Status.NO_SUCH_ENTRY) >= self._coverage and self.lac < self._entry:
            self._end()
        elif self._all_answered():
            if self._may_give_up():
                self._give_up(told(self._answers))
            else:
                self._stop(self._unknown(f"entry {self._entry}"))
        return None

    def _write(self, run: list[tuple[Buffer, BlockHeader]]) -> None:
        self.state = TRANSITIONS.next(self.state, Event.FOUND)
        self._written_last = run[-1][1].last_entry
        for found, header in run:
            self._effects.write(found, header)

    def _give_up(self, damage: str) -> None:
        self.cut_off = CutOff(self._entry, damage)
        self._end()

    def _end(self) -> None:
        self.state = TRANSITIONS.next(self.state, Event.ABSENT)
        self._effects.end(self._entry - 1)

    def _stop(self, error: QuireError) -> None:
        self.state = TRANSITIONS.next(self.state, Event.STOPPED)
        self._effects.stop(error)

    def _count(self, *statuses: Status) -> int:
        """How many bookies of the ensemble gave one of these answers."""
        return sum(self._answers[each].status in statuses for each in self._ensemble if each in self._answers)

    def _all_answered(self) -> bool:
        return len(self._answers) == len(self._asked)

    def _may_give_up(self) -> bool:
        """An operator said so, and everyone who has not said no is damaged for good, or gone."""
        return self._accept_loss and self._nobody_may_have_it(self._gone)

    def _nobody_may_have_it(self, gone: Collection[str] = ()) -> bool:
        return all(
            answer.status in FINAL or not answer.status.is_unknown or bookie.uuid in gone
            for bookie, answer in self._answers.items()
        )

    def _unknown(self, what: str) -> QuireError:
        """Why recovery stops: loss when nothing but loss stands in the way, else "try again"."""
        text = f"ledger {self.ledger_id} cannot be recovered: {what} is unknown: {told(self._answers)}"
        if self._nobody_may_have_it():
            first = self.lac + 1 if self._entry == BEYOND else self._entry
            return LostForGood(text, self.ledger_id, max(self._first_entry, first))
        return Unavailable(f"{text}; try again when the bookies answer")
