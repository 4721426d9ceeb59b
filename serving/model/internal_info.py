"""Record of a topic in the JSON of Pulsar's `internal-info` ([ManagedLedgerInfo]).

[ManagedLedgerInfo]: https://github.com/apache/pulsar/blob/master/managed-ledger/src/main/java/org/apache/bookkeeper/mledger/ManagedLedgerInfo.java
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class PlainPosition(Struct, rename="camel"):
    ledger_id: int
    entry_id: int


class PositionRange(Struct):
    """Range of entries, from the entry after `from_` up to `to`."""

    from_: PlainPosition = field(name="from")
    to: PlainPosition


class LedgerInfo(Struct, rename="camel", kw_only=True):
    """Segment in the JSON of Pulsar's `internal-info`; the totals of the active segment are null."""

    ledger_id: int
    entries: int | None
    size: int | None
    timestamp: int | None
    """Time at which the segment was sealed, in ms since 1970."""
    is_offloaded: bool
    offloaded_context_uuid: str | None = None


class CursorInfo(Struct, rename="camel", kw_only=True):
    """Subscription in the JSON of `internal-info`. Its cursor is in a state log, and has no node of its own."""

    version: int = 0
    creation_date: str | None = None
    modification_date: str | None = None
    cursors_ledger_id: int = -1
    mark_delete: PlainPosition
    individual_deleted_messages: list[PositionRange]
    """The first ranges of acknowledged entries after mark-delete."""
    properties: dict[str, int] = {}


class ManagedLedgerInfo(Struct, rename="camel", kw_only=True):
    """Record of a topic, as in Pulsar's `internal-info`."""

    version: int
    """Version of the topic's node in the metadata store."""
    creation_date: str | None
    modification_date: str | None = None
    ledgers: list[LedgerInfo] = []
    terminated_position: PlainPosition | None = None
    cursors: Mapping[str, CursorInfo] = {}
    properties: Mapping[str, str] = {}


class PartitionedManagedLedgerInfo(ManagedLedgerInfo, kw_only=True):
    """Record of a partitioned topic, with the used partitions by full name."""

    partitions: Mapping[str, ManagedLedgerInfo]
