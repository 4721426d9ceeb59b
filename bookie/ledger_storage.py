"""Where flushed blocks stay: the entry logs, the index that finds them, and the one thread that writes to both.

At a start the index is opened as it was left, or rebuilt from the entry logs where it cannot be trusted. It can be
trusted when LMDB opens it, every page of it verifies, it has a mark, and every ledger's record can be read. A file
named `index-is-damaged` beside the entry logs says otherwise, whatever the index looks like: damage that was met while
the node ran, or a rebuilding that was not finished. It is removed (`clear_index_suspect`) when what the rebuilding lost
is admitted and that is durable: a crash before would pass the new index off as one that knows all.
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
"""Where files lie on the entries' disk; the journal's lie at its root."""

INDEX_IS_DAMAGED: Final = "index-is-damaged"


class LedgerStorage:
    """`worker` is the thread that appends and commits; any other may read. Opening blocks, and raises `DiskError`."""

    def __init__(
        self, disks: BookieDisks, identity: Identity, settings: BookieSettings, worker: Worker
    ) -> None:
        self.worker = worker
        self.was_rebuilt = False
        """The index was: fences and tombstones are lost."""
        self.lost_blocks = False
        """Damage was met in the entry logs while the index was rebuilt."""
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
        log.error("the index in %s is lost; it is rebuilt from the entry logs", self._disk.root)
        self.mark_index_suspect("it is being rebuilt")
        disks.index.discard()
        index = disks.index.open()
        rebuilt = rebuild(self.logs, index)
        log.warning("the index was rebuilt: %d runs, %d damaged places", rebuilt.rows, len(rebuilt.damage))
        self.was_rebuilt, self.lost_blocks = True, bool(rebuilt.damage)
        return index

    def close(self) -> None:
        """Nothing may be called afterwards."""
        self.index.close()
        self.logs.close()

    def mark_index_suspect(self, why: str) -> None:
        """Have the next start rebuild the index."""
        self._disk.write_bytes(INDEX_IS_DAMAGED, why.encode())

    def clear_index_suspect(self) -> None:
        """The rebuilt index knows, durably, what it may have lost."""
        self._disk.remove(INDEX_IS_DAMAGED)
        self._disk.sync_directory()


def _whole(disks: BookieDisks) -> Index | None:
    """The index as it was left; None when not all of it can be trusted."""
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
