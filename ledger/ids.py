"""Allocation of ledger ids: unique, increasing, and never reused, even after a restore of an older metadata store.

Ids are allocated in ranges of a hundred. A process allocates the next range by a write to the node `paths.LEDGER_IDS`;
the node's new version is the range's number. A metadata store that was lost, or restored from an older copy, repeats
earlier numbers. So a process asks the running bookies for ledgers in each range that it allocates. If a bookie has such
a ledger, the ids were used before. Then the process writes the node until its version is beyond all used ids. A bookie
that was down at that time later refuses the new ledger's blocks, because it has other bytes or a tombstone under the id
(`writer`). Then `skip` makes this process allocate another range and ask again.

Bookies do not have the ledgers in write-ahead logs on object storage, nor archived ledgers whose bookies were replaced.
So a process with object stores claims each range there as well (`Claim`; `quire.identity.id_ranges`).

Range n, from 1, contains 100 n + 1 to 100 n + 100.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from quire.ledger.directory import BookieDirectory
from quire.ledger.placement import bookie_id
from quire.metadata import paths
from quire.metadata.store import ANY_VERSION, MetadataStore, Put
from quire.runtime.errors import AlreadyExists, NotFound, OutcomeUnknown, VersionConflict
from quire.wire.bookie import BookieId, ListLedgersRequest
from quire.wire.ledger_ids import is_label

IDS_PER_RANGE: Final = 100
ASK_S: Final = 1.5
"""Time-out of a request for a bookie's ledgers, in seconds. If a slower bookie has used ids, it refuses a block later.
"""

_LISTED: Final = 1_000
_PUTS_AT_ONCE: Final = 500

_log = logging.getLogger(__name__)

Claim = Callable[[int], Awaitable[int]]
"""Function that claims the range with this number in the process's object stores.

It returns 0, or the greatest claimed range if this range was claimed before, and raises `Unavailable`. The process
passes it to this package, which must not import object stores.
"""


async def no_claim(number: int) -> int:
    """Return 0, because a process without object stores has no earlier claims. A `Claim`."""
    return 0


def range_of(ledger_id: int) -> int:
    """Return the number up to which ranges must not be allocated again, because `ledger_id` was used."""
    return ledger_id // IDS_PER_RANGE + 1


async def reach_range(store: MetadataStore, wanted: int) -> None:
    """Write the node of ledger ids until all ranges up to `wanted` count as allocated. Raises the store's errors."""
    try:
        await store.create(paths.LEDGER_IDS, b"")
    except AlreadyExists:
        pass
    while (left := wanted - (await store.get(paths.LEDGER_IDS)).version) > 0:
        puts = min(left, _PUTS_AT_ONCE)
        await store.transact([Put(paths.LEDGER_IDS, b"", ANY_VERSION)] * puts)


class LedgerIds:
    """Allocator of ledger ids from the ranges of this process."""

    def __init__(self, store: MetadataStore, bookies: BookieDirectory, claim: Claim = no_claim) -> None:
        self._store = store
        self._bookies = bookies
        self._claim = claim
        self._next = 0
        self._last = -1
        self._lock = asyncio.Lock()

    async def next(self, above: int) -> int:
        """Return the next id, greater than `above`. Raises `Unavailable`."""
        async with self._lock:
            self._next = max(self._next, above + 1)
            while self._next > self._last:
                first = await self._take_unused_range() * IDS_PER_RANGE + 1
                self._last = first + IDS_PER_RANGE - 1
                self._next = max(first, above + 1)
            ledger_id = self._next
            self._next += 1
            return ledger_id

    def skip(self) -> None:
        """Abandon the current range, because one of its ids was used before; `next` then allocates another range."""
        self._next, self._last = 0, -1

    async def _take_unused_range(self) -> int:
        while True:
            number = await self._take_range()
            first = number * IDS_PER_RANGE + 1
            used = await self._greatest_used(first, first + IDS_PER_RANGE - 1)
            claimed = await self._claim(number)
            if used < 0 and not claimed:
                return number
            _log.warning(
                "ledger ids from %d to %d were used before: the metadata store is older than the data of the bookies "
                "and object stores; new ledgers get greater ids",
                first,
                max(used, (claimed + 1) * IDS_PER_RANGE),
            )
            await reach_range(self._store, max(range_of(used), claimed))

    async def _take_range(self) -> int:
        """Allocate a range, and return its number: the node's version after this write."""
        while True:
            try:
                version = (await self._store.get(paths.LEDGER_IDS)).version
                return await self._store.put(paths.LEDGER_IDS, b"", version)
            except NotFound:
                await self._begin()
            except (VersionConflict, OutcomeUnknown):
                continue

    async def _begin(self) -> None:
        try:
            await self._store.create(paths.LEDGER_IDS, b"")
        except (AlreadyExists, OutcomeUnknown):
            pass

    # -- asking bookies --------------------------------------------------------------------------------
    async def _greatest_used(self, first: int, last: int) -> int:
        """Return the greatest ledger id on any bookie if some id from `first` to `last` is in use, else -1.

        Greater ids alone prove nothing, because other processes may have allocated later ranges.
        """
        bookies = [bookie_id(each) for each in self._bookies.available()]
        found = await asyncio.gather(*(self._list(bookie, first, 1) for bookie in bookies))
        if not any(each <= last for ids in found for each in ids):
            return -1
        return max(await asyncio.gather(*(self._greatest_at(bookie, first) for bookie in bookies)))

    async def _greatest_at(self, bookie: BookieId, first: int) -> int:
        greatest = -1
        while ids := await self._list(bookie, first, _LISTED):
            greatest = ids[-1]
            first = greatest + 1
        return greatest

    async def _list(self, bookie: BookieId, first: int, count: int) -> Sequence[int]:
        """Return up to `count` ledger ids on the bookie, from `first` on; an empty list if it does not answer."""
        try:
            async with asyncio.timeout(ASK_S):
                answer = await self._bookies.port(bookie).ask(ListLedgersRequest(bookie, first, count))
        except TimeoutError:
            return ()
        return [each for each in answer.ledgers if not is_label(each)]
