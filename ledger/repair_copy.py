"""Repair of one ledger: make the copies of its plan, then change its record by compare-and-set.

The ledger is first fenced on the target, as on all bookies of a closed ledger, and the target gets the label before any
block. A copy is made of verified blocks, from any source that has them. If none of the fragment's bookies can return a
block, the other running bookies that the record names, or ever named, are asked. The copy is complete when the target
has every block on disk. Only then is the record changed to name the target. A version conflict means that another
process has deleted or repaired the ledger, and the plan is discarded. So a crash may leave a copy that no record names,
but a record never names a bookie without a copy.

Like a recovery, repair writes blocks in spite of the fence, with the same bytes and the same entry ids.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from quire.ledger import holes, labels, lives, states
from quire.ledger.answers import FINAL, describe_answers, valid_run
from quire.ledger.directory import BookieDirectory
from quire.ledger.recovery_core import BEYOND
from quire.ledger.repair_core import FragmentPlan, Plan
from quire.metadata import paths
from quire.metadata.records import LedgerRecord, LedgerState, decode, encode
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import LostForGood, NotFound, QuireError, Unavailable
from quire.runtime.limits import MIB
from quire.runtime.token_bucket import TokenBucket
from quire.wire.block import Buffer
from quire.wire.bookie import AddRequest, BookieId, FindHoleRequest, ReadRequest, ReadResponse, Status

_READ_BYTES: Final = 2 * MIB
_BUSY_TRIES: Final = 50
"""Maximum number of attempts of a write to a busy bookie, at intervals of `_BUSY_S`: about five seconds in all."""
_BUSY_S: Final = 0.1


class _Filled(NamedTuple):
    """Result of filling the holes of one copy. `is_whole`: the bookie reports that it now has all entries."""

    changed: bool
    is_whole: bool


class Copier:
    """Copier for all ledgers of one coordinator, with one rate limit. `loads` counts copies in progress by target."""

    def __init__(
        self, store: MetadataStore, bookies: BookieDirectory, clock: Clock, bytes_per_s: int
    ) -> None:
        self._store = store
        self._bookies = bookies
        self._clock = clock
        self._rate = TokenBucket(bytes_per_s, clock.monotonic(), step=0)
        self.loads: Counter[BookieId] = Counter()
        self.bytes_copied = 0

    async def strangers(self, record: LedgerRecord, plan: Plan) -> frozenset[str]:
        """Return the UUIDs of targets with another ledger under this id, which cannot store a copy (`lives`)."""
        targets = {bookie for each in plan.fragments for bookie in each.targets}
        return await lives.strangers_among(self._bookies, record, sorted(targets))

    async def repair(
        self, record: LedgerRecord, version: int, plans: Sequence[FragmentPlan]
    ) -> tuple[LedgerRecord, int, dict[BookieId, QuireError]]:
        """Execute the plans, and write the record after each. Return record, version, and refusals by bookie.

        The refusal of a target whose damaged copy should be completed in place is returned, not raised; the copy then
        stays damaged. Raises `VersionConflict` (read the record again), `NotFound` (ledger deleted), `Unavailable` (try
        again later), `LostForGood` (no source has the entry).
        """
        refused: dict[BookieId, QuireError] = {}
        for plan in plans:
            self.loads.update(plan.targets)
            try:
                unhealed = await self._copy(record, version, plan)
                await self._check_what_stays(record, version, plan, len(plan.targets) - len(unhealed))
                refused |= unhealed
            finally:
                self.loads.subtract(plan.targets)
            before, record = record, states.repaired(record, plan.fragment, plan.bookies)
            if record != before:
                version = await self._store.put(paths.ledger(record.ledger_id), encode(record), version)
            labels.send(self._bookies.port, record, version)
        return record, version, refused

    async def complete(
        self, record: LedgerRecord, version: int, holders: Mapping[int, Sequence[BookieId]]
    ) -> bool:
        """Fill the holes of all copies; return whether any was filled.

        Holes exist because an ack quorum is enough to confirm a block: a bookie may have been busy or replaced, the
        ledger may have been closed before the bookie answered, and a recovery rewrites only blocks after the LAC.
        `holders` contains the bookies with good copies, by index of the fragment. Raises the errors of `repair`.
        """
        changed = False
        failure: QuireError | None = None
        for index, copies in holders.items():
            for copy in copies:
                try:
                    filled = await self._fill(record, version, index, copy)
                    changed |= filled.changed
                    if not filled.is_whole:
                        failure = Unavailable(f"{copy} cannot report its holes in ledger {record.ledger_id}")
                except QuireError as error:
                    failure = error  # one bookie's refusal must not stop the other copies
        if failure is not None:
            raise failure
        return changed

    async def label(self, ledger_id: int) -> None:
        """Send the ledger's label again, because a bookie lacks it or reported it as damaged.

        Raises the store's errors.
        """
        path = paths.ledger(ledger_id)
        node = await self._store.get(path)
        record = decode(LedgerRecord, node.value, path)
        if record.state is not LedgerState.DELETING:
            labels.send(self._bookies.port, record, node.version)

    async def has_holes(self, record: LedgerRecord, holders: Mapping[int, Sequence[BookieId]]) -> bool:
        """Return whether `complete` would find a hole. Raises the errors of the bookies' ports."""
        for index, copies in holders.items():
            first, last = record.fragments[index].first_entry, states.last_entry_of(record, index)
            for begin, end in holes.parts(record, first, last):
                for copy in copies:
                    lacked = await self._first_hole(record.ledger_id, copy, begin, end)
                    if lacked is not None and lacked <= end:
                        return True
        return False

    async def _check_what_stays(
        self, record: LedgerRecord, version: int, plan: FragmentPlan, made: int
    ) -> None:
        """Check that an ack quorum of copies is complete, before a plan that reduces the number of copies is recorded.

        Holes in the remaining copies are filled first, because the removed bookie may be the only one with the missing
        blocks. `made` is the number of new copies. Raises `Unavailable` if no bookie may be removed yet.
        """
        is_empty = plan.last_entry < plan.first_entry
        if is_empty or len(plan.bookies) >= len(record.fragments[plan.fragment].bookies):
            return
        stay = [copy for copy in plan.bookies if copy not in plan.targets]
        filled = [await self._fill(record, version, plan.fragment, copy) for copy in stay]
        if made + sum(one.is_whole for one in filled) < record.ack_quorum:
            raise Unavailable(
                f"ledger {record.ledger_id}: no bookie can be removed yet, because too few other copies are complete"
            )

    async def _fill(self, record: LedgerRecord, version: int, index: int, copy: BookieId) -> _Filled:
        """Fill the holes in a bookie's copy of the fragment at `index`; stop if the bookie cannot report its holes."""
        ledger_id, fragment = record.ledger_id, record.fragments[index]
        named = [source for source in states.ensemble(fragment) if source != copy]
        sources = self._with_others(record, index, named)
        changed = False
        # Entries in the record's holes were given up, so no bookie needs them.
        for first, last in holes.parts(record, fragment.first_entry, states.last_entry_of(record, index)):
            entry = first
            while (lacked := await self._first_hole(ledger_id, copy, entry, last)) is None or lacked <= last:
                if lacked is None:
                    return _Filled(changed, is_whole=False)
                if not changed:
                    await self._begin(record, version, copy)
                changed = True
                entry, errors = await self._copy_some(ledger_id, lacked, last, sources, (copy,))
                for error in errors.values():
                    raise error
        return _Filled(changed, is_whole=True)

    async def _first_hole(self, ledger_id: int, copy: BookieId, entry: int, last_entry: int) -> int | None:
        """Return the first entry that `copy` lacks; an entry after `last_entry` if it lacks none; None if unknown."""
        answer = await self._bookies.port(copy).ask(FindHoleRequest(copy, ledger_id, entry, last_entry))
        if answer.status is Status.NO_SUCH_LEDGER:
            return entry
        if answer.status not in (Status.OK, Status.LIMBO) or answer.entry < entry:
            return None
        return answer.entry

    async def _copy(
        self, record: LedgerRecord, version: int, plan: FragmentPlan
    ) -> dict[BookieId, QuireError]:
        """Copy to all targets. Return the refusals of targets whose damaged copy should be completed in place.

        Such a target may have a failing disk, which must not prevent the copies on other bookies.
        """
        ledger_id, targets = record.ledger_id, list(plan.targets)
        in_place = set(states.ensemble(record.fragments[plan.fragment]))
        await asyncio.gather(*(self._begin(record, version, target) for target in targets))
        refused: dict[BookieId, QuireError] = {}
        sources = self._with_others(record, plan.fragment, plan.sources)
        for first, last in holes.parts(record, plan.first_entry, plan.last_entry):
            entry = first
            while entry <= last and targets:
                entry, errors = await self._copy_some(ledger_id, entry, last, sources, targets)
                for target, error in errors.items():
                    if target not in in_place:
                        raise error
                    targets.remove(target)
                    refused[target] = error
        return refused

    def _with_others(self, record: LedgerRecord, index: int, named: Sequence[BookieId]) -> list[BookieId]:
        """Return `named`, followed by running bookies outside the fragment that may have blocks of it."""
        up = {each.uuid for each in self._bookies.available()}
        return [*named, *(each for each in states.others(record, index) if each.uuid in up)]

    async def _copy_some(
        self,
        ledger_id: int,
        entry: int,
        last_entry: int,
        sources: list[BookieId],
        targets: Sequence[BookieId],
    ) -> tuple[int, dict[BookieId, QuireError]]:
        """Read some blocks from a source and write them to all targets, after waiting for the rate limit of repair.

        Return the next entry to copy, and the errors of targets that refused the blocks.
        """
        blocks, next_entry = await self._read(ledger_id, entry, last_entry, sources)
        size_bytes = sum(map(len, blocks)) * len(targets)
        await asyncio.sleep(self._rate.reserve(size_bytes, self._clock.monotonic()))
        writes = (self._write(ledger_id, target, blocks) for target in targets)
        errors = dict(zip(targets, await asyncio.gather(*writes), strict=True))
        self.bytes_copied += size_bytes
        return next_entry, {target: error for target, error in errors.items() if error is not None}

    async def _begin(self, record: LedgerRecord, version: int, target: BookieId) -> None:
        """Fence the ledger on the target, and write the ledger's label (`labels`) there.

        A refusal of the label is ignored, because another version of Quire may have written it there with other bytes.
        """
        await self._fence(record.ledger_id, target)
        await self._write(record.ledger_id, target, [labels.make(record, version)])

    async def _fence(self, ledger_id: int, target: BookieId) -> None:
        request = ReadRequest(target, ledger_id, BEYOND, 1, fence=True)
        response = await self._bookies.port(target).ask(request)
        if response.status not in (Status.OK, Status.NO_SUCH_ENTRY, Status.LIMBO):
            raise _refused(ledger_id, target, response.status)

    async def _read(
        self, ledger_id: int, entry: int, last_entry: int, sources: list[BookieId]
    ) -> tuple[list[Buffer], int]:
        """Return verified blocks from `entry` up to at most `last_entry`, and the entry after them.

        The source that returned them is moved to the front of `sources`.
        """
        answers: dict[BookieId, ReadResponse] = {}
        for source in list(sources):
            response = await self._bookies.port(source).ask(
                ReadRequest(source, ledger_id, entry, _READ_BYTES)
            )
            if response.status is Status.DELETED:
                raise NotFound(f"ledger {ledger_id} was deleted")
            run = valid_run(response.blocks, ledger_id, entry)
            good = [(found, header) for found, header in run.blocks if header.last_entry <= last_entry]
            if response.status is Status.OK and good:
                sources.remove(source)
                sources.insert(0, source)
                return [found for found, _ in good], good[-1][1].last_entry + 1
            answers[source] = response
        raise _unreadable(ledger_id, entry, answers)

    async def _write(self, ledger_id: int, target: BookieId, blocks: list[Buffer]) -> QuireError | None:
        """Write blocks to `target`; return its refusal, or None after success."""
        for _ in range(_BUSY_TRIES):
            statuses = await self._add(target, blocks)
            refused = next((status for status in statuses if status is not Status.OK), None)
            if refused is None:
                return None
            if refused is not Status.BUSY:
                return _refused(ledger_id, target, refused)
            await asyncio.sleep(_BUSY_S)
        return _refused(ledger_id, target, Status.BUSY)

    async def _add(self, target: BookieId, blocks: list[Buffer]) -> Sequence[Status]:
        answer: asyncio.Future[Sequence[Status]] = asyncio.get_running_loop().create_future()

        def done(statuses: Sequence[Status]) -> None:
            if not answer.done():
                answer.set_result(statuses)

        self._bookies.port(target).add(AddRequest(target, blocks, recovery=True), done)
        return await answer


def _refused(ledger_id: int, target: BookieId, status: Status) -> QuireError:
    if status is Status.DELETED:
        return NotFound(f"ledger {ledger_id} was deleted")
    return Unavailable(f"{target} refused a copy of ledger {ledger_id}: {status.name}")


def _unreadable(ledger_id: int, entry: int, answers: Mapping[BookieId, ReadResponse]) -> QuireError:
    what = f"entry {entry} of ledger {ledger_id} cannot be copied: {describe_answers(answers)}"
    if {answer.status for answer in answers.values()} <= FINAL | {Status.OK}:
        return LostForGood(what, ledger_id, entry)
    return Unavailable(what)
