"""Settings of a write-ahead log on object storage."""

from __future__ import annotations

from dataclasses import dataclass

from quire.runtime import limits
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MIB
from quire.runtime.settings import BYTES, MILLISECONDS, setting


@dataclass(frozen=True)
class WalSettings:
    """Object store for published messages, and batching of uploads."""

    wal: str = setting(
        "",
        "Object store for published messages, s3://BUCKET/PREFIX or file:///PATH, so that no bookies are needed; "
        "empty: bookies store them.",
    )
    wal_batch_ms: int = setting(
        250,
        "Time for which messages are batched before an upload; a shorter time is faster, but costs more requests.",
        unit=MILLISECONDS,
    )
    wal_batch_bytes: int = setting(
        limits.ADD_REQUEST_BYTES_MAX, "Size from which a batch is uploaded at once.", unit=BYTES
    )
    wal_uploads_max: int = setting(16, "Concurrent uploads; further messages wait, in larger batches.")
    wal_memory_bytes: int = setting(
        256 * MIB,
        "Memory for messages that were uploaded and are not sorted by topic yet.",
        unit=BYTES,
    )

    def validate(self) -> None:
        """Check ranges and relations. Raises `ConfigurationError`."""
        if self.wal_batch_ms < 10:
            raise ConfigurationError("wal_batch_ms must be at least 10")
        if not MIB <= self.wal_batch_bytes <= limits.ADD_REQUEST_BYTES_MAX:
            raise ConfigurationError(
                f"wal_batch_bytes must be between {MIB} and {limits.ADD_REQUEST_BYTES_MAX}"
            )
        if not 1 <= self.wal_uploads_max <= limits.WAL_UPLOADS_MAX:
            raise ConfigurationError(f"wal_uploads_max must be between 1 and {limits.WAL_UPLOADS_MAX}")
        if self.wal_memory_bytes < 4 * self.wal_batch_bytes:
            raise ConfigurationError("wal_memory_bytes must be at least four times wal_batch_bytes")

    @property
    def memtable_bytes(self) -> int:
        """Size of each of the two memtables, in bytes."""
        return self.wal_memory_bytes // 2

    @property
    def threads(self) -> int:
        """Number of threads for store calls.

        One per concurrent upload, half as many for hedged uploads, and 8 for everything else.
        """
        return self.wal_uploads_max * 3 // 2 + 8
