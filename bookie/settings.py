"""Settings of one storage node."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.runtime import limits
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MIB
from quire.runtime.settings import BYTES, MILLISECONDS, setting


@dataclass(frozen=True)
class BookieSettings:
    """Settings with their descriptions and defaults; `validate` checks relations."""

    journal: str = setting("data/journal", "Directory of the journal; preferably on its own disk.")
    entry_log: str = setting("data/entries", "Directory of entry logs and index; not the journal's.")
    memtable_bytes: int = setting(
        limits.MEMTABLE_BYTES,
        "Size of one of the two memtables; when both are full, sockets are not read.",
        unit=BYTES,
    )
    journal_segment_bytes: int = setting(
        limits.JOURNAL_SEGMENT_BYTES,
        "Size of a journal segment; segments are reused.",
        unit=BYTES,
    )
    journal_group_bytes_max: int = setting(
        limits.JOURNAL_GROUP_BYTES_MAX,
        "Maximum number of bytes that one journal write makes durable.",
        unit=BYTES,
    )
    entry_log_bytes: int = setting(limits.ENTRY_LOG_BYTES, "Size of an entry-log file.", unit=BYTES)
    flush_interval_ms: int = setting(
        60_000,
        "Longest time before blocks are moved from the memtable to the entry log.",
        unit=MILLISECONDS,
    )
    read_cache_bytes: int = setting(
        limits.READ_CACHE_BYTES, "Memory for blocks read from entry logs.", unit=BYTES
    )
    read_threads: int = setting(2, "Threads that read entry logs; they share nothing with the journal.")
    disk_reserve_bytes: int = setting(
        limits.ENTRY_LOG_RESERVE_BYTES,
        "Disk space that publishing leaves to acknowledgements, deletions and compaction; an eighth of a small disk.",
        unit=BYTES,
    )
    rack: str = setting("", "Rack of this bookie; copies of a ledger go to different racks.")
    unsafe_no_sync: bool = setting(
        False, "Acknowledge before data is on disk; a power cut then loses acknowledged messages."
    )

    def validate(self) -> None:
        """Check ranges and relations. Raises `ConfigurationError`."""
        if self.journal == self.entry_log:
            raise ConfigurationError("journal and entry_log must be two directories")
        if self.journal_group_bytes_max < limits.ADD_REQUEST_BYTES_MAX:
            raise ConfigurationError(
                f"journal_group_bytes_max must hold the largest request ({limits.ADD_REQUEST_BYTES_MAX} bytes)"
            )
        if self.journal_segment_bytes < 2 * self.journal_group_bytes_max:
            raise ConfigurationError("journal_segment_bytes must be at least twice journal_group_bytes_max")
        if self.memtable_bytes < 2 * self.journal_group_bytes_max:
            raise ConfigurationError("memtable_bytes must be at least twice journal_group_bytes_max")
        if self.entry_log_bytes <= self.memtable_bytes:
            raise ConfigurationError("entry_log_bytes must be larger than memtable_bytes")
        if self.journal_segment_bytes % MIB or self.entry_log_bytes % MIB:
            raise ConfigurationError("journal_segment_bytes and entry_log_bytes must be whole MiB")
        if self.flush_interval_ms <= 0 or self.read_threads <= 0:
            raise ConfigurationError("flush_interval_ms and read_threads must be greater than 0")

    def fitted(self, journal_disk_bytes: int, entry_disk_bytes: int) -> BookieSettings:
        """Return the settings for disks of these sizes: defaults are smaller on a small disk."""
        least = 2 * self.journal_group_bytes_max
        memtable_bytes = _fitted(
            self.memtable_bytes, limits.MEMTABLE_BYTES, max(least, _share(entry_disk_bytes, 32))
        )
        return replace(
            self,
            memtable_bytes=memtable_bytes,
            journal_segment_bytes=_fitted(
                self.journal_segment_bytes,
                limits.JOURNAL_SEGMENT_BYTES,
                max(least, _share(journal_disk_bytes, 32)),
            ),
            entry_log_bytes=_fitted(
                self.entry_log_bytes,
                limits.ENTRY_LOG_BYTES,
                max(-(-2 * memtable_bytes // MIB) * MIB, _share(entry_disk_bytes, 8)),
            ),
            disk_reserve_bytes=_fitted(
                self.disk_reserve_bytes, limits.ENTRY_LOG_RESERVE_BYTES, _share(entry_disk_bytes, 8)
            ),
        )


def _fitted(value: int, default: int, fitting: int) -> int:
    return min(default, fitting) if value == default else value


def _share(disk_bytes: int, divisor: int) -> int:
    """Return a fraction of a disk, in whole MiB."""
    return disk_bytes // divisor // MIB * MIB
