"""Opening the index at a start: as it was left, or rebuilt from the entry logs where it cannot be trusted.

An index can be trusted when LMDB opens it, every page of it verifies, it has a mark, and every ledger's record can
be read. A file named `index-is-damaged` beside the entry logs says otherwise, whatever the index looks like: damage
that was met while the node ran, or a rebuilding that was not finished. The caller removes it (`trust_again`) when what
the rebuilding lost is admitted and that is durable: a crash before would pass the new index off as one that knows all.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from quire.bookie.checkpoint import encode_mark, rebuild
from quire.bookie.disks import BookieDisks
from quire.bookie.entry_log import EntryLogs
from quire.bookie.identity import Identity
from quire.bookie.index import Index
from quire.bookie.ledgers import decode
from quire.runtime.disk import Disk
from quire.runtime.errors import CorruptionError, DiskError

log = logging.getLogger(__name__)

_DAMAGED: Final = "index-is-damaged"


@dataclass(frozen=True)
class OpenedIndex:
    index: Index
    was_rebuilt: bool
    """Fences and tombstones are lost."""
    lost_blocks: bool
    """Damage was met in the entry logs while it was rebuilt."""


def distrust(entries: Disk, why: str) -> None:
    """Have the next start rebuild the index."""
    entries.write_bytes(_DAMAGED, why.encode())


def trust_again(entries: Disk) -> None:
    """The rebuilt index knows, durably, what it may have lost."""
    entries.remove(_DAMAGED)
    entries.sync_directory()


def open_index(disks: BookieDisks, identity: Identity, logs: EntryLogs) -> OpenedIndex:
    """Raises `DiskError`."""
    if identity.is_new:
        disks.index.discard()
        index = disks.index.open()
        index.commit((), {}, encode_mark(0))
        identity.finish()
        return OpenedIndex(index, was_rebuilt=False, lost_blocks=False)
    if not disks.entries.exists(_DAMAGED) and (whole := _whole(disks)) is not None:
        return OpenedIndex(whole, was_rebuilt=False, lost_blocks=False)
    log.error("the index in %s is lost; it is rebuilt from the entry logs", disks.entries.root)
    distrust(disks.entries, "it is being rebuilt")
    disks.index.discard()
    index = disks.index.open()
    rebuilt = rebuild(logs, index)
    log.warning("the index was rebuilt: %d runs, %d damaged places", rebuilt.rows, len(rebuilt.damage))
    return OpenedIndex(index, was_rebuilt=True, lost_blocks=bool(rebuilt.damage))


def _whole(disks: BookieDisks) -> Index | None:
    """The index as it was left; None when not all of it can be trusted."""
    try:
        index = disks.index.open()
    except (CorruptionError, DiskError) as error:
        log.error("%s", error)
        return None
    try:
        index.verify()
        if index.mark() and all(decode(*record) for record in index.ledgers()):
            return index
    except (CorruptionError, DiskError) as error:
        log.error("%s", error)
    index.close()
    return None
