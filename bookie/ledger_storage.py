"""Storage of flushed blocks: the entry logs, the index, and the one thread that writes to both.

At a start, the index is opened, or rebuilt from the entry logs if it is not trusted. It is trusted if LMDB opens it,
its verification succeeds, it has a mark, and every ledger's record is valid. If a file `index-is-damaged` exists beside
the entry logs, the index is not trusted in any case: damage was found while the node ran, or a rebuild was interrupted.
The file is removed (`clear_index_suspect`) only after the losses of the rebuild are recorded durably, because an
incomplete index looks valid after a crash.
"""

from __future__ import annotations

import logging
from typing import Final

from quire.bookie.checkpoint import encode_mark, rebuild
from quire.bookie.disks import BookieDisks
from quire.bookie.entry_log import EntryLogs
from quire.bookie.identity import Identity
from quire.bookie.index import Index
from quire.bookie.index_home import INDEX_DIRECTORY
from quire.bookie.ledgers import decode
from quire.bookie.settings import BookieSettings
from quire.runtime.disk import Worker
from quire.runtime.errors import CorruptionError, DiskError
from quire.runtime.limits import ENTRY_LOG_RECORD_BYTES, ENTRY_LOG_STEP_BYTES

log = logging.getLogger(__name__)

_LOGS_DIRECTORY: Final = "logs"
DIRECTORIES: Final = (_LOGS_DIRECTORY, INDEX_DIRECTORY)
"""Directories on the entries' disk; the journal's files are in its root."""

INDEX_IS_DAMAGED: Final = "index-is-damaged"
"""Marker file: the next start rebuilds the index."""


class LedgerStorage:
    """Entry logs and index. Only the thread `worker` appends and commits; any thread may read.

    The constructor blocks, and raises `DiskError`.
    """

    def __init__(
        self, disks: BookieDisks, identity: Identity, settings: BookieSettings, worker: Worker
    ) -> None:
        self.worker = worker
        self.was_rebuilt = False
        """True if the index was rebuilt: fences and tombstones are lost."""
        self.lost_blocks = False
        """True if damage was found in the entry logs during the rebuild."""
        self._disk = disks.entries
        self.logs = EntryLogs(
            disks.entries,
            _LOGS_DIRECTORY,
            file_bytes=settings.entry_log_bytes,
            step_bytes=min(ENTRY_LOG_STEP_BYTES, settings.entry_log_bytes),
            record_bytes=min(ENTRY_LOG_RECORD_BYTES, settings.entry_log_bytes // 4),
        )
        self.logs.open()
        try:
            self.index = self._open_index(disks, identity)
        except BaseException:
            self.logs.close()
            raise

    def _open_index(self, disks: BookieDisks, identity: Identity) -> Index:
        if identity.is_new:
            disks.index.discard()
            index = disks.index.open()
            index.commit((), {}, encode_mark(0))
            identity.finish()
            return index
        if not self._disk.exists(INDEX_IS_DAMAGED) and (whole := _whole(disks)) is not None:
            return whole
        log.error("the index in %s is damaged or missing; rebuilding it from the entry logs", self._disk.root)
        self.mark_index_suspect("it is being rebuilt")
        disks.index.discard()
        index = disks.index.open()
        rebuilt = rebuild(self.logs, index)
        log.warning("rebuilt the index: %d runs, %d damaged places", rebuilt.rows, len(rebuilt.damage))
        self.was_rebuilt, self.lost_blocks = True, bool(rebuilt.damage)
        return index

    def close(self) -> None:
        """Close index and logs; no method may be called afterwards."""
        self.index.close()
        self.logs.close()

    def mark_index_suspect(self, why: str) -> None:
        """Create the marker file, so that the next start rebuilds the index."""
        self._disk.write_bytes(INDEX_IS_DAMAGED, why.encode())

    def clear_index_suspect(self) -> None:
        """Remove the marker file, after the rebuilt index contains durable records of all possible losses."""
        self._disk.remove(INDEX_IS_DAMAGED)
        self._disk.sync_directory()


def _whole(disks: BookieDisks) -> Index | None:
    """Open the existing index; return None if it is not trusted."""
    try:
        index = disks.index.open()
    except (CorruptionError, DiskError) as error:
        log.error("%s", error)
        return None
    try:
        if index.mark() and all(decode(*record) for record in index.ledgers()):
            return index
    except (CorruptionError, DiskError) as error:
        log.error("%s", error)
    index.close()
    return None
