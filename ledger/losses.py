"""Operators' commands for ledgers that lost entries. Any broker can execute them.

Results are JSON objects with the field names of the REST API. The message indexes of a topic's segment are read from
the topic's record (`loss.Span`), so that the messages in holes at the ends of a ledger can be counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from quire.ledger.holes import lost_messages
from quire.ledger.ledgers import Ledgers
from quire.ledger.loss import Elsewhere, Loss, Span, nowhere
from quire.metadata import paths, topics
from quire.metadata.records import ArchivePointer, Hole, LedgerRecord, RepairRecord, SegmentRecord, decode
from quire.runtime.errors import NotFound
from quire.wire.block import Buffer

_TOPIC = "topic:"


class SegmentReader(Protocol):
    """Interface of an archived segment's reader."""

    async def read(self, first_entry: int, bytes_max: int) -> Sequence[Buffer]: ...


class SegmentOpener(Protocol):
    """Interface of `tiering.Archive`, which this package must not import."""

    def open(self, pointer: ArchivePointer) -> SegmentReader: ...


class Losses:
    """Search for lost entries, and orders to give them up."""

    def __init__(self, ledgers: Ledgers, archive: SegmentOpener | None = None) -> None:
        self._ledgers = ledgers
        self._archive = archive
        self._store = ledgers.store

    async def recover(self, ledger_id: int) -> dict[str, Any]:
        """Fence, recover and close the ledger. Raises `LostForGood` if an operator must decide."""
        try:
            record = await self._ledgers.recover(ledger_id)
        except NotFound:
            raise NotFound(f"ledger {ledger_id} does not exist") from None
        return _shown(Loss(record))

    async def look(self, ledger_id: int) -> dict[str, Any]:
        """Return the entries that `give_up` would give up, without changing anything."""
        return _shown(await self._ledgers.look_for_loss(ledger_id, *await self._beside(ledger_id)))

    async def give_up(self, ledger_id: int) -> dict[str, Any]:
        """Give up the permanently lost entries; from then on, readers of the ledger skip them."""
        return _shown(await self._ledgers.give_up(ledger_id, *await self._beside(ledger_id)))

    async def known(self) -> list[dict[str, Any]]:
        """List ledgers in which repair, or this process, found permanently lost entries that are not given up."""
        found = {ledger_id: str(error) for ledger_id, error in self._ledgers.lost().items()}
        try:
            value = (await self._store.get(paths.REPAIR_PROGRESS)).value
            found |= decode(RepairRecord, value, paths.REPAIR_PROGRESS).lost_ledgers
        except NotFound:
            pass
        rows = []
        for ledger_id, what in sorted(found.items()):
            try:
                purpose, segment = await self._segment(ledger_id)
            except NotFound:
                continue
            if segment is not None and segment.archive is not None:
                what = f"readers use the archive for lost entries: {what}"
            rows.append({"ledgerId": ledger_id, "purpose": purpose, "what": what})
        return rows

    async def _beside(self, ledger_id: int) -> tuple[Span, Elsewhere]:
        """Return the ledger's range of message indexes, from its topic's record, and a reader of its archived copy."""
        _, segment = await self._segment(ledger_id)
        if segment is None:
            return Span(), nowhere
        if segment.archive is None or self._archive is None:
            return _span_of(segment), nowhere
        return _span_of(segment), self._archive.open(segment.archive).read

    async def _segment(self, ledger_id: int) -> tuple[str, SegmentRecord | None]:
        """Return the ledger's purpose, and its segment record if a topic lists it. Raises `NotFound`."""
        try:
            purpose = (await self._ledgers.info(ledger_id)).purpose
        except NotFound:
            raise NotFound(f"ledger {ledger_id} does not exist") from None
        if not purpose.startswith(_TOPIC):
            return purpose, None
        domain, _, name = purpose.removeprefix(_TOPIC).partition("://")
        tenant, namespace, local = name.split("/", 2)
        try:
            topic = await topics.load(self._store, paths.topic(tenant, namespace, local, domain))
            return purpose, topic.segment(ledger_id)
        except NotFound:  # an orphan, or a compacted ledger of an older version
            return purpose, None


def _span_of(segment: SegmentRecord) -> Span:
    end_index = segment.first_index + segment.messages if segment.is_sealed else -1
    return Span(segment.first_index, end_index)


def _shown(loss: Loss) -> dict[str, Any]:
    record = loss.record
    return {
        "ledgerId": record.ledger_id,
        "purpose": record.purpose,
        "state": str(record.state),
        "lastEntry": record.last_entry,
        "lostMessages": lost_messages(record),
        "holes": [_hole(hole, record) for hole in record.holes],
        "found": [{**_hole(hole, record), "why": why} for hole, why in zip(loss.new, loss.why, strict=True)],
    }


def _hole(hole: Hole, record: LedgerRecord) -> dict[str, Any]:
    entries = hole.last_entry + 1 - hole.first_entry
    return {
        "firstEntry": hole.first_entry,
        "lastEntry": hole.last_entry,
        "messages": max(hole.messages, entries),
        "isCutOff": hole.first_entry > record.last_entry,
    }
