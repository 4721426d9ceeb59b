"""Compacting a topic: run once at a time, by request or when enough was published since the last one.

    what is read    the result of the last compaction, then the topic behind its horizon up to what is confirmed now
    first pass      which message is the last of its key (`compacting`)
    second pass     what is retained goes into a new ledger, with an index behind it (`compacted`)
    then            the ledger is closed; the topic's record names it, by version; readers of compacted data are sent
                    away and come back to it; the former result is deleted

So a compaction never reads what an earlier one has dropped, and the last value of a key stays although retention has
trimmed the segment that it was published to. Until the record is written nothing has happened: a crash leaves a ledger
that nobody lists, which `quire bookies orphans` finds. Trimming waits for compaction (`keeps`), once there was one or a
threshold says that there will be.

What looks into entries runs on a helper thread, a chunk at a time: the bytes are a client's, and a few of them may mean
a million messages. `compacting` says how many it cares for. It rests three quarters of the time (`Breather`).
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
"""What a helper thread looks through at a time."""

_log = logging.getLogger(__name__)

_Chunk = Sequence[tuple[Position, Buffer, int]]
"""Entries of the topic: where each is, its bytes, its number of messages."""


class Status(StrEnum):
    """Pulsar's words."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class Compaction:
    """One for each log."""

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

    # -- asking ----------------------------------------------------------------------------------------

    @property
    def record(self) -> CompactedRecord | None:
        """The last result."""
        return self._segments.record.compacted

    @property
    def horizon(self) -> Position:
        """The last entry that a compaction has read."""
        record = self.record
        return EARLIEST if record is None else Position(record.horizon_ledger, record.horizon_entry)

    @property
    def keeps(self) -> Position | None:
        """What trimming must not go beyond; None when nothing is compacted."""
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
        """The topic for readers of compacted data; None when it was never compacted, and they read the topic."""
        if self._loading is None:
            self._loading = asyncio.Lock()
        async with self._loading:
            record = self.record
            if record is None:
                return None
            loaded = self._loaded
            # Replaced while it was being loaded, it is being deleted, and nobody would send its readers away again.
            while loaded is None or loaded.record != self.record:
                loaded = self._loaded = await load(self._services.ledgers, self.record or record)
            return CompactedView(topic, loaded)

    # -- running ---------------------------------------------------------------------------------------

    def start(self, subscriptions: SubscriptionsPort) -> asyncio.Task[None]:
        """Begin one in the background; `subscriptions` are told of its result.

        Raises `AlreadyExists` while one is running.
        """
        if self._running is not None:
            raise AlreadyExists(f"topic {self._name} is being compacted; ask for its status")
        self.error = ""
        self._running = self._services.tasks.start(self._run(subscriptions), f"compact {self._name}")
        self._running.add_done_callback(self._ended)
        return self._running

    def stop(self) -> None:
        """The topic is closed."""
        if self._running is not None:
            self._running.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if task.cancelled():
            self.error = "the topic was closed meanwhile"
        elif task.exception() is not None:
            self.error = str(task.exception())

    async def _run(self, subscriptions: SubscriptionsPort) -> None:
        services = self._services
        horizon, index = self._segments.last_position(), self._segments.next_index()
        if horizon.entry_id < 0 or horizon <= self.horizon:
            return
        former = None if self.record is None else await load(services.ledgers, self.record)
        made = await self._write(former, horizon, index)
        # From here on the record may name the ledger, whatever we hear of it; and half a change is none.
        work = self._record(made, former, subscriptions)
        recording = services.tasks.start(work, f"record a compaction of {self._name}")
        await asyncio.shield(recording)

    async def _record(
        self, made: CompactedRecord, former: Compacted | None, subscriptions: SubscriptionsPort
    ) -> None:
        """Carried through, also when the topic is closed meanwhile: nobody else would delete the former result."""
        services = self._services
        await self._meta_store.update(lambda record: replace(record, compacted=made))
        _log.info("%s: compacted to %d entries, %d bytes", self._name, made.entries, made.bytes)
        subscriptions.compacted()
        if former is not None:
            deletion = services.ledgers.delete(former.record.ledger_id)
            services.tasks.start(deletion, "delete a former compaction")

    async def _write(self, former: Compacted | None, horizon: Position, index: int) -> CompactedRecord:
        """Make the result, in a ledger that nobody lists yet."""
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
        """Of each ledger up to the horizon, the last entry that was read."""
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
        """What there is to compact, in the topic's order: the former result, then the topic from `first` on.

        The same each time it is asked, for the passes count its messages: what was trimmed meanwhile is an error.
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
                raise NotFound(f"topic {self._name} has no block at {position}: it was trimmed meanwhile")
            for buffer in found:
                header = blocks.peek(buffer)
                yield [one for one in _placed(buffer, header) if position <= one[0] <= horizon]
                position = self._segments.next_position(Position(header.ledger_id, header.last_entry))


def _placed(buffer: Buffer, header: blocks.BlockHeader) -> _Chunk:
    """The entries of a block; none where they were lost and given up."""
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
    """What is left of the chunk: its place, its bytes, the messages that are left, and how many there were."""
    found, breathe = [], Breather()
    for place, entry, count in chunk:
        retained = last_of_key.retained(entry, breathe)
        if retained is not None:
            found.append((place, *retained, count))
    return found


class Output:
    """The ledger that a compaction writes; a `WriterListener`. Give `finish` or `give_up` its end."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._writer: LedgerWriter
        self._entries: list[bytes] = []
        self._counts: list[int] = []
        self._bytes = 0
        self._next_entry = 0
        self._extra = 0
        self._blocks: list[int] = []
        """Last entries of the blocks that are not confirmed."""
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
        """One retained entry, behind those before it; `left`: see `LastOfKey.retained`."""
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
        """Wait while much is not confirmed. Raises what the ledger failed with."""
        while self._error is None and len(self._blocks) > BLOCKS_PENDING_MAX:
            self._confirmed.clear()
            await self._confirmed.wait()
        if self._error is not None:
            raise self._error
        await asyncio.sleep(0)  # others' turn, if nothing had to be waited for

    async def finish(
        self, last_entries: dict[int, int], horizon: Position, horizon_index: int, now_ms: int
    ) -> CompactedRecord:
        """Write the index and close the ledger."""
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
        """Nobody will read it."""
        self._writer.abandon()
        deletion = self._services.ledgers.delete(self._writer.ledger_id)
        self._services.tasks.start(deletion, f"delete unfinished compaction {self._writer.ledger_id}")
