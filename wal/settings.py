"""The settings of a write-ahead log on object storage."""

from __future__ import annotations

from dataclasses import dataclass

from quire.runtime import limits
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MIB
from quire.runtime.settings import BYTES, MILLISECONDS, setting


@dataclass(frozen=True)
class WalSettings:
    """Where messages are kept instead of on bookies, and how they are gathered into uploads."""

    wal: str = setting(
        "",
        "Object store that keeps what is published, s3://BUCKET/PREFIX or file:///PATH, so that no bookies are needed; "
        "empty: bookies keep it.",
    )
    wal_batch_ms: int = setting(
        250,
        "What is published is gathered for so long before it is uploaded; less is faster, and costs more requests.",
        unit=MILLISECONDS,
    )
    wal_batch_bytes: int = setting(
        limits.ADD_REQUEST_BYTES_MAX, "An upload of this size waits no longer.", unit=BYTES
    )
    wal_uploads_max: int = setting(
        16, "Uploads that are under way at once; what comes meanwhile waits and gathers."
    )
    wal_memory_bytes: int = setting(
        256 * MIB,
        "Memory for what was uploaded in the order of its coming and not yet sorted by topic.",
        unit=BYTES,
    )

    def validate(self) -> None:
        """Raises `ConfigurationError` when two settings contradict each other."""
        if self.wal_batch_ms < 10:
            raise ConfigurationError("wal_batch_ms must be at least 10")
        if not MIB <= self.wal_batch_bytes <= limits.ADD_REQUEST_BYTES_MAX:
            raise ConfigurationError(
                f"wal_batch_bytes must lie between {MIB} and {limits.ADD_REQUEST_BYTES_MAX}"
            )
        if not 1 <= self.wal_uploads_max <= limits.WAL_UPLOADS_MAX:
            raise ConfigurationError(f"wal_uploads_max must lie between 1 and {limits.WAL_UPLOADS_MAX}")
        if self.wal_memory_bytes < 4 * self.wal_batch_bytes:
            raise ConfigurationError("wal_memory_bytes must be at least four times wal_batch_bytes")

    @property
    def memtable_bytes(self) -> int:
        """Of each of the two."""
        return self.wal_memory_bytes // 2

    @property
    def threads(self) -> int:
        """Calls to the store at once: the uploads, half as many that are sent again, and the others."""
        return self.wal_uploads_max * 3 // 2 + 8
