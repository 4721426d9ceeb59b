"""The shell around `dedup`: what a topic does with SENDs that came before, and how it remembers them.

Fresh SENDs go on to the publisher; duplicates get receipts behind those of the originals, so that none promises what is
not durable yet. A foreign entry, which no stock client sends, is refused with ChecksumError: the one answer upon which
C++ clients give up the message and go on. After `SNAPSHOT_ENTRIES` entries what was accepted is written to the bundle's
state log, once all of it is confirmed; a load reads that and replays the metadata of the entries after it, however
old they are: producers are forgotten only by a snapshot, so one that comes back when its broker was down for a night
is told where it stopped.

A topic without a snapshot is new, or deduplication was switched on a moment ago. Then what is here already is nobody's
duplicate, and a snapshot that says so is durable before the first message is taken. Switched off, it is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Final, Protocol

from quire.runtime.clock import Clock
from quire.runtime.errors import NotFound
from quire.serving.model.ports import Position
from quire.serving.topic.dedup import Deduplicator, Seen, Snapshot, Verdict, numbers_of
from quire.serving.topic.producers import ProducerPort
from quire.serving.topic.publish import Publisher
from quire.serving.topic.reading import TopicReader
from quire.serving.topic.runs import PublishRun
from quire.serving.topic.segments import Segments
from quire.wire import block as blocks
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.entry_frames import ledger_field, receipt
from quire.wire.frame import Send

NO_ENTRY: Final = 2**64 - 1
"""Ledger and entry of the receipt of a duplicate: it has no place of its own. Clients read it as -1."""

REPLAY_BYTES: Final = 4 << 20
SNAPSHOT_ENTRIES: Final = 10_000
"""A snapshot is taken after so many entries: what a load has to replay at most, about."""


class DedupLog(Protocol):
    """Where snapshots of deduplication are kept: the bundle's state log, which the room `cluster` has."""

    def find(self, topic: str, generation: int) -> Snapshot | None: ...

    async def save(self, topic: str, snapshot: Snapshot) -> None:
        """As `put`; durable when it returns."""
        ...

    def put(self, topic: str, snapshot: Snapshot) -> None: ...

    async def remove(self, topic: str) -> None:
        """Durable when it returns."""
        ...


class Deduplication:
    """One topic's, while its policies ask for it."""

    def __init__(
        self,
        name: str,
        segments: Segments,
        reader: TopicReader,
        publisher: Publisher,
        log: DedupLog,
        clock: Clock,
    ) -> None:
        self._name = name
        self._segments = segments
        self._reader = reader
        self._publisher = publisher
        self._log = log
        self._clock = clock
        self._seen = Deduplicator()
        self._entries_since = 0
        """Entries that were written since the last snapshot."""

    def move_to(self, log: DedupLog) -> None:
        """Another bundle has the topic's snapshots from now on."""
        self._log = log

    def last_sequence_id(self, producer: str) -> int:
        """The highest that was accepted of this producer name; -1 for none."""
        return self._seen.last_sequence_id(producer)

    # -- what comes ------------------------------------------------------------------------------------

    def publish(self, producer: ProducerPort, run: PublishRun) -> None:
        """Publish what is fresh of the run, and answer the rest, in order."""
        verdicts = self._admit(producer, run.entries)
        if verdicts.count(Verdict.FRESH) == len(run):
            self._publisher.publish(producer, run)
            return
        stop = 0
        for verdict, alike in groupby(verdicts):
            start, stop = stop, stop + len(list(alike))
            if verdict is Verdict.FRESH:
                self._publisher.publish(producer, run.pick(range(start, stop)))
            else:
                self._answer(producer, verdict, run.heads[start:stop])

    def admits_chunk(self, producer: ProducerPort, send: Send) -> bool:
        """Whether this SEND of a chunked message is fresh; if not, it is answered."""
        [verdict] = self._admit(producer, [send.entry])
        if verdict is Verdict.FRESH:
            return True
        self._answer(producer, verdict, [send.head])
        return False

    def _admit(self, producer: ProducerPort, entries: Sequence[bytes]) -> list[Verdict]:
        return self._seen.admit(producer.name, map(numbers_of, entries), self._clock.now_ms())

    def _answer(self, producer: ProducerPort, verdict: Verdict, heads: list[bytes]) -> None:
        """Receipts of duplicates, refusals of what is foreign; after the answers to what came before."""
        if verdict is Verdict.DUPLICATE:
            answers = [receipt(ledger_field(NO_ENTRY), NO_ENTRY, head) for head in heads]
        else:
            text = (
                f"an entry of producer {producer.name} names another one, or none that can be remembered: "
                f"topic {self._name} deduplicates and does not take it"
            )
            answers = [commands.send_error_of(head, pb.ChecksumError, text) for head in heads]
        written = b"".join(answers)
        self._publisher.when_answered(lambda: producer.write(written))

    # -- what is remembered ----------------------------------------------------------------------------

    def written(self, entries: int) -> None:
        """So many more are confirmed."""
        self._entries_since += entries
        if self._entries_since >= SNAPSHOT_ENTRIES:
            self.snapshot()

    def snapshot(self) -> None:
        """Write down what was accepted, as soon as all of it is confirmed; see `dedup`."""
        self._entries_since = 0
        snapshot = self._with_position(self._seen.capture(self._clock.now_ms()))
        self._publisher.when_answered(lambda: self._log.put(self._name, snapshot))

    def _with_position(self, seen: dict[str, Seen]) -> Snapshot:
        return Snapshot(self._segments.record.generation, self._segments.last_position(), seen)

    async def begin(self) -> None:
        """Know what producers sent: see the top of the file. Raises `NotFound` when some of it is gone."""
        segments = self._segments
        known = self._log.find(self._name, segments.record.generation)
        if known is None:
            await self._log.save(self._name, self._with_position({}))
            return
        self._seen = Deduplicator(known.seen)
        first = max(segments.next_position(known.position), segments.first_position())
        if first <= segments.last_position():
            await self._replay(first)

    async def _replay(self, position: Position) -> None:
        segments = self._segments
        while position <= segments.last_position():
            found = await self._reader.read(position, REPLAY_BYTES)
            for block in found:
                header = blocks.peek(block)
                for entry in blocks.entries(block, header):
                    self._seen.learn(entry, header.clock_ms)
                position = segments.next_position(Position(header.ledger_id, header.last_entry))
                await asyncio.sleep(0)
            if not found:
                raise NotFound(
                    f"topic {self._name} has no block at {position}, so duplicates cannot be known"
                )
