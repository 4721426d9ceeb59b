"""Leaving for good when told to stop: others copy what this bookie holds, then it ends.

For clusters that are scaled by starting and stopping containers: a stop is all that a bookie hears when it is to go.
It must end all the same when it cannot be drained, and promptly: everything may be going down.

| once a second it is seen that | which means | and then |
|---|---|---|
| the identity record is gone | every copy was made elsewhere | end; a start on the same directories is a new bookie |
| the metadata store does not answer | the cluster ends, or we are cut off | end as we are |
| no process coordinates repair | no broker is there to copy anything | end as we are |
| fewer than three others take blocks | copies have no place; or all bookies stop at once | end as we are |
| the time allowed for it is over | | end as we are |
| none of these | copies are being made | go on |

To end *as we are* is to end as any member does: the data stay, and count again when it comes back. A reason must hold
for a few seconds, as coordinators change and bookies restart; but a drain that has no chance does not even begin.

Only the ephemeral record says that this bookie drains (`Registration.leave`). So a process that is killed meanwhile
leaves no wish behind that somebody would have to take back.
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
PATIENCE_LOOKS: Final = 4
"""In a row with the same trouble, before it is believed."""

OTHERS_MIN: Final = 3
"""Bookies that must go on without this one: what a cluster needs to keep three copies, its default."""

log = logging.getLogger(__name__)


class Seen(NamedTuple):
    """What a look found. `others` take new blocks and stay; `left` ledgers still need this bookie, -1: not known."""

    answers: bool
    coordinated: bool = False
    others: int = 0
    left: int = -1


def why_hopeless(seen: Seen) -> str:
    """Why a drain cannot end now; empty when it can."""
    if not seen.answers:
        return "the metadata store does not answer"
    if not seen.coordinated:
        return "no broker coordinates repair"
    if seen.others < OTHERS_MIN:
        return f"{seen.others} other bookies take blocks and {OTHERS_MIN} must be left"
    return ""


class Drain:
    """`uuid` is this bookie's."""

    def __init__(
        self, store: MetadataStore, registration: Registration, uuid: str, *, look_s: float = LOOK_S
    ) -> None:
        self._store = store
        self._registration = registration
        self._uuid = uuid
        self._look_s = look_s

    async def run(self, time_s: float) -> bool:
        """Return when the process should end, after `time_s` at the latest: whether the bookie was drained."""
        why = why_hopeless(await self._look())
        if not why:
            log.warning("told to stop: others copy what this bookie holds first")
            try:
                async with asyncio.timeout(time_s):
                    self._registration.leave()
                    why = await self._until_retired_or_hopeless()
            except TimeoutError:
                why = f"not all was copied within {time_s:.0f} s"
        if why:
            log.warning("this bookie ends without being drained, and keeps its data: %s", why)
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
                log.info("%d ledgers still need this bookie", told)
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
