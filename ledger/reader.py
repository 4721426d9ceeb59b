"""Reader of one ledger: sequential, verified, from any replica that answers.

A read returns whole blocks; the first one contains the requested entry. Entries beyond the last confirmed one are never
returned, because a recovery may end the ledger before them. The last confirmed entry is

- for a closed ledger, its last entry;
- for a ledger that this process writes, the entry that its writer reports;
- for any other open ledger, the greatest LAC of its bookies. They are asked only when a read goes beyond the LAC that
  this reader knows.

A reader stays with one replica, so that its reads are sequential there. It asks the next replica at once if a read
fails, returns damaged blocks or finds no block, because one replica may lack blocks that the others confirmed. It also
does so if the response takes unusually long ([hedged requests](https://research.google/pubs/the-tail-at-scale/)); the
first complete answer wins (`quire.ledger.replicas`). If all replicas have answered and none has the block, the read
raises an error, never "no such entry": a reader must not skip confirmed entries silently.

The ledger's record names the replicas, and it changes when a writer replaces a bookie, when repair moves the copies of
a closed ledger, or when an operator gives up entries (blank blocks replace them, see `holes`). So if no replica has the
entry, the record is read again, and if it has changed, the read is repeated.

If all bookies of the entry's fragment have answered and none can return the entry, it is permanently lost
(`LostForGood`). The answer LIMBO also counts: that bookie lost blocks, and does not have this one. Bookies of other
fragments are not asked; if one of them has the entry, repair copies it to the right bookies.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from quire.ledger import holes, states
from quire.ledger.answers import FINAL, LACKING, describe_answers, valid_run
from quire.ledger.recovery_core import BEYOND
from quire.ledger.replicas import Replicas
from quire.metadata import paths
from quire.metadata.records import LedgerRecord, LedgerState, decode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import CorruptionError, LostForGood, NotFound, QuireError, Unavailable
from quire.wire.block import Buffer, peek
from quire.wire.bookie import BookieId, FindTimeRequest, ReadRequest, ReadResponse, SimpleResponse, Status

T = TypeVar("T")


@dataclass(slots=True)
class _Question:
    """Read in progress. `end` is the last entry that may be returned; `refusals` contains failed responses."""

    first_entry: int
    bytes_max: int
    end: int
    refusals: dict[BookieId, ReadResponse] = field(default_factory=dict)


class LedgerReader:
    """Reader of one ledger, for any number of concurrent reads."""

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
        """Last entry that may be read, as far as this reader knows."""
        if self._is_closed():
            return self._record.last_entry
        return self._confirmed() if self._confirmed is not None else self._lac

    async def read(self, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Return whole, verified, contiguous blocks; [] if `first_entry` is not confirmed.

        The first block contains `first_entry`. More blocks of the same fragment follow while they fit into `bytes_max`.
        Raises `NotFound` (ledger deleted), `LostForGood`, `Unavailable` (try again).
        """
        if first_entry > self.last_confirmed:
            await self._look_further()
        end = self.last_confirmed
        if first_entry > end:
            return []
        try:
            found = await self._following_the_record(lambda: self._read(first_entry, bytes_max, end))
        except LostForGood as error:
            self._shared.record_loss(error)
            raise
        self._shared.forget_loss_at(self.ledger_id, first_entry)
        assert peek(found[0]).first_entry <= first_entry and peek(found[-1]).last_entry <= end
        return found

    async def find_time(self, time_ms: int) -> int:
        """Return an entry before which no block has a clock (ms) of `time_ms` or later.

        Raises `NotFound` (ledger deleted), and `Unavailable` if too few replicas answer.
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
            if hole is not None and hole.last_entry >= last_entry:  # no bookie is needed
                found = fragment.first_entry if hole.clock_ms >= time_ms else last_entry + 1
            else:
                found = await self._least_with_time(states.ensemble(fragment), time_ms)
            is_last = index + 1 == len(fragments)
            if is_last or found < fragments[index + 1].first_entry:
                return max(found, fragment.first_entry)
        raise AssertionError("bug: no fragment of the ledger was searched")

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
        """Return the blocks of the first replica that has them, else [].

        The next replica is asked after a refusal or an unusual delay.
        """
        asked: list[asyncio.Task[list[Buffer]]] = []
        try:
            for index, bookie in enumerate(replicas):
                asked.append(asyncio.create_task(self._ask(bookie, question)))
                is_last = index + 1 == len(replicas)
                speculate_s = None if is_last else self._shared.speculate_s(bookie)
                while asked:
                    done, _ = await asyncio.wait(asked, timeout=speculate_s, return_when=FIRST_COMPLETED)
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
        """Return verified blocks from `bookie`; if it has none, return [] and add its response to the refusals."""
        request = ReadRequest(bookie, self.ledger_id, question.first_entry, question.bytes_max)
        begin = self._shared.now()
        response = await self._bookies.port(bookie).ask(request)
        if response.status is Status.OK:
            self._shared.observe_read(bookie, self._shared.now() - begin)
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
        """Return the replicas of `entry` in the order in which to ask them; see `Replicas.order`.

        Among equals, the replica that answered the last read comes first; before any read, the ledger id decides.
        """
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
        described = describe_answers(answers)
        if statuses <= FINAL:
            return LostForGood(
                f"entry {entry} of ledger {self.ledger_id} is confirmed and lost for good: {described}",
                self.ledger_id,
                entry,
            )
        return Unavailable(
            f"entry {entry} of ledger {self.ledger_id} cannot be read now: {described}; try again"
        )

    async def _following_the_record(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call `ask`; if it fails and the ledger's record has changed, call it again."""
        asked = self._record
        try:
            return await ask()
        except (CorruptionError, Unavailable):
            if not await self._says_more_than(asked):
                raise
            return await ask()

    async def _says_more_than(self, asked: LedgerRecord) -> bool:
        """Read the record again; return whether it has changed. Raises `NotFound` if the ledger was deleted.

        If the store does not answer, the record counts as unchanged.
        """
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
        """Refresh the record and the LAC, if another process writes this ledger."""
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
        """Return the least of the entries that the replicas of one fragment find for `time_ms`.

        So many of them must answer that each confirmed block is on at least one of these; else `Unavailable` is raised.
        """
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
            names = ", ".join(answer.status.name for answer in answers)
            raise Unavailable(
                f"cannot search ledger {self.ledger_id} by time now: its bookies answered {names}; try again"
            )
        return min(found, default=self.last_confirmed + 1)
