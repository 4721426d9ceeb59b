"""What all WALs that a process writes or reads have in common."""

from __future__ import annotations

from dataclasses import dataclass

from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore
from quire.runtime.clock import Clock
from quire.wal.run_reader import RunCache
from quire.wal.settings import WalSettings


@dataclass(frozen=True)
class WalContext:
    """`broker` names this process in the records of its WALs, and in the fences that it puts into others."""

    objects: ObjectStore
    metadata: MetadataStore
    cache: RunCache
    clock: Clock
    settings: WalSettings
    broker: str
