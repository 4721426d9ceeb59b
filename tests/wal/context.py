"""A WAL's surroundings, for tests: uploads after 10 ms, and small memtables."""

from __future__ import annotations

from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore
from quire.runtime.clock import Clock, SystemClock
from quire.runtime.limits import MIB
from quire.testing.place import TrustedPlace
from quire.wal.context import WalContext
from quire.wal.run_reader import run_cache
from quire.wal.settings import WalSettings


def wal_context(
    objects: ObjectStore,
    metadata: MetadataStore,
    *,
    clock: Clock | None = None,
    settings: WalSettings | None = None,
    broker: str = "broker",
) -> WalContext:
    return WalContext(
        TrustedPlace(objects, metadata),
        run_cache(8 * MIB),
        clock or SystemClock(),
        settings or WalSettings(wal_batch_ms=10),
        broker,
    )
