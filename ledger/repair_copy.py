"""Repair of one ledger: copy what its plan says, then change its record by version.

A copy is made of verified blocks, from any source that gives them, and counts when the target has each of them on disk.
When none of the fragment's bookies gives a block, the others that the record names or named are asked, if they are up.
The target is fenced first, as every bookie of a closed ledger is. Only then does the record name it; a conflict means
that somebody else changed the ledger (deleted it, repaired it), and the plan is void. So a crash at any point leaves
copies that nobody names, and never a name without a copy.

Copies pass the fence as a recovery's do: they are the same bytes at the same place, whoever writes them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from quire.ledger import holes, labels, states
from quire.ledger.answers import FINAL, told, valid_run
from quire.ledger.directory import BookieDirectory
from quire.ledger.recovery_core import BEYOND
from quire.ledger.repair_core import FragmentPlan, Pace
from quire.metadata import paths
from quire.metadata.records import LedgerRecord, LedgerState, decode, encode
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import LostForGood, NotFound, QuireError, Unavailable
from quire.runtime.limits import MIB
from quire.wire.block import Buffer
from quire.wire.bookie import AddRequest, BookieId, FindHoleRequest, ReadRequest, ReadResponse, Status

_READ_BYTES: Final = 2 * MIB
_BUSY_TRIES: Final = 50
_BUSY_S: Final = 0.1


class _Filled(NamedTuple):
    """What became of one copy. `is_whole`: it says itself that it has all."""

    changed: bool
    is_whole: bool


class Copier:
    """Copies for all ledgers of one coordinator, at one pace. `loads` are copies under way on each target."""

    def __init__(self, store: MetadataStore, bookies: BookieDirectory, clock: Clock, pace: Pace) -> None:
        self._store = store
        self._bookies = bookies
        self._clock = clock
        self._pace = pace
        self.loads: Counter[BookieId] = Counter()
        self.bytes_copied = 0

    async def repair(
        self, record: LedgerRecord, version: int, plans: Sequence[FragmentPlan]
    ) -> tuple[LedgerRecord, dict[BookieId, QuireError]]:
        """Carry out the plans, each with a put of its own; answer the record as it is then.

        And what bookies refused whose copies were to be made whole where they are: those stay as they were.

        Raises `VersionConflict` (look again), `NotFound` (deleted), `Unavailable` (try again later), `LostForGood`
        (no source has it).
        """
        refused: dict[BookieId, QuireError] = {}
        for plan in plans:
            self.loads.update(plan.targets)
            try:
                unhealed = await self._copy(record, plan)
                await self._check_what_stays(record, plan, len(plan.targets) - len(unhealed))
                refused |= unhealed
            finally:
                self.loads.subtract(plan.targets)
            before, record = record, states.repaired(record, plan.fragment, plan.bookies)
            if record != before:
                version = await self._store.put(paths.ledger(record.ledger_id), encode(record), version)
            labels.tell(self._bookies.port, record, version)
        return record, refused

    async def complete(self, record: LedgerRecord, holders: Mapping[int, Sequence[BookieId]]) -> bool:
        """Put back blocks that a copy lacks, wherever in it. True if one did.

        An ack quorum was enough to confirm them. The bookie that had not answered yet was left, or was busy, or the
        ledger was closed; and a recovery writes again only what lies behind the LAC. `holders` are the bookies with
        good copies of each fragment, by its index. Raises as `repair` does.
        """
        changed = False
        failure: QuireError | None = None
        for index, copies in holders.items():
            for copy in copies:
                try:
                    filled = await self._fill(record, index, copy)
                    changed |= filled.changed
                    if not filled.is_whole:
                        failure = Unavailable(
                            f"{copy} does not tell what it lacks of ledger {record.ledger_id}"
                        )
                except QuireError as error:
                    failure = error  # a bookie that takes nothing must not keep the others from theirs
        if failure is not None:
            raise failure
        return changed

    async def label(self, ledger_id: int) -> None:
        """Tell the ledger's bookies its label anew: one lacks it, or has it rotten. Raises what the store does."""
        path = paths.ledger(ledger_id)
        node = await self._store.get(path)
        record = decode(LedgerRecord, node.value, path)
        if record.state is not LedgerState.DELETING:
            labels.tell(self._bookies.port, record, node.version)

    async def has_holes(self, record: LedgerRecord, holders: Mapping[int, Sequence[BookieId]]) -> bool:
        """Whether `complete` would find something to put back. Raises what the bookies' ports do."""
        for index, copies in holders.items():
            first, last = record.fragments[index].first_entry, states.last_entry_of(record, index)
            for begin, end in holes.parts(record, first, last):
                for copy in copies:
                    lacked = await self._first_hole(record.ledger_id, copy, begin, end)
                    if lacked is not None and lacked <= end:
                        return True
        return False

    async def _check_what_stays(self, record: LedgerRecord, plan: FragmentPlan, made: int) -> None:
        """Before a fragment has fewer bookies than before: an ack quorum of those that are left must have all of it.

        A good copy may have holes, and whoever goes may be the only one that can fill them. `made` copies are new.
        Raises `Unavailable`: nobody goes yet.
        """
        is_empty = plan.last_entry < plan.first_entry
        if is_empty or len(plan.bookies) >= len(record.fragments[plan.fragment].bookies):
            return
        stay = [copy for copy in plan.bookies if copy not in plan.targets]
        filled = [await self._fill(record, plan.fragment, copy) for copy in stay]
        if made + sum(one.is_whole for one in filled) < record.ack_quorum:
            raise Unavailable(
                f"ledger {record.ledger_id} cannot leave a bookie yet: too few of the others have all of it"
            )

    async def _fill(self, record: LedgerRecord, index: int, copy: BookieId) -> _Filled:
        """Fill the holes of one copy of one fragment; a copy that cannot say where it has some is left alone."""
        ledger_id, fragment = record.ledger_id, record.fragments[index]
        named = [source for source in states.ensemble(fragment) if source != copy]
        sources = self._with_others(record, index, named)
        changed = False
        # What was given up is nobody's to have.
        for first, last in holes.parts(record, fragment.first_entry, states.last_entry_of(record, index)):
            entry = first
            while (lacked := await self._first_hole(ledger_id, copy, entry, last)) is None or lacked <= last:
                if lacked is None:
                    return _Filled(changed, is_whole=False)
                if not changed:
                    await self._fence(ledger_id, copy)
                changed = True
                entry, errors = await self._copy_some(ledger_id, lacked, last, sources, (copy,))
                for error in errors.values():
                    raise error
        return _Filled(changed, is_whole=True)

    async def _first_hole(self, ledger_id: int, copy: BookieId, entry: int, last_entry: int) -> int | None:
        """The first entry that `copy` lacks; behind the last one when there is none; None when nobody knows."""
        answer = await self._bookies.port(copy).ask(FindHoleRequest(copy, ledger_id, entry, last_entry))
        if answer.status is Status.NO_SUCH_LEDGER:
            return entry
        if answer.status not in (Status.OK, Status.LIMBO) or answer.entry < entry:
            return None
        return answer.entry

    async def _copy(self, record: LedgerRecord, plan: FragmentPlan) -> dict[BookieId, QuireError]:
        """Copy to all targets. Answers what those refused that are to be made whole where they are.

        One that is rotten refuses; that must not keep another bookie from the copy that it is to have.
        """
        ledger_id, targets = record.ledger_id, list(plan.targets)
        in_place = set(states.ensemble(record.fragments[plan.fragment]))
        await asyncio.gather(*(self._fence(ledger_id, target) for target in targets))
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
        """`named`, then those that are up and may have what all of these lack."""
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
        """Copy what one read gives, at the pace; returns where to go on, and who refused it."""
        blocks, next_entry = await self._read(ledger_id, entry, last_entry, sources)
        size_bytes = sum(map(len, blocks)) * len(targets)
        await asyncio.sleep(self._pace.take(size_bytes, self._clock.monotonic()))
        writes = (self._write(ledger_id, target, blocks) for target in targets)
        errors = dict(zip(targets, await asyncio.gather(*writes), strict=True))
        self.bytes_copied += size_bytes
        return next_entry, {target: error for target, error in errors.items() if error is not None}

    async def _fence(self, ledger_id: int, target: BookieId) -> None:
        request = ReadRequest(target, ledger_id, BEYOND, 1, fence=True)
        response = await self._bookies.port(target).ask(request)
        if response.status not in (Status.OK, Status.NO_SUCH_ENTRY, Status.LIMBO):
            raise _refused(ledger_id, target, response.status)

    async def _read(
        self, ledger_id: int, entry: int, last_entry: int, sources: list[BookieId]
    ) -> tuple[list[Buffer], int]:
        """Verified blocks from `entry`, none beyond `last_entry`, and where to go on; who gave them stays first."""
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
        """What `target` refuses the blocks with; None when it has them."""
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
    return Unavailable(f"{target} does not take a copy of ledger {ledger_id}: {status.name}")


def _unreadable(ledger_id: int, entry: int, answers: Mapping[BookieId, ReadResponse]) -> QuireError:
    what = f"entry {entry} of ledger {ledger_id} cannot be copied: {told(answers)}"
    if {answer.status for answer in answers.values()} <= FINAL | {Status.OK}:
        return LostForGood(what, ledger_id, entry)
    return Unavailable(what)
