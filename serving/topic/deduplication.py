"""The shell around `dedup`: what a topic does with SENDs that came before, and how it remembers them.

Fresh SENDs go on to the publisher; duplicates get receipts behind those of the originals, so that none promises what is
not durable yet. After `SNAPSHOT_ENTRIES` entries what was accepted is written to the bundle's state log, once all of it
is confirmed; a load reads that and replays the metadata of the entries behind it.
"""

from __future__ import annotations

from typing import Final, Protocol

from quire.runtime.clock import Clock
from quire.runtime.errors import NotFound
from quire.runtime.limits import NAME_CHARS_MAX
from quire.serving.ports import Position, ProducerPort, TopicPort
from quire.serving.topic.dedup import LAST, Deduplicator, Snapshot
from quire.serving.topic.publish import NO_ENTRY, Publisher
from quire.wire import block as blocks
from quire.wire.entry_frames import receipt_run
from quire.wire.frame import Send, SendRun
from quire.wire.message import Undecodable, read_metadata

REPLAY_BYTES: Final = 4 << 20
SNAPSHOT_ENTRIES: Final = 10_000
"""A snapshot is taken after so many entries: what a load has to replay at most, about."""


class DedupLog(Protocol):
    """Where snapshots of deduplication are kept: the bundle's state log."""

    def find(self, topic: str, generation: int) -> Snapshot: ...

    def put(self, topic: str, snapshot: Snapshot) -> None: ...

    def remove(self, topic: str) -> None: ...


class Remembered(TopicPort, Protocol):
    """The topic whose producers are remembered."""

    @property
    def generation(self) -> int: ...


class Deduplication:
    """See the top of the file. One topic's, while its policies ask for it."""

    def __init__(self, topic: Remembered, publisher: Publisher, log: DedupLog, clock: Clock) -> None:
        self._topic = topic
        self._publisher = publisher
        self._log = log
        self._clock = clock
        self._seen = Deduplicator()
        self._entries_since = 0
        """Entries that were written since the last snapshot."""

    def last_sequence_id(self, producer: str) -> int:
        """The highest that was accepted of this producer name; -1 for none."""
        return self._seen.last_sequence_id(producer)

    # -- what comes ------------------------------------------------------------------------------------

    def publish(self, producer: ProducerPort, run: SendRun) -> None:
        """Publish what is fresh of the run, and answer the rest."""
        now_ms = self._clock.now_ms()
        first, last = run.first_sequence_id, run.last_sequence_id
        if self._seen.admit_run(producer.name, first, last, len(run), now_ms):
            self._publisher.publish(producer, run.heads, run.entries, run.counts)
            return
        fresh = self._seen.admit_each(producer.name, run.sequence_ids(), now_ms)
        start = 0
        while start < len(fresh):
            end = start + 1
            while end < len(fresh) and fresh[end] == fresh[start]:
                end += 1
            if fresh[start]:
                some = run.counts[start:end] if run.counts else None
                self._publisher.publish(producer, run.heads[start:end], run.entries[start:end], some)
            else:
                self._answer(producer, run.heads[start:end])
            start = end

    def admits_chunk(self, producer: ProducerPort, send: Send) -> bool:
        """Whether this SEND of a chunked message is fresh; if not, it is answered."""
        metadata, _ = read_metadata(send.entry)
        is_last = metadata.chunk_id + 1 >= metadata.num_chunks_from_msg
        chunk = LAST if is_last else metadata.chunk_id
        numbers = send.sequence_id, send.highest_sequence_id
        if self._seen.admit(producer.name, *numbers, self._clock.now_ms(), chunk):
            return True
        self._answer(producer, [send.head])
        return False

    def _answer(self, producer: ProducerPort, heads: list[bytes]) -> None:
        """Receipts of duplicates, behind those of the originals."""
        receipts = b"".join(receipt_run(NO_ENTRY, NO_ENTRY, [head])[0] for head in heads)
        self._publisher.when_answered(lambda: producer.write(receipts))

    # -- what is remembered ----------------------------------------------------------------------------

    def written(self, entries: int) -> None:
        """So many more are confirmed."""
        self._entries_since += entries
        if self._entries_since >= SNAPSHOT_ENTRIES:
            self.snapshot()

    def snapshot(self) -> None:
        """Write down what was accepted, as soon as all of it is confirmed; see `dedup`."""
        self._entries_since = 0
        topic = self._topic
        seen = self._seen.capture(self._clock.now_ms())
        snapshot = Snapshot(topic.generation, topic.last_confirmed, seen)
        self._publisher.when_answered(lambda: self._log.put(topic.name, snapshot))

    async def replay(self) -> None:
        """Learn from the entries behind the last snapshot what producers sent. Raises `NotFound` when some are gone."""
        topic = self._topic
        known = self._log.find(topic.name, topic.generation)
        self._seen = Deduplicator(known.seen)
        position = max(topic.next_position(known.position), topic.first_position())
        while position <= topic.last_confirmed:
            found = await topic.read(position, REPLAY_BYTES)
            for block in found:
                header = blocks.peek(block)
                for entry in blocks.entries(block, header):
                    _learn(self._seen, entry, header.clock_ms)
                position = topic.next_position(Position(header.ledger_id, header.last_entry))
            if not found:
                raise NotFound(
                    f"topic {topic.name} has no block at {position}, so duplicates cannot be known"
                )


def _learn(dedup: Deduplicator, entry: memoryview, clock_ms: int) -> None:
    """What no client of ours can have made, whose metadata nobody looked at, is nobody's duplicate."""
    try:
        metadata, _ = read_metadata(entry)
    except Undecodable:
        return
    if len(metadata.producer_name) > NAME_CHARS_MAX:
        return
    high = max(metadata.sequence_id, metadata.highest_sequence_id)
    chunk = LAST
    if metadata.HasField("chunk_id") and metadata.chunk_id + 1 < metadata.num_chunks_from_msg:
        chunk = metadata.chunk_id
    dedup.admit(metadata.producer_name, metadata.sequence_id, high, clock_ms, chunk)
