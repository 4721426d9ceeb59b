"""Claims of ledger id ranges in an object store: evidence of used ids that survives a restore of older metadata.

    ids/ROLE/CLUSTER/NUMBER    empty object; NUMBER is the range's number in 16 digits (`quire.ledger.ids`)

A metadata store that was restored from an older copy allocates ranges from an earlier number again. Bookies reveal
such a range, because they have its ledgers or their tombstones. Object stores do not: an archived segment may be the
only trace of a ledger, and finding the ledgers of write-ahead logs means reading all their rows. So a process claims
each range in its object stores, by a conditional upload, before it uses an id of the range. If the range is already
claimed, its ids were used before.

ROLE is the store's role. An archive and write-ahead logs may share a bucket, and each role has its own claims.

Claims far below the greatest one are deleted, so that each claim costs one short listing. A range so far below the
greatest claim counts as used. At worst, a process skips a range that it allocated long before it tried to claim it.
"""

from __future__ import annotations

import re
from typing import Final

from quire.identity.place import Place
from quire.runtime.errors import AlreadyExists, OutcomeUnknown

FOLDER: Final = "ids/"
FAR: Final = 100
"""Distance below the greatest claim from which a range counts as used.

Fewer than 100 ranges are allocated while one claim is in progress.
"""

_KEPT: Final = 2 * FAR
"""Number of claims that are kept; one page of a listing contains them all."""

_NAME: Final = re.compile(r"\d{16}")


def claims_of(place: Place) -> str:
    """Return the folder of the claims for the place's role and cluster."""
    return f"{FOLDER}{place.role.value}/{place.cluster}/"


async def claimed_ranges(place: Place) -> list[int]:
    """Return the numbers of the ranges whose claims exist, in ascending order. Raises the store's errors."""
    names = (info.name.rpartition("/")[2] for info in await place.objects.list(claims_of(place)))
    return sorted(int(name) for name in names if _NAME.fullmatch(name))


async def claim_range(place: Place, number: int) -> int:
    """Claim range `number`. Return 0, or the greatest claimed range if `number` was used before.

    The place is confirmed first: below a missing mount, or in another store, every range would seem unused. Raises
    `WrongCluster`, and the stores' errors.
    """
    await place.confirm()
    claimed, folder = await claimed_ranges(place), claims_of(place)
    greatest = claimed[-1] if claimed else 0
    if number in claimed or number <= greatest - FAR:
        return greatest
    try:
        await place.objects.put_whole(f"{folder}{number:016d}", (b"",))
    except (AlreadyExists, OutcomeUnknown):  # in doubt, the caller claims a later range
        return max(number, greatest)
    if unneeded := claimed[:-_KEPT]:
        await place.confirm()
        for old in unneeded:
            await place.objects.delete(f"{folder}{old:016d}")
    return 0
