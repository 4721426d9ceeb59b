"""What an operator asks about ledgers that lost something, and decides. Any broker answers.

Answers are JSON objects with the names of REST. How many messages a topic's segment has is looked up in the topic's
list (`loss.Span`), so that holes at the ends of a ledger are counted, too.
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
    """What is needed of a reader of the archive."""

    async def read(self, first_entry: int, bytes_max: int) -> Sequence[Buffer]: ...


class SegmentOpener(Protocol):
    """What is needed of `Archive`, which stands above this room."""

    def open(self, pointer: ArchivePointer) -> SegmentReader: ...


class Losses:
    def __init__(self, ledgers: Ledgers, archive: SegmentOpener | None = None) -> None:
        self._ledgers = ledgers
        self._archive = archive
        self._store = ledgers.store

    async def recover(self, ledger_id: int) -> dict[str, Any]:
        """Fence, recover and close. Raises `LostForGood` where a person must decide."""
        try:
            record = await self._ledgers.recover(ledger_id)
        except NotFound:
            raise NotFound(f"there is no ledger {ledger_id}") from None
        return _shown(Loss(record))

    async def look(self, ledger_id: int) -> dict[str, Any]:
        """What would be given up; changes nothing."""
        return _shown(await self._ledgers.look_for_loss(ledger_id, *await self._beside(ledger_id)))

    async def give_up(self, ledger_id: int) -> dict[str, Any]:
        """Give up what is lost for good: afterwards everything that reads the ledger goes on after it."""
        return _shown(await self._ledgers.give_up(ledger_id, *await self._beside(ledger_id)))

    async def known(self) -> list[dict[str, Any]]:
        """Ledgers of which repair, or this process, met an entry that is lost for good and not given up."""
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
                what = f"readers go to the archive for what bookies lost: {what}"
            rows.append({"ledgerId": ledger_id, "purpose": purpose, "what": what})
        return rows

    async def _beside(self, ledger_id: int) -> tuple[Span, Elsewhere]:
        """What is known of the ledger beside its record: its messages, and its copy in the archive."""
        _, segment = await self._segment(ledger_id)
        if segment is None:
            return Span(), nowhere
        if segment.archive is None or self._archive is None:
            return _span_of(segment), nowhere
        return _span_of(segment), self._archive.open(segment.archive).read

    async def _segment(self, ledger_id: int) -> tuple[str, SegmentRecord | None]:
        """The ledger's purpose, and its row in its topic's list, if it has one. Raises `NotFound`."""
        try:
            purpose = (await self._ledgers.info(ledger_id)).purpose
        except NotFound:
            raise NotFound(f"there is no ledger {ledger_id}") from None
        if not purpose.startswith(_TOPIC):
            return purpose, None
        domain, _, name = purpose.removeprefix(_TOPIC).partition("://")
        tenant, namespace, local = name.split("/", 2)
        try:
            topic = await topics.load(self._store, paths.topic(tenant, namespace, local, domain))
            return purpose, topic.segment(ledger_id)
        except NotFound:  # an orphan, or an older version's compacted ledger
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
