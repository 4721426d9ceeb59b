"""What of a ledger is lost for good, and how an operator gives it up.

    look      reads the whole ledger, past every copy, and names each hole: entries that no bookie can give and that
              none may still have, and the messages in them
    give up   recovers the ledger first, if it is not closed (rule 26: it ends before the damage), looks, and adds the
              holes to its record, by version

From then on readers find blank blocks there (`holes`). A hole that was given up stays one. An entry is lost only when
each bookie that the record names or ever named, for whichever entries, has answered about it, or is one that an
operator gave up and that is not up; one that is merely silent stops it all: its blocks may come back. Nor is it lost
while it lies elsewhere, in the archive, where readers find what bookies lost; a hole before it would hide it from them.

How many messages a hole had is told by the index of the next block. At either end of a ledger there is none; then the
topic's own totals tell (`Span`), if they are known, and else each entry counts as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from quire.ledger import holes, labels, recovery, states
from quire.ledger.answers import FINAL, told, valid_run
from quire.ledger.parts import LedgerContext
from quire.ledger.recovery_core import BEYOND
from quire.ledger.retiring import known_bookies
from quire.metadata import paths
from quire.metadata.records import BookieIntent, Hole, LedgerRecord, LedgerState, decode, encode
from quire.runtime.errors import CorruptionError, NotFound, OutcomeUnknown, Unavailable, VersionConflict
from quire.runtime.limits import MIB
from quire.wire.block import BlockHeader, Buffer, message_counts, verify
from quire.wire.bookie import BookieId, ReadRequest, ReadResponse, Status

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 2 * MIB
_PROBES_MAX: Final = 64
"""Entries of a hole that are asked for at once: nobody can tell where the next block begins."""

_ROUNDS_MAX: Final = 20


Elsewhere = Callable[[int, int], Awaitable[Sequence[Buffer]]]
"""Proven blocks from an entry on, as many as some bytes hold, from where a closed ledger lies beside the bookies.

Raises `NotFound` and `CorruptionError` when they are not there, and `Unavailable` when nobody knows.
"""


async def nowhere(entry: int, bytes_max: int) -> Sequence[Buffer]:
    """The `Elsewhere` of a ledger that only bookies have."""
    return ()


class Span(NamedTuple):
    """The messages of a ledger by its topic's list: index of the first, and of the one after the last; -1 unknown."""

    first_index: int = -1
    end_index: int = -1


@dataclass(frozen=True)
class Loss:
    """What was found in a ledger, as its record was then. `new` holes were not given up yet; `why`, for each."""

    record: LedgerRecord
    new: tuple[Hole, ...] = ()
    why: tuple[str, ...] = ()


async def look(parts: LedgerContext, ledger_id: int, span: Span, elsewhere: Elsewhere) -> Loss:
    """Look at the whole ledger and change nothing. Raises `NotFound`, `Unavailable` while a bookie is silent."""
    record, _ = await _load(parts, ledger_id)
    return await _look(parts, record, span, elsewhere)


async def give_up(parts: LedgerContext, ledger_id: int, span: Span, elsewhere: Elsewhere) -> Loss:
    """Give up what is lost for good; the answer has the record as it is then. Raises as `look` does."""
    for _ in range(_ROUNDS_MAX):
        record, version = await _load(parts, ledger_id)
        try:
            if record.state is not LedgerState.CLOSED:
                gone = await _gone(parts, record)
                await recovery.recover(parts, ledger_id, accept_loss=True, gone=gone)
                continue
            found = await _look(parts, record, span, elsewhere)
            if found.new:
                record = states.given_up(record, found.new)
                version = await parts.store.put(paths.ledger(ledger_id), encode(record), version)
                labels.tell(parts.bookies.port, record, version)
                parts.reports.may_lack(ledger_id, "entries were given up")
        except (VersionConflict, OutcomeUnknown):
            continue
        parts.replicas.ended(ledger_id)
        for hole, why in zip(found.new, found.why, strict=True):
            _tell(record, hole, why)
        return Loss(record, found.new, found.why)
    raise Unavailable(f"ledger {ledger_id} is being changed by others all the time; try again")


def _tell(record: LedgerRecord, hole: Hole, why: str) -> None:
    _log.warning(
        "ledger %d (%s): entries %d to %d, %d messages, were given up on an operator's word: %s",
        record.ledger_id,
        record.purpose,
        hole.first_entry,
        hole.last_entry,
        hole.messages,
        why,
    )


async def _load(parts: LedgerContext, ledger_id: int) -> tuple[LedgerRecord, int]:
    path = paths.ledger(ledger_id)
    node = await parts.store.get(path)
    record = decode(LedgerRecord, node.value, path)
    if record.state is LedgerState.DELETING:
        raise NotFound(f"ledger {ledger_id} is being deleted")
    return record, node.version


async def _look(parts: LedgerContext, record: LedgerRecord, span: Span, elsewhere: Elsewhere) -> Loss:
    walk = _Walk(parts, record, span, await _gone(parts, record), elsewhere)
    last_entry = record.last_entry if record.state is LedgerState.CLOSED else await walk.last_confirmed()
    await walk.run(last_entry)
    return Loss(record, tuple(walk.found), tuple(walk.why))


async def _gone(parts: LedgerContext, record: LedgerRecord) -> set[str]:
    """Bookies of the ledger, by UUID, that never come back: not up, and retired or given up. No write-ahead log.

    One that drains is not among them: it may start again at this moment, and holds what is not copied yet.
    """
    known = await known_bookies(parts.store)
    up = {each.uuid for each in parts.bookies.available()}
    named = {bookie.uuid for bookie in states.holders(record) if not bookie.is_wal} - up
    return {uuid for uuid in named if uuid not in known or known[uuid].intent is BookieIntent.GIVE_UP}


class _Lost(NamedTuple):
    """No bookie can give the entry."""

    why: str


_Blocks = list[tuple[BlockHeader, int]]
"""Headers of intact blocks that follow one another, and how many messages each has."""


def _counted(found: Sequence[tuple[Buffer, BlockHeader]], last: int) -> _Blocks:
    return [(head, sum(message_counts(block, head))) for block, head in found if head.last_entry <= last]


class _Walk:
    """From a ledger's first entry to its last, over what is there and what is not."""

    def __init__(
        self, parts: LedgerContext, record: LedgerRecord, span: Span, gone: set[str], elsewhere: Elsewhere
    ) -> None:
        self._parts = parts
        self._record = record
        self._span = span
        self._gone = gone
        self._elsewhere = elsewhere
        self._first: BookieId | None = None
        """Who gave the last blocks, and is asked first for the next."""
        self._index = span.first_index
        self._clock_ms = -1
        self.found: list[Hole] = []
        self.why: list[str] = []

    async def last_confirmed(self) -> int:
        """Of a ledger that is not closed: as far as its bookies know; asking does not fence."""
        ensemble = states.ensemble(self._record.fragments[-1])
        answers = await asyncio.gather(*(self._ask(bookie, BEYOND) for bookie in ensemble))
        return max(answer.lac for answer in answers)

    async def run(self, last_entry: int) -> None:
        for first, last in holes.parts(self._record, 0, last_entry):
            before = holes.hole_at(self._record, first - 1) if first else None
            if before is not None:
                self._pass(before)
            await self._walk(first, last, self._end_index(last, last_entry))

    def _end_index(self, last: int, last_entry: int) -> int:
        """Index of the first message after `last`, by the hole that follows or by the topic; -1 unknown."""
        if last == last_entry:
            return self._span.end_index
        following = holes.hole_at(self._record, last + 1)
        assert following is not None, "a part that is in no hole ends at one"
        return following.first_index

    def _pass(self, hole: Hole) -> None:
        """A hole that was given up before."""
        self._index = hole.first_index + max(hole.messages, hole.last_entry + 1 - hole.first_entry)
        self._clock_ms = hole.clock_ms

    async def _walk(self, entry: int, last: int, end_index: int) -> None:
        while entry <= last:
            answer = await self._probe(entry, last)
            if not isinstance(answer, _Lost):
                entry = self._took(answer)
                continue
            first, why = entry, answer.why
            entry, blocks = await self._next(entry + 1, last)
            if blocks:  # which may begin before what was asked for: a disk has its good moments
                entry = min(entry, blocks[0][0].first_entry)
            if entry > first:
                self._lost(first, entry - 1, blocks[0][0] if blocks else None, why, end_index)
            if blocks:
                entry = self._took(blocks)

    def _took(self, blocks: _Blocks) -> int:
        header, messages = blocks[-1]
        self._index, self._clock_ms = header.first_index + messages, header.clock_ms
        return header.last_entry + 1

    async def _next(self, entry: int, last: int) -> tuple[int, _Blocks]:
        """The next entry that somebody has, and the blocks from there on; after `last` when there is none."""
        width = 1
        while entry <= last:
            some = range(entry, min(entry + width, last + 1))
            for at, answer in zip(
                some, await asyncio.gather(*(self._probe(each, last) for each in some)), strict=True
            ):
                if not isinstance(answer, _Lost):
                    return at, answer
            entry, width = some.stop, min(2 * width, _PROBES_MAX)
        return entry, []

    def _lost(self, first: int, last: int, following: BlockHeader | None, why: str, end_index: int) -> None:
        """Write a hole down; `following` is the header of the next block, else `end_index` is what is known."""
        entries = last + 1 - first
        end_index = following.first_index if following is not None else end_index
        index = self._index if self._index >= 0 else max(0, end_index - entries)
        clock_ms = self._clock_ms
        if clock_ms < 0:
            clock_ms = following.clock_ms if following is not None else self._record.created_ms
        self.found.append(Hole(
            first_entry=first,
            last_entry=last,
            first_index=index,
            messages=max(entries, end_index - index),
            clock_ms=clock_ms,
        ))  # fmt: skip
        self.why.append(why)
        self._index = index + self.found[-1].messages

    async def _probe(self, entry: int, last: int) -> _Blocks | _Lost:
        """What somebody has from `entry` on. Raises `Unavailable` when nobody has and one may."""
        index = states.fragment_index(self._record, entry)
        asked = (*states.ensemble(self._record.fragments[index]), *states.others(self._record, index))
        answers: dict[BookieId, ReadResponse] = {}
        for bookie in sorted(asked, key=lambda each: each != self._first):
            response = await self._ask(bookie, entry)
            if response.status is Status.DELETED:
                raise NotFound(f"ledger {self._record.ledger_id} was deleted")
            if response.status is Status.OK:
                run = valid_run(response.blocks, self._record.ledger_id, entry)
                if blocks := _counted(run.blocks, last):
                    self._first = bookie
                    return blocks
                response = ReadResponse(Status.IO_ERROR, response.lac, detail=run.damage or "no such block")
            answers[bookie] = response
        try:
            there = await self._elsewhere(entry, _READ_BYTES)
        except (NotFound, CorruptionError) as error:
            why = f"{told(answers)}; and in the archive: {error}"
        else:
            why = told(answers)
            if blocks := _counted([(found, verify(found)) for found in there], last):
                return blocks
        self._check_nobody_may_have_it(entry, answers)
        return _Lost(why)

    def _check_nobody_may_have_it(self, entry: int, answers: dict[BookieId, ReadResponse]) -> None:
        silent = [
            bookie
            for bookie, answer in answers.items()
            if answer.status not in FINAL and bookie.uuid not in self._gone
        ]
        if silent:
            raise Unavailable(
                f"entry {entry} of ledger {self._record.ledger_id} may still be on {silent[0]}: {told(answers)}; bring "
                f"that bookie back, or say with `quire bookies recover {silent[0].uuid}` that it never comes back"
            )

    async def _ask(self, bookie: BookieId, entry: int) -> ReadResponse:
        request = ReadRequest(bookie, self._record.ledger_id, entry, _READ_BYTES)
        return await self._parts.bookies.port(bookie).ask(request)
