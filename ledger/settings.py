"""Settings of the quorum log: number of copies, delays after failures, rate of repair."""

from __future__ import annotations

from dataclasses import dataclass

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MIB
from quire.runtime.settings import BYTES, MILLISECONDS, setting


@dataclass(frozen=True)
class LedgerSettings:
    """Replication and retries of all ledgers of this process."""

    write_quorum: int = setting(
        3, "Copies of each block; also the size of the ensemble, because blocks are not striped."
    )
    ack_quorum: int = setting(2, "Copies that must be on disk before a block is confirmed.")
    ensemble_changes_max: int = setting(
        32,
        "Ensemble changes of one ledger before its writer ends and a new ledger is created. A recovery resets the "
        "count at each block.",
    )
    ensemble_change_delay_ms: int = setting(
        20, "Delay after a bookie's failure, so that several failures share one change.", unit=MILLISECONDS
    )
    busy_retry_ms: int = setting(
        10, "Delay before a block is sent again to a busy bookie.", unit=MILLISECONDS
    )
    metadata_retry_ms: int = setting(
        100, "Delay before a change of ledger metadata is tried again.", unit=MILLISECONDS
    )
    metadata_attempts_max: int = setting(
        50, "Attempts of one change of ledger metadata before its outcome counts as unknown."
    )
    idle_lac_ms: int = setting(
        500,
        "Idle time after which a ledger's writer sends the last confirmed entry to its bookies.",
        unit=MILLISECONDS,
    )

    def validate(self) -> None:
        """Check ranges and relations. Raises `ConfigurationError`."""
        if not 1 <= self.ack_quorum <= self.write_quorum:
            raise ConfigurationError(
                f"ack_quorum {self.ack_quorum} must be between 1 and write_quorum {self.write_quorum}"
            )
        for name in ("ensemble_change_delay_ms", "busy_retry_ms", "metadata_retry_ms", "idle_lac_ms"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must not be negative")
        if self.ensemble_changes_max < 1 or self.metadata_attempts_max < 1:
            raise ConfigurationError("ensemble_changes_max and metadata_attempts_max must be at least 1")


@dataclass(frozen=True)
class RepairSettings:
    """Delays and rates of repair."""

    repair_delay_ms: int = setting(
        600_000,
        "Absence after which a bookie counts as lost, and its data are copied to other bookies.",
        unit=MILLISECONDS,
    )
    repair_bytes_per_s: int = setting(
        32 * MIB, "Bytes per second that repair may copy, over all bookies together.", unit=BYTES
    )
    repair_look_ms: int = setting(
        5_000, "Interval at which repair checks the running bookies and waiting ledgers.", unit=MILLISECONDS
    )
    repair_round_ms: int = setting(86_400_000, "Interval of audits of all ledgers.", unit=MILLISECONDS)

    def validate(self) -> None:
        """Check ranges. Raises `ConfigurationError`."""
        for name in ("repair_bytes_per_s", "repair_look_ms", "repair_round_ms"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be greater than 0")
        if self.repair_delay_ms < 0:
            raise ConfigurationError("repair_delay_ms must not be negative")
