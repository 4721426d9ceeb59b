"""Detection of permanently lost entries, and an operator's order to give them up.

    look      reads the whole ledger, from any copy, and lists each hole: entries that no bookie can return now or
              later, with the number of their messages
    give up   recovers the ledger first, if it is not closed (rule 26: it is closed before the damage); then searches
              it like `look`, and adds the holes to the ledger's record by compare-and-set

From then on, readers get blank blocks for these entries (`holes`), permanently. An entry is lost only if each bookie
that the record names or ever named has answered that it cannot return the entry, or was given up by an operator and is
not running. The search fails if a bookie does not answer, because it may have the blocks. An entry in the archive is
not lost.

The number of messages in a hole follows from the message indexes of the blocks before and after it. At the ends of a
ledger, the totals in the topic's record are used (`Span`), if known; otherwise, each entry counts as one message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from quire.ledger import holes, labels, recovery, states
from quire.ledger.answers import FINAL, describe_answers, valid_run
from quire.ledger.parts import LedgerContext
from quire.ledger.recovery_core import BEYOND
from quire.ledger.retiring import known_bookies
from quire.metadata import paths
from quire.metadata.cluster import confirm_cluster
from quire.metadata.records import BookieIntent, Hole, LedgerRecord, LedgerState, decode, encode
from quire.runtime.errors import CorruptionError, NotFound, OutcomeUnknown, Unavailable, VersionConflict
from quire.runtime.limits import MIB
from quire.wire.block import BlockHeader, Buffer, message_counts, verify
from quire.wire.bookie import BookieId, ReadRequest, ReadResponse, Status

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 2 * MIB
_PROBES_MAX: Final = 64
"""Maximum number of entries that are requested in parallel to find the next readable block after a hole."""

_ROUNDS_MAX: Final = 20
"""Conflicts before `give_up` raises `Unavailable`; each conflict means that another process made progress."""


Elsewhere = Callable[[int, int], Awaitable[Sequence[Buffer]]]
"""Function that reads a closed ledger's copy outside the bookies, in the archive.

It returns verified blocks from an entry on, up to a number of bytes. It raises `NotFound` or `CorruptionError` if the
copy has no such blocks, and `Unavailable` if this is unknown.
"""


async def nowhere(entry: int, bytes_max: int) -> Sequence[Buffer]:
    """Return no blocks, because the ledger has no copy outside the bookies. An `Elsewhere`."""
    return ()


class Span(NamedTuple):
    """Range of message indexes of a ledger, from its topic's record: first index, and index after the last one.

    A field is -1 if unknown.
    """

    first_index: int = -1
    end_index: int = -1


@dataclass(frozen=True)
class Loss:
    """Result of a search: the ledger's record, holes that are not in the record yet (`new`), and the reason of each."""

    record: LedgerRecord
    new: tuple[Hole, ...] = ()
    why: tuple[str, ...] = ()


async def look(parts: LedgerContext, ledger_id: int, span: Span, elsewhere: Elsewhere) -> Loss:
    """Search the whole ledger without changing it.

    Raises `NotFound`, and `Unavailable` while a bookie does not answer.
    """
    record, _ = await _load(parts, ledger_id)
    return await _look(parts, record, span, elsewhere)


async def give_up(parts: LedgerContext, ledger_id: int, span: Span, elsewhere: Elsewhere) -> Loss:
    """Give up the permanently lost entries; return the holes with the changed record.

    Raises the errors of `look`, and `WrongCluster` if the metadata store may be incomplete or outdated.
    """
    for _ in range(_ROUNDS_MAX):
        record, version = await _load(parts, ledger_id)
        try:
            if record.state is not LedgerState.CLOSED:
                await parts.home.guard("")
                gone = await _gone(parts, record)
                await recovery.recover(parts, ledger_id, accept_loss=True, gone=gone)
                continue
            found = await _look(parts, record, span, elsewhere)
            if found.new:
                await parts.home.guard("")
                record = states.given_up(record, found.new)
                version = await parts.store.put(paths.ledger(ledger_id), encode(record), version)
                labels.send(parts.bookies.port, record, version)
                parts.reports.may_lack(ledger_id, "entries were given up")
        except (VersionConflict, OutcomeUnknown):
            continue
        parts.replicas.forget_loss(ledger_id)
        for hole, why in zip(found.new, found.why, strict=True):
            _tell(record, hole, why)
        return Loss(record, found.new, found.why)
    raise Unavailable(
        f"cannot give up entries of ledger {ledger_id}: other processes keep changing its record; try again"
    )


def _tell(record: LedgerRecord, hole: Hole, why: str) -> None:
    _log.warning(
        "ledger %d (%s): gave up entries %d to %d (%d messages) on an operator's order: %s",
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
    """Return the UUIDs of the ledger's bookies that will not return: not running, and retired or given up.

    Write-ahead logs are not included. A draining bookie is not included, because it may restart at any time with data
    that are not copied yet. Raises `WrongCluster` if the store cannot prove that a bookie without a record was retired.
    """
    if parts.home.cluster:
        await confirm_cluster(parts.store, parts.home.cluster)
    known = await known_bookies(parts.store)
    up = {each.uuid for each in parts.bookies.available()}
    named = {bookie.uuid for bookie in states.holders(record) if not bookie.is_wal} - up
    return {uuid for uuid in named if uuid not in known or known[uuid].intent is BookieIntent.GIVE_UP}


class _Lost(NamedTuple):
    """Result of a probe for an entry that no bookie can return, and that is not in the archive either."""

    why: str


_Blocks = list[tuple[BlockHeader, int]]
"""Headers of contiguous intact blocks, with the number of messages of each."""


def _counted(found: Sequence[tuple[Buffer, BlockHeader]], last: int) -> _Blocks:
    return [(head, sum(message_counts(block, head))) for block, head in found if head.last_entry <= last]


class _Walk:
    """Search of a ledger from its first entry to its last: reads blocks, and collects holes in `found`.

    `gone` contains the UUIDs of bookies that will not return; their missing answers count as "no such block".
    """

    def __init__(
        self, parts: LedgerContext, record: LedgerRecord, span: Span, gone: set[str], elsewhere: Elsewhere
    ) -> None:
        self._parts = parts
        self._record = record
        self._span = span
        self._gone = gone
        self._elsewhere = elsewhere
        self._first: BookieId | None = None
        """Bookie that returned the last blocks; it is asked first for the next ones."""
        self._index = span.first_index
        self._clock_ms = -1
        self.found: list[Hole] = []
        self.why: list[str] = []

    async def last_confirmed(self) -> int:
        """Return the greatest LAC that the bookies of an unclosed ledger report, without fencing it."""
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
        """Return the index of the first message after `last`, from the next hole or the topic; -1 if unknown."""
        if last == last_entry:
            return self._span.end_index
        following = holes.hole_at(self._record, last + 1)
        assert following is not None, "a range outside holes ends at a hole"
        return following.first_index

    def _pass(self, hole: Hole) -> None:
        """Skip a hole that was given up earlier."""
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
            if blocks:  # they may begin before the requested entry, if a failing disk could read it this time
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
        """Return the next readable entry and the blocks from it on; an entry after `last` and [] if there is none."""
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
        """Record a hole. `following` is the header of the next block; `end_index` is used if there is none."""
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
        """Return blocks from `entry` on, from any bookie or the archive; `_Lost` if the entry is permanently lost.

        Raises `Unavailable` if no bookie returned the entry, but one may still have it.
        """
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
            why = f"{describe_answers(answers)}; archive: {error}"
        else:
            why = describe_answers(answers)
            if blocks := _counted([(found, verify(found)) for found in there], last):
                return blocks
        self._check_all_lack_it(entry, answers)
        return _Lost(why)

    def _check_all_lack_it(self, entry: int, answers: dict[BookieId, ReadResponse]) -> None:
        silent = [
            bookie
            for bookie, answer in answers.items()
            if answer.status not in FINAL and bookie.uuid not in self._gone
        ]
        if silent:
            raise Unavailable(
                f"entry {entry} of ledger {self._record.ledger_id} may still be on {silent[0]}: "
                f"{describe_answers(answers)}; start that bookie, or give it up permanently with "
                f"`quire bookies recover {silent[0].uuid}`"
            )

    async def _ask(self, bookie: BookieId, entry: int) -> ReadResponse:
        request = ReadRequest(bookie, self._record.ledger_id, entry, _READ_BYTES)
        return await self._parts.bookies.port(bookie).ask(request)
