"""Reading one ledger: sequential, verified, from whichever replica answers.

The answer is whole blocks, the first of which contains the entry asked for; nothing beyond what is confirmed is ever
given out, because an unconfirmed block may yet turn out not to exist. What is confirmed: a closed ledger's last
entry; of the own writer's ledger what the writer says; of somebody else's open ledger the greatest LAC that a bookie
tells (looked up only when a reader comes to the end of what it knows).

A reader keeps to one replica, which makes its reads sequential there. It asks the next one at once when an answer is
unknown, damaged or negative (one replica may lack what the others confirmed), and as well when the answer takes longer
than is usual; the first whole answer wins (`quire.ledger.replicas`). Only when all have answered and none has it, it is
an error, and never "no such entry": confirmed data that nobody has is damage.

The record says who is asked, and it changes: a writer leaves a bookie, repair moves the copies of a closed ledger, an
operator gives entries up (then blank blocks stand for them, see `holes`). So when nobody answers, the record is read
again, and when it says something else, that is tried.

When each of the bookies has answered and none of them can give an entry, it is lost for good (`LostForGood`): none is
missing that might still have it. A bookie in limbo has answered, too: it lost blocks, and does not find this one.
Bookies that the record names only for other entries are not asked: if one has it, repair copies it to where it belongs.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from quire.ledger import holes, states
from quire.ledger.answers import FINAL, LACKING, told, valid_run
from quire.ledger.recovery_core import BEYOND
from quire.ledger.replicas import Replicas
from quire.metadata import paths
from quire.metadata.records import LedgerRecord, LedgerState, decode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import CorruptionError, LostForGood, NotFound, QuireError, Unavailable
from quire.wire.block import Buffer
from quire.wire.bookie import BookieId, FindTimeRequest, ReadRequest, ReadResponse, SimpleResponse, Status

T = TypeVar("T")


@dataclass(slots=True)
class _Question:
    """One read while it is under way. `end`: the last entry that may be given out."""

    first_entry: int
    bytes_max: int
    end: int
    refusals: dict[BookieId, ReadResponse] = field(default_factory=dict)


class LedgerReader:
    """Any number of reads may run at once."""

    def __init__(
        self,
        store: MetadataStore,
        replicas: Replicas,
        record: LedgerRecord,
        confirmed: Callable[[], int] | None = None,
    ) -> None:
        self.ledger_id = record.ledger_id
        self._store = store
        self._shared = replicas
        self._bookies = replicas.bookies
        self._record = record
        self._confirmed = confirmed
        self._lac = -1
        self._preferred: BookieId | None = None

    @property
    def last_confirmed(self) -> int:
        """The last entry that may be read, as far as this reader knows."""
        if self._is_closed():
            return self._record.last_entry
        return self._confirmed() if self._confirmed is not None else self._lac

    async def read(self, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Whole, verified blocks, the first contains `first_entry`; [] when that is beyond what is confirmed.

        At least one block when there is one, then as many as `bytes_max` allows and one fragment's replica has in a
        row. Raises `NotFound` (deleted), `LostForGood`, `Unavailable` (try again).
        """
        if first_entry > self.last_confirmed:
            await self._look_further()
        end = self.last_confirmed
        if first_entry > end:
            return []
        try:
            found = await self._following_the_record(lambda: self._read(first_entry, bytes_max, end))
        except LostForGood as error:
            self._shared.meets_loss(error)
            raise
        self._shared.readable(self.ledger_id, first_entry)
        return found

    async def find_time(self, time_ms: int) -> int:
        """The entry where reading must begin so that no block whose clock is `time_ms` or later is missed.

        Raises `NotFound` (deleted), `Unavailable` when too few replicas answer to be sure.
        """
        return await self._following_the_record(lambda: self._find_time_in_fragments(time_ms))

    # -- inside ----------------------------------------------------------------------------------------
    def _is_closed(self) -> bool:
        return self._record.state is LedgerState.CLOSED

    async def _find_time_in_fragments(self, time_ms: int) -> int:
        fragments = self._record.fragments
        for index, fragment in enumerate(fragments):
            last_entry = states.last_entry_of(self._record, index)
            hole = holes.hole_at(self._record, fragment.first_entry) if self._is_closed() else None
            if hole is not None and hole.last_entry >= last_entry:  # nobody has any of it, or need answer
                found = fragment.first_entry if hole.clock_ms >= time_ms else last_entry + 1
            else:
                found = await self._least_with_time(states.ensemble(fragment), time_ms)
            is_last = index + 1 == len(fragments)
            if is_last or found < fragments[index + 1].first_entry:
                return max(found, fragment.first_entry)
        raise AssertionError("a ledger has a last fragment")

    async def _read(self, first_entry: int, bytes_max: int, end: int) -> list[Buffer]:
        hole = holes.hole_at(self._record, first_entry)
        if hole is not None:
            return [holes.blank_at(self.ledger_id, hole, first_entry)]
        question = _Question(first_entry, bytes_max, holes.whole_up_to(self._record, first_entry, end))
        replicas = self._replicas(first_entry)
        if len(replicas) == 1:
            found = await self._ask(replicas[0], question)
        else:
            found = await self._ask_in_turn(replicas, question)
        if found:
            return found
        raise self._unreadable(first_entry, question.refusals)

    async def _ask_in_turn(self, replicas: list[BookieId], question: _Question) -> list[Buffer]:
        """The first whole answer; [] when nobody has one. The next is asked when one refuses or is slow."""
        asked: list[asyncio.Task[list[Buffer]]] = []
        try:
            for index, bookie in enumerate(replicas):
                asked.append(asyncio.create_task(self._ask(bookie, question)))
                is_last = index + 1 == len(replicas)
                patience_s = None if is_last else self._shared.speculate_s(bookie)
                while asked:
                    done, _ = await asyncio.wait(asked, timeout=patience_s, return_when=FIRST_COMPLETED)
                    for task in asked:
                        if task in done and (found := task.result()):
                            return found
                    asked = [task for task in asked if task not in done]
                    if not is_last:
                        break
            return []
        finally:
            for task in asked:
                task.cancel()

    async def _ask(self, bookie: BookieId, question: _Question) -> list[Buffer]:
        """What `bookie` has of it, verified; [] when nothing, and then why stands in the question."""
        request = ReadRequest(bookie, self.ledger_id, question.first_entry, question.bytes_max)
        begin = self._shared.now()
        response = await self._bookies.port(bookie).ask(request)
        if response.status is Status.OK:
            self._shared.took(bookie, self._shared.now() - begin)
            run = valid_run(response.blocks, self.ledger_id, question.first_entry)
            blocks = [found for found, header in run.blocks if header.last_entry <= question.end]
            if blocks:
                self._preferred = bookie
                return blocks
            detail = run.damage or f"a block that reaches beyond the last confirmed entry {question.end}"
            response = ReadResponse(Status.IO_ERROR, response.lac, detail=detail)
        question.refusals[bookie] = response
        if response.status is Status.IO_ERROR or (self._is_closed() and response.status in LACKING):
            self._shared.report(
                bookie, self.ledger_id, question.first_entry, response.detail or response.status.name
            )
        return []

    def _replicas(self, entry: int) -> list[BookieId]:
        """The preferred one first; to begin with, each ledger prefers another one."""
        fragment = self._record.fragments[states.fragment_index(self._record, entry)]
        ensemble = states.ensemble(fragment)
        if len(ensemble) == 1:
            return [ensemble[0]]
        start = self.ledger_id % len(ensemble)
        if self._preferred is not None and self._preferred in ensemble:
            start = ensemble.index(self._preferred)
        return self._shared.order(ensemble, start)

    def _unreadable(self, entry: int, answers: dict[BookieId, ReadResponse]) -> QuireError:
        statuses = {answer.status for answer in answers.values()}
        if Status.DELETED in statuses:
            return NotFound(f"ledger {self.ledger_id} was deleted")
        said = told(answers)
        if statuses <= FINAL:
            return LostForGood(
                f"entry {entry} of ledger {self.ledger_id} is confirmed and lost for good: {said}",
                self.ledger_id,
                entry,
            )
        return Unavailable(f"entry {entry} of ledger {self.ledger_id} cannot be read now: {said}; try again")

    async def _following_the_record(self, ask: Callable[[], Awaitable[T]]) -> T:
        """`ask` as the record says, and when that fails as it says by now."""
        asked = self._record
        try:
            return await ask()
        except (CorruptionError, Unavailable):
            if not await self._says_more_than(asked):
                raise
            return await ask()

    async def _says_more_than(self, asked: LedgerRecord) -> bool:
        """Raises `NotFound` when the ledger was deleted; a store that does not answer tells of no change."""
        try:
            await self._refresh()
        except Unavailable:
            pass
        return (self._record.fragments, self._record.holes) != (asked.fragments, asked.holes)

    async def _refresh(self) -> None:
        path = paths.ledger(self.ledger_id)
        try:
            record = decode(LedgerRecord, (await self._store.get(path)).value, path)
        except NotFound as error:
            raise NotFound(f"ledger {self.ledger_id} was deleted") from error
        if record.state is LedgerState.DELETING:
            raise NotFound(f"ledger {self.ledger_id} is being deleted")
        self._record = record

    async def _look_further(self) -> None:
        """Somebody else writes this ledger: is it closed now, or is more confirmed?"""
        if self._confirmed is not None or self._is_closed():
            return
        await self._refresh()
        if not self._is_closed():
            ensemble = states.ensemble(self._record.fragments[-1])
            answers = await asyncio.gather(
                *(
                    self._bookies.port(bookie).ask(ReadRequest(bookie, self.ledger_id, BEYOND, 1))
                    for bookie in ensemble
                )
            )
            self._lac = max(self._lac, *(answer.lac for answer in answers))

    async def _least_with_time(self, ensemble: tuple[BookieId, ...], time_ms: int) -> int:
        """The least answer of so many replicas that one of them has each confirmed block."""
        answers: list[SimpleResponse] = await asyncio.gather(
            *(
                self._bookies.port(bookie).ask(FindTimeRequest(bookie, self.ledger_id, time_ms))
                for bookie in ensemble
            )
        )
        statuses = {answer.status for answer in answers}
        if Status.DELETED in statuses:
            raise NotFound(f"ledger {self.ledger_id} was deleted")
        found = [answer.entry for answer in answers if answer.status is Status.OK]
        empty = sum(answer.status is Status.NO_SUCH_LEDGER for answer in answers)
        if len(found) + empty < len(ensemble) - self._record.ack_quorum + 1:
            told = ", ".join(answer.status.name for answer in answers)
            raise Unavailable(f"ledger {self.ledger_id} cannot be searched by time now: {told}; try again")
        return min(found, default=self.last_confirmed + 1)
