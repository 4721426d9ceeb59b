"""What each kind of process tells of itself to `quire doctor` and `quire support-bundle`: makes its `Member`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from ssl import SSLContext
from typing import Any

import msgspec

from quire.bookie.settings import BookieSettings
from quire.cli import member_checks
from quire.metadata.store import MetadataStore
from quire.runtime.machine import Machine, Place
from quire.runtime.member import Check, Member
from quire.runtime.metrics import MetricSource
from quire.runtime.redaction import hidden
from quire.runtime.settings import Loaded
from quire.security.configuration import Configuration


def places_of(settings: BookieSettings) -> tuple[Place, ...]:
    """Where a bookie keeps its bytes, and how much room it needs there to go on."""
    journal, entries = (_disk_bytes(Path(each)) for each in (settings.journal, settings.entry_log))
    fitted = settings.fitted(journal, entries)
    return (
        Place("journal", settings.journal, 2 * fitted.journal_segment_bytes, is_synced=True),
        Place("entry log", settings.entry_log, fitted.disk_reserve_bytes + fitted.memtable_bytes),
    )


def _disk_bytes(path: Path) -> int:
    path = path.absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).total


def bookie_machine(settings: BookieSettings, wal_url: str = "") -> Machine:
    """With a write-ahead log on object storage nothing is kept here."""
    return Machine() if wal_url else Machine(places_of(settings), is_bookie=True)


def make_member(
    kind: str,
    name: str,
    machine: Machine,
    settings: Sequence[Loaded[Any]],
    security: Configuration,
    checks: Mapping[str, Check],
) -> Member:
    found = dict(checks)
    if security != Configuration():
        found["certificates"] = member_checks.certificates(security)
    tables = hidden(msgspec.to_builtins(security)) if security != Configuration() else None
    return Member(kind, name, machine=machine, checks=found, settings=settings, more={"security": tables})


def process_checks(
    store: MetadataStore,
    metadata_url: str,
    counted: Sequence[MetricSource],
    tls: Callable[[], SSLContext] | None = None,
) -> dict[str, Check]:
    return {
        "the metadata store": member_checks.metadata(store, metadata_url, tls),
        "its counters": member_checks.counters(*counted),
    }
