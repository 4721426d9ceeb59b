"""Drain of a bookie that was asked to stop: other bookies copy its data, then the process ends.

It serves clusters that are scaled by starting and stopping containers, where the stop signal is the only notice of a
removal. If the drain cannot complete, the process must end promptly, because the whole cluster may be stopping.

| observation, once a second | meaning | action |
|---|---|---|
| the bookie was retired | all ledgers were copied | end; a later start on these directories creates a new bookie |
| the metadata store does not answer | the cluster stops, or the network is partitioned | end undrained |
| no process coordinates repair | no broker copies ledgers | end undrained |
| fewer than three other bookies accept blocks | too few targets for copies, or all bookies stop | end undrained |
| the time limit has passed | | end undrained |
| otherwise | ledgers are being copied | continue |

An undrained bookie keeps its data, and uses them again after a restart. A reason to end must persist for a few seconds,
because coordinators change and bookies restart. If there is a reason at the start, the drain does not begin.

Only the ephemeral record marks the drain (`Registration.leave`). So a process that is killed leaves no intent that an
operator would have to reset.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from quire.bookie.registration import Registration
from quire.metadata import paths
from quire.metadata.records import BookieIntent, BookieRecord, RepairRecord, decode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound, QuireError

LOOK_S: Final = 1.0
"""Interval of the observations, in seconds."""
PATIENCE_LOOKS: Final = 4
"""Number of consecutive observations of a reason before the drain ends."""

OTHERS_MIN: Final = 3
"""Minimum number of other bookies: the default number of copies."""

log = logging.getLogger(__name__)


class Seen(NamedTuple):
    """Observation of the cluster.

    - `answers`: the metadata store answers.
    - `coordinated`: a process coordinates repair.
    - `others`: number of other bookies that accept new blocks.
    - `left`: number of ledgers that still name this bookie; -1 if unknown.
    """

    answers: bool
    coordinated: bool = False
    others: int = 0
    left: int = -1


def why_hopeless(seen: Seen) -> str:
    """Return why a drain cannot complete now; "" if it can."""
    if not seen.answers:
        return "the metadata store does not answer"
    if not seen.coordinated:
        return "no broker coordinates repair"
    if seen.others < OTHERS_MIN:
        return f"only {seen.others} other bookies accept blocks, but {OTHERS_MIN} must remain"
    return ""


class Drain:
    """Drain of this process's bookie; `uuid` is its UUID."""

    def __init__(
        self, store: MetadataStore, registration: Registration, uuid: str, *, look_s: float = LOOK_S
    ) -> None:
        self._store = store
        self._registration = registration
        self._uuid = uuid
        self._look_s = look_s

    async def run(self, time_s: float) -> bool:
        """Drain the bookie within at most `time_s` seconds; return whether it was drained."""
        why = why_hopeless(await self._look())
        if not why:
            log.warning("draining: waiting until other bookies have copied this bookie's data")
            try:
                async with asyncio.timeout(time_s):
                    self._registration.leave()
                    why = await self._until_retired_or_hopeless()
            except TimeoutError:
                why = f"not all data were copied within {time_s:.0f} s"
        if why:
            log.warning("stopping undrained, this bookie keeps its data: %s", why)
        return not why

    async def _until_retired_or_hopeless(self) -> str:
        troubles = 0
        told = -1
        while not self._registration.is_retired:
            seen = await self._look()
            why = why_hopeless(seen)
            troubles = troubles + 1 if why else 0
            if troubles == PATIENCE_LOOKS:
                return why
            if seen.left not in (-1, told):
                told = seen.left
                log.info("draining: %d ledgers still name this bookie", told)
            await asyncio.sleep(self._look_s)
        return ""

    async def _look(self) -> Seen:
        try:
            async with asyncio.timeout(self._look_s):
                return Seen(
                    answers=True,
                    coordinated=await self._is_coordinated(),
                    others=await self._others(),
                    left=await self._left(),
                )
        except (QuireError, TimeoutError):
            return Seen(answers=False)

    async def _is_coordinated(self) -> bool:
        try:
            await self._store.get(paths.REPAIR_COORDINATOR)
        except NotFound:
            return False
        return True

    async def _others(self) -> int:
        names = await self._store.children(paths.BOOKIES_AVAILABLE)
        return sum([await self._takes(uuid) for uuid in names if uuid != self._uuid])

    async def _takes(self, uuid: str) -> bool:
        path = paths.bookie_available(uuid)
        try:
            record = decode(BookieRecord, (await self._store.get(path)).value, path)
        except NotFound:
            return False
        return not record.read_only and record.intent is not BookieIntent.DRAIN

    async def _left(self) -> int:
        try:
            value = (await self._store.get(paths.REPAIR_PROGRESS)).value
        except NotFound:
            return -1
        return decode(RepairRecord, value, paths.REPAIR_PROGRESS).left.get(self._uuid, -1)
