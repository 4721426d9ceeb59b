"""Stores, cache, clock and settings shared by all WALs that a process writes or reads."""

from __future__ import annotations

from dataclasses import dataclass

from quire.identity.place import Place
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore
from quire.runtime.clock import Clock
from quire.wal.run_reader import RunCache
from quire.wal.settings import WalSettings


@dataclass(frozen=True)
class WalContext:
    """Dependencies of a WAL. `broker` identifies this process in the records of its WALs, and in its fences."""

    place: Place
    cache: RunCache
    clock: Clock
    settings: WalSettings
    broker: str

    @property
    def objects(self) -> ObjectStore:
        """Object store of the WALs."""
        return self.place.objects

    @property
    def metadata(self) -> MetadataStore:
        """Metadata store of the WALs' records."""
        return self.place.metadata
