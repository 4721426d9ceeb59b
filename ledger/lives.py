"""Detection of reused ledger ids and outdated records, from the labels on bookies.

A label is a copy of a ledger's record that bookies store beside its blocks (`labels`). A metadata store that was
restored from an older copy lacks changes that the labels contain:

- A ledger that is open in the restored store may have continued after the copy was made. Its later ensemble changes or
  its close are only in labels, and a recovery from the older ensemble would close it too early. `newest` follows the
  labels from ensemble to ensemble, until no label is newer. Ledgers in write-ahead logs are not checked here.
- The store may give an id to a second ledger. A bookie whose label has another nonce than the record is a *stranger* to
  the second ledger: the stranger's blocks, LAC, fence and tombstone belong to the first ledger. It refused the second
  ledger's label before that ledger's first block, so it has acknowledged no entry of the second ledger.

A label is newer than the record if its version is greater than the record's version while the ledger was open. A bookie
that does not answer, or has no label, proves nothing. Records written by older versions of Quire have no nonce.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from quire.ledger import labels, states
from quire.ledger.directory import BookieDirectory
from quire.ledger.placement import bookie_id
from quire.metadata.records import LedgerRecord, LedgerState, Storage
from quire.runtime.errors import CorruptionError, Unavailable
from quire.wire.bookie import BookieId, LedgerInfo, LedgerInfoRequest, ReadRequest, Request, Status
from quire.wire.ledger_ids import label_id

R = TypeVar("R")

_log = logging.getLogger(__name__)


class Known(NamedTuple):
    """Newest known record of a ledger with its version, and the UUIDs of its strangers (see the module)."""

    record: LedgerRecord
    version: int
    strangers: frozenset[str] = frozenset()


async def newest(
    bookies: BookieDirectory, record: LedgerRecord, version: int, strangers: Collection[str] = ()
) -> Known:
    """Return the newest record found in labels, starting with the ensemble of `record`'s last fragment.

    All running bookies are asked, because a whole ensemble may have been replaced at once. Each bookie in the ack
    quorum of a confirmed block has the label, so the newest label is found while fewer bookies than an ack quorum are
    missing. `version` is the version of the record's node; `strangers` contains the known strangers. Raises
    `Unavailable` if a newer label cannot be read.
    """
    known = Known(record, _open_version(record, version), frozenset(strangers))
    if states.storage(record) is Storage.OBJECTS:
        return known
    up = map(bookie_id, bookies.available())
    left, asked = [*dict.fromkeys([*states.ensemble(record.fragments[-1]), *up])], set[BookieId]()
    while left:
        asked |= set(left)
        known = await _look(bookies, known, [each for each in left if not each.is_wal])
        left = [each for each in states.ensemble(known.record.fragments[-1]) if each not in asked]
    return known


async def strangers_among(
    bookies: BookieDirectory, record: LedgerRecord, asked: Iterable[BookieId]
) -> frozenset[str]:
    """Return the UUIDs of the bookies in `asked` that have another ledger under the id of `record`."""
    asked = [bookie for bookie in asked if not bookie.is_wal]
    return await _strangers(bookies, record, await _ask(bookies, record.ledger_id, asked))


def _open_version(record: LedgerRecord, version: int) -> int:
    """Return the last version of the record's node in which the ledger was open.

    For a record in IN_RECOVERY, this is the version before, because the change to IN_RECOVERY added one.
    """
    return version - 1 if record.state is LedgerState.IN_RECOVERY else version


async def _look(bookies: BookieDirectory, known: Known, asked: list[BookieId]) -> Known:
    infos = await _ask(bookies, known.record.ledger_id, asked)
    strangers = known.strangers | await _strangers(bookies, known.record, infos)
    known = known._replace(strangers=strangers)
    newer = [
        (info.last_entry, bookie)
        for bookie, info in infos.items()
        if bookie.uuid not in known.strangers and info.last_entry > known.version
    ]
    for version, bookie in sorted(newer, reverse=True):
        if version > known.version:
            known = await _read(bookies, known, bookie, version)
    if any(version > known.version and bookie.uuid not in known.strangers for version, bookie in newer):
        raise Unavailable(
            f"the bookies' labels of ledger {known.record.ledger_id} are newer than its record in the metadata "
            "store, but cannot be read now; try again"
        )
    return known


async def _ask(bookies: BookieDirectory, ledger_id: int, asked: list[BookieId]) -> dict[BookieId, LedgerInfo]:
    """Return the `LedgerInfo` of each bookie's newest label: `last_entry` is its version, `lac` is its nonce.

    Bookies without a label are left out.
    """
    request = [LedgerInfoRequest(bookie, label_id(ledger_id)) for bookie in asked]
    infos = await asyncio.gather(*(_answer(bookies, each) for each in request))
    return {
        bookie: info
        for bookie, info in zip(asked, infos, strict=True)
        if info.status is Status.OK and info.last_entry >= 0
    }


async def _answer(bookies: BookieDirectory, request: Request[R]) -> R:
    try:
        return await bookies.port(request.bookie).ask(request)
    except Exception:  # an internal error proves nothing either
        _log.exception("cannot ask %s for a label", request.bookie)
        return request.refused(Status.UNREACHABLE)


async def _strangers(
    bookies: BookieDirectory, record: LedgerRecord, infos: Mapping[BookieId, LedgerInfo]
) -> frozenset[str]:
    found = set()
    for bookie, info in infos.items():
        if record.nonce < 0 or info.lac == record.nonce:
            continue
        if info.lac >= 0 or await _names_another(bookies, record, bookie, info.last_entry):
            found.add(bookie.uuid)
    return frozenset(found)


async def _names_another(
    bookies: BookieDirectory, record: LedgerRecord, bookie: BookieId, version: int
) -> bool:
    """Return whether a label without a nonce, from an older version of Quire, contains another ledger's record."""
    found = await _label(bookies, record.ledger_id, bookie, version)
    return found is not None and not _is_same(record, found[0])


def _is_same(one: LedgerRecord, other: LedgerRecord) -> bool:
    if one.nonce >= 0:
        return one.nonce == other.nonce
    return (one.created_ms, one.purpose) == (other.created_ms, other.purpose)


async def _read(bookies: BookieDirectory, known: Known, bookie: BookieId, version: int) -> Known:
    """Read the bookie's label of this version; return `known` with the label's record and version.

    If the label belongs to another ledger, add the bookie to the strangers instead. If it cannot be read, return
    `known` unchanged.
    """
    found = await _label(bookies, known.record.ledger_id, bookie, version)
    if found is None:
        return known
    if not _is_same(known.record, found[0]):
        return known._replace(strangers=known.strangers | {bookie.uuid})
    return known._replace(record=found[0], version=found[1])


async def _label(
    bookies: BookieDirectory, ledger_id: int, bookie: BookieId, version: int
) -> tuple[LedgerRecord, int] | None:
    """Read one label. Return its record and version; None if it cannot be read."""
    response = await _answer(bookies, ReadRequest(bookie, label_id(ledger_id), version, 1))
    if response.status is not Status.OK:
        return None
    try:
        return labels.read(response.blocks[0])
    except CorruptionError:
        return None
