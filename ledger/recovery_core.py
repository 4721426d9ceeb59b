"""Recovery of a ledger as a state machine. Input: bookies' responses.

Output: fencing reads, writes and the ledger's end.

    state      action
    FENCING    sends each bookie a fencing read beyond all entries
    READING    sends each bookie a fencing read of the next entry, e
    WRITING    writes the found blocks again, in spite of fences; then reads the next entry
    ENDED      has closed the ledger, with e - 1 as its last entry; or has stopped, and the caller tries again

It is [ledger recovery](https://bookkeeper.apache.org/docs/development/protocol) of the BookKeeper protocol. Let `w` be
the number of bookies in the ledger's last fragment when recovery began. With w - Qa + 1 bookies fenced, the old writer
can gather no ack quorum any more. Reading starts after the greatest LAC in the answers, but not before the last
fragment (rule 11). Every read fences (rule 9), so there is no read effect without a fence.

A block exists if one bookie has it. It is absent only after w - Qa + 1 explicit negatives (NO_SUCH_ENTRY) about its
first entry. An error, the answer LIMBO, or NO_SUCH_LEDGER counts as *unknown* (rule 12). If the unknown answers prevent
a decision, recovery stops, and the ledger is not closed. If an absent entry was confirmed (some bookie's LAC includes
it), it does not mark the ledger's end, because data were lost. The loss is permanent when every bookie has answered
that it lacks the entry.

Only `accept_loss`, an operator's order, makes damage count as absence (rule 26): the ledger is then closed before the
damaged entry. A missing answer never counts as absence, because the bookie may come back, unless the operator declared
that it will not (`gone`). On such an order, `others` are also asked: bookies of earlier fragments, and replaced ones. A
block that one of them has exists, but their negative answers do not count as absence, nor as a fence.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from quire.ledger import states
from quire.ledger.answers import FINAL, describe_answers, valid_run
from quire.metadata.records import Fragment
from quire.runtime.errors import LostForGood, NotFound, QuireError, Unavailable
from quire.runtime.transitions import Transitions
from quire.wire.block import BlockHeader, Buffer
from quire.wire.bookie import BookieId, ReadResponse, Status

BEYOND: Final = 1 << 62
"""Entry that no ledger has: a read of it only fences and returns the LAC."""


class State(Enum):
    FENCING = auto()
    READING = auto()
    WRITING = auto()
    ENDED = auto()


class Event(Enum):
    FENCED = "w - Qa + 1 bookies are fenced, or an operator accepted the loss of the others"
    FOUND = "a bookie has the entry"
    WRITTEN = "an ack quorum has the found blocks, and the next entry is read"
    ABSENT = "the entry is absent, or given up on an operator's order"
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
    """Effects of a recovery, performed by its shell."""

    def read(self, bookie: BookieId, first_entry: int) -> None:
        """Start a read with the fence flag.

        The response is delivered to `core.answered` after this call has returned.
        """
        ...

    def write(self, found: Buffer, header: BlockHeader) -> None:
        """Write the block again, in spite of fences. When an ack quorum has it, `core.written` is called."""
        ...

    def end(self, last_entry: int) -> None:
        """Close the ledger with this last entry."""
        ...

    def stop(self, error: QuireError) -> None:
        """Leave the ledger in recovery, because its end is unknown; raise `error` to the caller."""
        ...


@dataclass(frozen=True, slots=True)
class CutOff:
    """Entries that an operator's `accept_loss` gave up: all from `first_entry` on. `damage` describes the cause."""

    first_entry: int
    damage: str


class RecoveryCore:
    """Recovery of one ledger, from its last fragment on."""

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
        """Prepare a recovery; `start` begins it. See the module for `accept_loss` and `others`.

        `gone` contains the UUIDs of bookies that are not running and will never come back.
        """
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
        """Handle a bookie's response to the read of `first_entry`; a late response can only raise the LAC."""
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
        """Handle the confirmation that an ack quorum has everything up to `last_entry`."""
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
            damage = run.damage or f"a block that begins before entry {self._entry}, which must start a block"
            response = ReadResponse(Status.IO_ERROR, response.lac, detail=damage)
        self._answers[bookie] = response
        if self._count(Status.NO_SUCH_ENTRY) >= self._coverage and self.lac < self._entry:
            self._end()
        elif self._all_answered():
            if self._may_give_up():
                self._give_up(describe_answers(self._answers))
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
        assert self.lac < self._entry or self.cut_off is not None, "the end would be before a confirmed entry"
        assert self._entry >= self._first_entry, "the end would be before the last fragment"
        self.state = TRANSITIONS.next(self.state, Event.ABSENT)
        self._effects.end(self._entry - 1)

    def _stop(self, error: QuireError) -> None:
        self.state = TRANSITIONS.next(self.state, Event.STOPPED)
        self._effects.stop(error)

    def _count(self, *statuses: Status) -> int:
        """Return how many bookies of the ensemble answered the current read with one of these statuses."""
        return sum(self._answers[each].status in statuses for each in self._ensemble if each in self._answers)

    def _all_answered(self) -> bool:
        return len(self._answers) == len(self._asked)

    def _may_give_up(self) -> bool:
        """Return whether an operator accepted the loss, and no bookie may still have the entry."""
        return self._accept_loss and self._all_lack_it(self._gone)

    def _all_lack_it(self, gone: Collection[str] = ()) -> bool:
        return all(
            answer.status in FINAL or not answer.status.is_unknown or bookie.uuid in gone
            for bookie, answer in self._answers.items()
        )

    def _unknown(self, what: str) -> QuireError:
        """Return the error that stops recovery.

        It is `LostForGood` if no bookie may still have the entry, else `Unavailable`.
        """
        text = f"ledger {self.ledger_id} cannot be recovered: {what} is unknown: {describe_answers(self._answers)}"
        if self._all_lack_it():
            first = self.lac + 1 if self._entry == BEYOND else self._entry
            return LostForGood(text, self.ledger_id, max(self._first_entry, first))
        return Unavailable(f"{text}; try again when the bookies answer")
