"""Compaction of a topic: one run at a time, on request or after `compaction_threshold_bytes` of new messages.

| step | work |
|---|---|
| input | the result of the last run, then the topic after its horizon up to the last confirmed entry |
| first pass | find the last message of each key (`compacting`) |
| second pass | write the retained entries to a new ledger, followed by an index (`compacted`) |
| commit | close the ledger, and store its id in the topic's record (compare-and-set) |
| switch | disconnect readers of compacted data, which reconnect and read the new result; delete the former one |

So a run never reads messages that an earlier run has dropped, and a key's last value outlives the retention of its
segment. The former result is valid until the record is written. A crash before that leaves an unlisted ledger, which
`quire bookies orphans` finds. Trimming waits for compaction (`keeps`) after the first run, or if a threshold is set.

Entries are decoded on a helper thread, a chunk at a time: clients choose the content, and a few bytes may expand to a
million messages. `compacting` limits the work, and `Breather` pauses the thread for three quarters of the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

from msgspec.structs import replace
from pyroaring import BitMap

from quire.ledger.writer import LedgerWriter
from quire.metadata.records import CompactedRecord, PersistencePolicy
from quire.runtime.errors import AlreadyExists, DiskFull, NotFound, QuireError
from quire.runtime.limits import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX
from quire.runtime.threads import Breather
from quire.serving.model.ports import EARLIEST, Position, SubscriptionsPort, TopicPort
from quire.serving.policy.applied import AppliedPolicies
from quire.serving.topic.compaction.compacted import (
    INDEX,
    PLACE,
    Compacted,
    CompactedView,
    load,
    read_entries,
)
from quire.serving.topic.compaction.compacting import LastOfKey
from quire.serving.topic.meta_store import MetaStore
from quire.serving.topic.reading import TopicReader
from quire.serving.topic.services import Services
from quire.wire import block as blocks
from quire.wire.block import Buffer

BLOCKS_PENDING_MAX: Final = 16
READ_BYTES: Final = 256 * 1024
"""Bytes that a helper thread decodes at a time."""

_log = logging.getLogger(__name__)

_Chunk = Sequence[tuple[Position, Buffer, int]]
"""Entries of the topic, each as (position, bytes, number of messages)."""


class Status(StrEnum):
    """Status of a topic's compaction, with Pulsar's names."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class Compaction:
    """Compaction of one log."""

    __slots__ = (
        "_applied",
        "_loaded",
        "_loading",
        "_meta_store",
        "_name",
        "_reader",
        "_running",
        "_segments",
        "_services",
        "error",
    )

    def __init__(
        self,
        name: str,
        meta_store: MetaStore,
        reader: TopicReader,
        applied: AppliedPolicies,
        services: Services,
    ) -> None:
        self._name = name
        self._meta_store = meta_store
        self._segments = meta_store.segments
        self._reader = reader
        self._applied = applied
        self._services = services
        self._running: asyncio.Task[None] | None = None
        self._loaded: Compacted | None = None
        self._loading: asyncio.Lock | None = None
        self.error = ""

    # -- state, and view for readers -------------------------------------------------------------------

    @property
    def record(self) -> CompactedRecord | None:
        """Record of the last result; None before the first compaction."""
        return self._segments.record.compacted

    @property
    def horizon(self) -> Position:
        """Position of the last entry that a compaction has read; `EARLIEST` before the first compaction."""
        record = self.record
        return EARLIEST if record is None else Position(record.horizon_ledger, record.horizon_entry)

    @property
    def keeps(self) -> Position | None:
        """Position after which trimming must keep all entries; None if the topic has no compaction."""
        is_compacted = self.record is not None or self._running is not None
        wanted = is_compacted or self._applied.policies.compaction_threshold_bytes > 0
        return self.horizon if wanted else None

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def status(self) -> Status:
        if self.is_running:
            return Status.RUNNING
        if self.error:
            return Status.ERROR
        return Status.NOT_RUN if self.record is None else Status.SUCCESS

    async def view(self, topic: TopicPort) -> CompactedView | None:
        """Return the view for readers of compacted data.

        Return None if the topic was never compacted; then these readers use the topic itself.
        """
        if self._loading is None:
            self._loading = asyncio.Lock()
        async with self._loading:
            record = self.record
            if record is None:
                return None
            loaded = self._loaded
            # If another run replaced the result while it was loaded, its ledger is being deleted: load the new result.
            while loaded is None or loaded.record != self.record:
                loaded = self._loaded = await load(self._services.ledgers, self.record or record)
            return CompactedView(topic, loaded)

    # -- running ---------------------------------------------------------------------------------------

    def start(self, subscriptions: SubscriptionsPort) -> asyncio.Task[None]:
        """Start a run in the background; when it succeeds, `subscriptions.compacted()` is called.

        Raises `AlreadyExists` during another run.
        """
        if self._running is not None:
            raise AlreadyExists(f"topic {self._name} is already being compacted; wait for its end")
        self.error = ""
        self._running = self._services.tasks.start(self._run(subscriptions), f"compact {self._name}")
        self._running.add_done_callback(self._ended)
        return self._running

    def stop(self) -> None:
        """Cancel the current run, if any, because the topic is being closed."""
        if self._running is not None:
            self._running.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if task.cancelled():
            self.error = "the topic was closed during the compaction"
        elif task.exception() is not None:
            self.error = str(task.exception())

    async def _run(self, subscriptions: SubscriptionsPort) -> None:
        services = self._services
        horizon, index = self._segments.last_position(), self._segments.next_index()
        if horizon.entry_id < 0 or horizon <= self.horizon:
            return
        former = None if self.record is None else await load(services.ledgers, self.record)
        made = await self._write(former, horizon, index)
        # From here on the topic's record may list the ledger even after an error, so a cancellation must not interrupt
        # this step.
        work = self._record(made, former, subscriptions)
        recording = services.tasks.start(work, f"record a compaction of {self._name}")
        await asyncio.shield(recording)

    async def _record(
        self, made: CompactedRecord, former: Compacted | None, subscriptions: SubscriptionsPort
    ) -> None:
        """Store the result in the topic's record, and delete the former result.

        The caller shields this from cancellation, because no other task would delete the former ledger.
        """
        services = self._services
        await self._meta_store.update(lambda record: replace(record, compacted=made))
        _log.info("topic compacted: topic=%s entries=%d bytes=%d", self._name, made.entries, made.bytes)
        subscriptions.compacted()
        if former is not None:
            deletion = services.ledgers.delete(former.record.ledger_id)
            services.tasks.start(deletion, "delete a former compaction")

    async def _write(self, former: Compacted | None, horizon: Position, index: int) -> CompactedRecord:
        """Write the result to a new ledger, which the topic's record does not list yet."""
        services, segments = self._services, self._segments
        last_of_key = LastOfKey()
        first = segments.first_position()
        if former is not None:
            first = max(first, segments.next_position(former.horizon))
        async for chunk in self._input(former, first, horizon):
            await services.helpers.run(partial(_note, last_of_key, chunk))
        output = await Output.begin(self._name, self._applied.policies.persistence, services)
        try:
            async for chunk in self._input(former, first, horizon):
                for retained in await services.helpers.run(partial(_retained, last_of_key, chunk)):
                    output.add(*retained)
                await output.room()
            last_entries = self._last_entries(former, horizon)
            return await output.finish(last_entries, horizon, index, services.clock.now_ms())
        except BaseException:
            output.give_up()
            raise

    def _last_entries(self, former: Compacted | None, horizon: Position) -> dict[int, int]:
        """Map the id of each ledger up to the horizon to its last entry read by the compaction."""
        found = {}
        if former is not None:
            kept = zip(former.ledger_ids, former.last_entries, former.retained, strict=True)
            found = {ledger_id: last for ledger_id, last, retained in kept if retained}
        for view in self._segments.views():
            if view.ledger_id <= horizon.ledger_id and view.last_entry >= 0:
                is_last = view.ledger_id == horizon.ledger_id
                found[view.ledger_id] = horizon.entry_id if is_last else view.last_entry
        return found

    async def _input(
        self, former: Compacted | None, first: Position, horizon: Position
    ) -> AsyncIterator[_Chunk]:
        """Yield the entries to compact, in the topic's order: the former result, then the topic from `first` on.

        Both passes must yield the same entries, because they count messages. So an entry trimmed during the run raises
        `NotFound`.
        """
        position = first
        if former is not None:
            rank, stop = 0, former.record.entries
            while rank < stop:
                entries = read_entries(await former.reader.read(rank, READ_BYTES), rank, stop)
                rank += len(entries)
                yield [(one.place, one.data, one.messages) for one in entries]
        while position <= horizon:
            found = await self._reader.read(position, READ_BYTES)
            if not found:
                raise NotFound(
                    f"cannot compact topic {self._name}: the block at {position} was trimmed during the run"
                )
            for buffer in found:
                header = blocks.peek(buffer)
                yield [one for one in _placed(buffer, header) if position <= one[0] <= horizon]
                position = self._segments.next_position(Position(header.ledger_id, header.last_entry))


def _placed(buffer: Buffer, header: blocks.BlockHeader) -> _Chunk:
    """Return the entries of a block with their positions.

    Return an empty list for a blank block, which replaces a lost block.
    """
    if blocks.is_blank(header):
        return []
    counts = blocks.message_counts(buffer, header)
    return [
        (Position(header.ledger_id, entry_id), entry, count)
        for entry_id, (entry, count) in enumerate(
            zip(blocks.entries(buffer, header), counts, strict=True), header.first_entry
        )
    ]


def _note(last_of_key: LastOfKey, chunk: _Chunk) -> None:
    breathe = Breather()
    for _, entry, _ in chunk:
        last_of_key.note(entry, breathe)


def _retained(last_of_key: LastOfKey, chunk: _Chunk) -> list[tuple[Position, Buffer, int, int]]:
    """Return the retained entries of a chunk: (position, bytes, mask of retained messages, number of messages)."""
    found, breathe = [], Breather()
    for place, entry, count in chunk:
        retained = last_of_key.retained(entry, breathe)
        if retained is not None:
            found.append((place, *retained, count))
    return found


class Output:
    """Ledger writer for a compaction result; a `WriterListener`. End it with `finish` or `give_up`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._writer: LedgerWriter
        self._entries: list[bytes] = []
        self._counts: list[int] = []
        self._bytes = 0
        self._next_entry = 0
        self._extra = 0
        self._blocks: list[int] = []
        """Last entry of each unconfirmed block."""
        self._last_confirmed = -1
        self._confirmed = asyncio.Event()
        self._error: QuireError | None = None
        self._total_bytes = 0
        self._retained: dict[int, BitMap] = {}

    @classmethod
    async def begin(cls, topic: str, persistence: PersistencePolicy, services: Services) -> Output:
        output = cls(services)
        if full := services.ledgers.why_full(persistence):
            raise DiskFull(f"topic {topic} cannot be compacted now: {full}")
        output._writer = await services.ledgers.create(f"compacted:{topic}", output, persistence)
        return output

    def confirmed(self, last_entry: int) -> None:
        self._last_confirmed = last_entry
        self._blocks = [one for one in self._blocks if one > last_entry]
        self._confirmed.set()

    def failed(self, error: QuireError) -> None:
        self._error = error
        self._confirmed.set()

    def add(self, place: Position, entry: Buffer, left: int, count: int) -> None:
        """Append a retained entry.

        `left` is the mask that `LastOfKey.retained` returned, `count` the number of messages.
        """
        self._retained.setdefault(place.ledger_id, BitMap()).add(place.entry_id)
        mask = left.to_bytes((left.bit_length() + 7) // 8, "little")
        self._put(b"".join((PLACE.pack(*place, len(mask)), mask, entry)), count)

    def _put(self, entry: bytes, count: int) -> None:
        if self._bytes + len(entry) > BLOCK_BYTES_MAX or len(self._entries) >= BLOCK_ENTRIES_MAX:
            self._cut()
        self._entries.append(entry)
        self._counts.append(count)
        self._bytes += len(entry)

    def _cut(self) -> None:
        if not self._entries:
            return
        block = blocks.cut(
            self._writer.ledger_id,
            self._next_entry,
            self._last_confirmed,
            self._services.clock.now_ms(),
            self._extra,
            self._entries,
            self._counts,
        )
        self._next_entry += len(self._entries)
        self._extra += sum(self._counts) - len(self._counts)
        self._total_bytes += len(block)
        self._entries, self._counts, self._bytes = [], [], 0
        self._blocks.append(self._next_entry - 1)
        self._writer.add(block, self._next_entry - 1)

    async def room(self) -> None:
        """Wait while more than `BLOCKS_PENDING_MAX` blocks are unconfirmed. Raises the ledger writer's error."""
        while self._error is None and len(self._blocks) > BLOCKS_PENDING_MAX:
            self._confirmed.clear()
            await self._confirmed.wait()
        if self._error is not None:
            raise self._error
        await asyncio.sleep(0)  # yield to other tasks if there was nothing to wait for

    async def finish(
        self, last_entries: dict[int, int], horizon: Position, horizon_index: int, now_ms: int
    ) -> CompactedRecord:
        """Write the index, close the ledger and return the record of the result."""
        self._cut()
        entries, extra = self._next_entry, self._extra
        for ledger_id, last_entry in sorted(last_entries.items()):
            retained = self._retained.get(ledger_id, BitMap())
            self._put(INDEX.pack(ledger_id, last_entry) + retained.serialize(), 1)
        self._cut()
        await self._writer.close()
        return CompactedRecord(
            ledger_id=self._writer.ledger_id,
            horizon_ledger=horizon.ledger_id,
            horizon_entry=horizon.entry_id,
            horizon_index=horizon_index,
            entries=entries,
            extra_messages=extra,
            index_entries=self._next_entry - entries,
            bytes=self._total_bytes,
            finished_ms=now_ms,
        )

    def give_up(self) -> None:
        """Abandon and delete the ledger after an error."""
        self._writer.abandon()
        deletion = self._services.ledgers.delete(self._writer.ledger_id)
        self._services.tasks.start(deletion, f"delete unfinished compaction {self._writer.ledger_id}")
