"""The settings of the quorum log: how many copies, how patient to be with a bookie that fails, how fast to repair."""

from __future__ import annotations

from dataclasses import dataclass

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MIB
from quire.runtime.settings import BYTES, MILLISECONDS, setting


@dataclass(frozen=True)
class LedgerSettings:
    """Replication and patience of every ledger of this process."""

    write_quorum: int = setting(
        3, "Copies of each block; also the size of the ensemble, for nothing is striped."
    )
    ack_quorum: int = setting(2, "Copies that must be on disk before a block is confirmed.")
    ensemble_changes_max: int = setting(
        32,
        "Ensemble changes of one ledger; more mean trouble that a new ledger is better placed for. A recovery counts "
        "anew at each block.",
    )
    ensemble_change_delay_ms: int = setting(
        20, "Wait after a bookie's failure, so that several failures are one change.", unit=MILLISECONDS
    )
    busy_retry_ms: int = setting(
        10, "Wait before a block that a busy bookie refused is sent again.", unit=MILLISECONDS
    )
    metadata_retry_ms: int = setting(
        100, "Wait before a change of ledger metadata is tried again.", unit=MILLISECONDS
    )
    metadata_attempts_max: int = setting(
        50, "Attempts at one change of ledger metadata before its outcome counts as unknown."
    )
    idle_lac_ms: int = setting(
        500, "A ledger that is idle this long tells its bookies what is confirmed.", unit=MILLISECONDS
    )

    def validate(self) -> None:
        """Raises `ConfigurationError`."""
        if not 1 <= self.ack_quorum <= self.write_quorum:
            raise ConfigurationError(
                f"ack_quorum {self.ack_quorum} must lie between 1 and write_quorum {self.write_quorum}"
            )
        for name in ("ensemble_change_delay_ms", "busy_retry_ms", "metadata_retry_ms", "idle_lac_ms"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must not be negative")
        if self.ensemble_changes_max < 1 or self.metadata_attempts_max < 1:
            raise ConfigurationError(
                "ensemble_changes_max and metadata_attempts_max must allow at least one try"
            )


@dataclass(frozen=True)
class RepairSettings:
    """How patient and how fast repair is."""

    repair_delay_ms: int = setting(
        600_000,
        "A bookie that is gone for this long is lost: what it held is copied to others.",
        unit=MILLISECONDS,
    )
    repair_bytes_per_s: int = setting(
        32 * MIB, "What repair may copy a second, over all bookies together.", unit=BYTES
    )
    repair_look_ms: int = setting(
        5_000, "How often repair looks at who is up, and at what it left.", unit=MILLISECONDS
    )
    repair_round_ms: int = setting(
        86_400_000, "All ledgers are looked at once in this time, wanted or not.", unit=MILLISECONDS
    )

    def validate(self) -> None:
        """Raises `ConfigurationError`."""
        for name in ("repair_bytes_per_s", "repair_look_ms", "repair_round_ms"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be greater than 0")
        if self.repair_delay_ms < 0:
            raise ConfigurationError("repair_delay_ms must not be negative")
