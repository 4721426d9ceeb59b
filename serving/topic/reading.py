"""Reading a topic's blocks from the bookies or from the archive.

Bookies and archive each have a `SegmentReader`; this module tries them in this order:

1. The bookies, while the segment's record says that they have a copy.
2. The archive, if it has the segment and the bookies cannot answer.
3. The bookies again, if the archived object is damaged or missing, even if the record says that their copy was
released. The damage is reported.

A segment may move while it is being read; then its record is looked up again. Readers of the last `READERS_MAX` opened
segments are kept, because opening a reader reads metadata.

`NotFound` means that a position was trimmed; a failure of a disk or a bookie never raises it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from quire.ledger.ledgers import Ledgers
from quire.metadata.records import SegmentRecord
from quire.runtime.errors import CorruptionError, LostForGood, NotFound, QuireError, Unavailable
from quire.serving.model.ports import Position
from quire.serving.topic.segments import Segments
from quire.tiering.archive import Archive, SegmentReader
from quire.wire import block as blocks
from quire.wire.block import Buffer

READERS_MAX: Final = 8

T = TypeVar("T")


class CombinedReader:
    """`SegmentReader` of one segment, which reads through the topic's `TopicReader`."""

    def __init__(self, reader: TopicReader, ledger_id: int) -> None:
        self._reader = reader
        self._ledger_id = ledger_id

    async def read(self, first_entry: int, bytes_max: int) -> list[Buffer]:
        position = Position(self._ledger_id, first_entry)
        try:
            return await self._reader.read(position, bytes_max)
        except CorruptionError:
            return await self._reader.read(position, 1)  # The first block may be intact.

    async def find_time(self, time_ms: int) -> int:
        return await self._reader.find_time(self._ledger_id, time_ms)


class TopicReader:
    """Reader of one topic's segments."""

    def __init__(self, segments: Segments, ledgers: Ledgers, archive: Archive | None) -> None:
        self._segments = segments
        self._ledgers = ledgers
        self._archive = archive
        self._readers: dict[tuple[int, bool] | str, SegmentReader] = {}
        """Open readers, by (ledger id, whether it is the active segment) or by the name of an archived object."""

    async def read(self, position: Position, bytes_max: int) -> list[Buffer]:
        """Read whole confirmed blocks of one segment; see `TopicPort.read`."""
        found = await self._ask(position.ledger_id, lambda reader: reader.read(position.entry_id, bytes_max))
        return self._only_confirmed(position.ledger_id, found)

    async def find_time(self, ledger_id: int, time_ms: int) -> int:
        """Return the entry of a segment from which a read includes all blocks with a clock of `time_ms` or later."""
        return await self._ask(ledger_id, lambda reader: reader.find_time(time_ms))

    def _only_confirmed(self, ledger_id: int, found: Sequence[Buffer]) -> list[Buffer]:
        active = self._segments.active
        if active is None or active.ledger_id != ledger_id:
            return list(found)
        return [block for block in found if blocks.peek(block).last_entry <= active.last_entry]

    async def _ask(self, ledger_id: int, question: Callable[[SegmentReader], Awaitable[T]]) -> T:
        segment = self._segments.find(ledger_id)
        if segment is None:
            return await question(await self._active_reader(ledger_id))
        refusal: QuireError | None = None
        if segment.on_bookies:
            try:
                return await question(await self._ledger_reader(ledger_id))
            except (NotFound, Unavailable, CorruptionError) as error:
                # The segment may have moved since the look-up, and the archive may have blocks that a disk lost.
                segment = self._segments.find(ledger_id) or segment
                if segment.archive is None or self._archive is None:
                    raise
                refusal = error
        try:
            answer = await question(self._archive_reader(segment))
        except (NotFound, CorruptionError) as error:
            now = self._segments.find(ledger_id)
            if now is None:
                raise  # the segment was trimmed meanwhile
            if now.archive != segment.archive:
                return await self._ask(ledger_id, question)  # the segment was uploaded again
            damage = self._note_damage(segment, error)
        else:
            if isinstance(refusal, LostForGood):
                self._ledgers.found_elsewhere(ledger_id)
            return answer
        if refusal is None:
            try:
                return await question(await self._ledger_reader(ledger_id))
            except (NotFound, Unavailable, CorruptionError) as error:
                refusal = error
        kind = Unavailable if isinstance(refusal, Unavailable) else CorruptionError
        raise kind(f"{damage}; the copy on the bookies cannot be read either: {refusal}")

    def _note_damage(self, segment: SegmentRecord, error: QuireError) -> str:
        assert segment.archive is not None and self._archive is not None
        what = f"segment {segment.ledger_id} of {self._segments.record.name}"
        return self._archive.note_damage(segment.archive, what, error)

    async def _active_reader(self, ledger_id: int) -> SegmentReader:
        active = self._segments.active
        if active is None or active.ledger_id != ledger_id:
            raise NotFound(f"ledger {ledger_id} is no longer a segment of topic {self._segments.record.name}")
        return await self._keep((ledger_id, True), lambda: active.last_entry)

    async def _ledger_reader(self, ledger_id: int) -> SegmentReader:
        return await self._keep((ledger_id, False), None)

    async def _keep(self, key: tuple[int, bool], confirmed: Callable[[], int] | None) -> SegmentReader:
        reader = self._readers.get(key)
        if reader is None:
            reader = await self._ledgers.open(key[0], confirmed=confirmed)
            self._remember(key, reader)
        return reader

    def _archive_reader(self, segment: SegmentRecord) -> SegmentReader:
        if segment.archive is None or self._archive is None:
            raise Unavailable(
                f"segment {segment.ledger_id} is only in the archive, and no archive is configured"
            )
        key = segment.archive.name
        reader = self._readers.get(key)
        if reader is None:
            reader = self._archive.open(segment.archive)
            self._remember(key, reader)
        return reader

    def _remember(self, key: tuple[int, bool] | str, reader: SegmentReader) -> None:
        self._readers[key] = reader
        if len(self._readers) > READERS_MAX:
            del self._readers[next(iter(self._readers))]
