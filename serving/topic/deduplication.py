"""Shell of `dedup` in a topic: answers duplicates, and writes snapshots.

Fresh SENDs go to the publisher. A duplicate gets its receipt after the original's receipt, because a receipt must not
precede durability. Foreign entries, which unmodified clients never send, and overlapping batches are rejected with
ChecksumError, because it is the only error after which C++ clients drop the message and continue.

After `SNAPSHOT_ENTRIES` entries, or the interval in the topic's policies (`lifecycle/upkeep`), the broker writes a
snapshot to the bundle's state log, once all accepted entries are confirmed. A load reads it, and replays the metadata
of all later entries, however old they are. Producers are forgotten only when a snapshot is taken, so a producer that
returns after a long outage of its broker still gets its last sequence id.

Entries after the last durable snapshot (`keeps`) are the only record of their producers' sequence ids, so retention
does not trim them. If they alone prevent the trimming of a segment, trimming requests a snapshot (`snapshot_up_to`).

A topic without a snapshot is new, or deduplication was just enabled. In both cases no stored entry counts as an
original. An empty snapshot is made durable before the first message is accepted. The snapshot is removed when
deduplication is disabled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Final, Protocol

from quire.runtime.clock import Clock
from quire.runtime.errors import NotFound, QuireError, Unavailable
from quire.runtime.tasks import promise
from quire.serving.model.ports import EARLIEST, Position
from quire.serving.model.request import Done
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
"""Ledger id and entry id in the receipt of a duplicate, which has no position. Clients read them as -1."""

REPLAY_BYTES: Final = 4 << 20
SNAPSHOT_ENTRIES: Final = 10_000
"""Number of entries between two snapshots: a load replays at most about as many."""


class DedupLog(Protocol):
    """Port to the deduplication snapshots in the bundle's state log, which `serving/registry` owns."""

    def find(self, topic: str, generation: int) -> Snapshot | None: ...

    async def save(self, topic: str, snapshot: Snapshot) -> None:
        """Append a snapshot, and wait until it is durable."""
        ...

    def put(self, topic: str, snapshot: Snapshot, done: Done) -> None:
        """Append a snapshot; call `done(None)` when it is durable, `done(error)` if the outcome is unknown."""
        ...

    async def remove(self, topic: str) -> None:
        """Remove a topic's snapshot, and wait until the removal is durable."""
        ...


class Deduplication:
    """Deduplication of one topic, as long as its policies enable it."""

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
        """Entries written since the last snapshot."""
        self._taken = EARLIEST
        """Position of the latest snapshot, durable or not."""
        self._taken_s = clock.monotonic()
        """Monotonic time, in seconds, of the latest snapshot; initially the time of the topic's load."""
        self.keeps = EARLIEST
        """Position of the latest durable snapshot: a load replays the entries after it."""

    def move_to(self, log: DedupLog) -> None:
        """Use `log`, the state log of another bundle, from now on, because the topic moved to that bundle."""
        self._log = log

    def last_sequence_id(self, producer: str) -> int:
        """Return the highest accepted sequence id of a producer name; -1 if there is none."""
        return self._seen.last_sequence_id(producer)

    # -- publishing ------------------------------------------------------------------------------------

    def publish(self, producer: ProducerPort, run: PublishRun) -> None:
        """Publish the fresh entries of the run, and answer the others, in order."""
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
        """Return whether this SEND of a chunked message is fresh; if it is not, send its answer."""
        [verdict] = self._admit(producer, [send.entry])
        if verdict is Verdict.FRESH:
            return True
        self._answer(producer, verdict, [send.head])
        return False

    def _admit(self, producer: ProducerPort, entries: Sequence[bytes]) -> list[Verdict]:
        return self._seen.admit(producer.name, map(numbers_of, entries), self._clock.now_ms())

    def _answer(self, producer: ProducerPort, verdict: Verdict, heads: list[bytes]) -> None:
        """Send receipts of duplicates, or rejections, after the answers to earlier SENDs."""
        if verdict is Verdict.DUPLICATE:
            answers = [receipt(ledger_field(NO_ENTRY), NO_ENTRY, head) for head in heads]
        else:
            text = self._why_refused(verdict, producer.name)
            answers = [commands.send_error_of(head, pb.ChecksumError, text) for head in heads]
        written = b"".join(answers)
        self._publisher.when_answered(lambda: producer.write(written))

    def _why_refused(self, verdict: Verdict, producer: str) -> str:
        if verdict is Verdict.OVERLAPPING:
            return (
                f"a batch of producer {producer} starts at or before sequence id "
                f"{self.last_sequence_id(producer)}, which topic {self._name} already stores, and ends after it: "
                "send the later messages in a separate batch"
            )
        return (
            f"an entry of producer {producer} names another producer, or has an invalid sequence id: "
            f"topic {self._name} deduplicates messages and rejects the entry"
        )

    # -- snapshots -------------------------------------------------------------------------------------

    def written(self, entries: int) -> None:
        """Count newly confirmed entries, and take a snapshot after every `SNAPSHOT_ENTRIES`."""
        self._entries_since += entries
        if self._entries_since >= SNAPSHOT_ENTRIES:
            self.snapshot()

    def snapshot(self, done: Done = lambda _: None) -> None:
        """Take a snapshot, and write it after all accepted entries are confirmed; see `dedup`.

        `done` is called when the snapshot is durable, or with the error.
        """
        self._entries_since, self._taken_s = 0, self._clock.monotonic()
        snapshot = self._with_position(self._seen.capture(self._clock.now_ms()))
        self._taken = snapshot.position

        def durable(error: QuireError | None) -> None:
            if error is None:
                self.keeps = max(self.keeps, snapshot.position)
            done(error)

        self._publisher.when_answered(lambda: self._log.put(self._name, snapshot, durable))

    def snapshot_if_older(self, age_s: float) -> None:
        """Take a snapshot if the latest one is older than `age_s`, unless it includes all confirmed entries."""
        if self._clock.monotonic() - self._taken_s >= age_s:
            self.snapshot_up_to(self._segments.last_position())

    def snapshot_up_to(self, position: Position) -> None:
        """Take a snapshot that includes the confirmed entries up to `position`, unless the latest one already does."""
        if self._taken < position:
            self.snapshot()

    async def save_snapshot(self) -> None:
        """Take a snapshot and wait until it is durable. Raises `Unavailable` if the topic is closed before."""
        saved, done = promise()
        self.snapshot(done)
        if not await self._publisher.flushed():
            raise Unavailable(f"topic {self._name} was closed before its deduplication snapshot was written")
        await saved

    def _with_position(self, seen: dict[str, Seen]) -> Snapshot:
        return Snapshot(self._segments.record.generation, self._segments.last_position(), seen)

    async def begin(self) -> None:
        """Load the snapshot and replay the entries after it. Raises `NotFound` if some of these were trimmed."""
        segments = self._segments
        known = self._log.find(self._name, segments.record.generation)
        if known is None:
            known = self._with_position({})
            await self._log.save(self._name, known)
            self._taken = self.keeps = known.position
            return
        self._taken = self.keeps = known.position
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
                    f"cannot detect duplicates in topic {self._name}: its block at {position} does not exist"
                )
