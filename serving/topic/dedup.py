"""Deduplication of producers' messages by sequence id, as in Pulsar ([PIP-6]).

**Duplicates.** The broker keeps the highest accepted sequence id of each producer name. A SEND at or below it is a
duplicate: it gets a receipt, and is not stored. A batch that begins at or below it and ends above it *overlaps*, and is
rejected: storing it would duplicate messages, acknowledging it would lose some. A client that knows the last sequence
id does not send such batches.

**Batches** contain the ids from `low` to `highest_sequence_id`. Batches of C++ clients, and of clients built on them,
do not have that field. These clients use one id per message, so the broker counts messages.

**Identity.** Producer name and sequence id are read from an entry's metadata (`numbers_of`), both on arrival and in a
replay, so that both have the same result. An entry is *foreign*, and rejected, if it names another producer than its
PRODUCER command, or if its producer name or sequence id exceeds the limits of a snapshot.

**Chunks.** A chunked message is several SENDs with one sequence id, so SENDs are compared by a pair: (sequence id,
chunk number). A message that is not chunked, and the last chunk of a chunked message, have the chunk number LAST. If a
producer sends a chunked message again, only missing chunks are stored, because C++ consumers drop a message if they
receive one of its chunks twice. The last sequence id includes a chunked message only after its last chunk was accepted.

**Restart.** A *snapshot* in the bundle's state log contains the last pair of each producer, and a confirmed position of
the topic. A load reads the snapshot, and replays the metadata of later entries. A snapshot is written only after all
accepted entries are confirmed: an entry that was lost with the broker must not count as accepted, or its resend would
be dropped. The replay of an entry that the snapshot includes has no effect.

    offset size  a record of the state log
         0    1  "D"
         1    1  version          1
         2    1  part             0 begins a topic's snapshot (and replaces the former one), 1 continues it
         3    1  removed          1: topic deleted, or deduplication disabled; the record ends after the position
         4    2  topic bytes      t
         6    t  topic            its full name, UTF-8
       6+t    8  generation
      14+t    8  ledger           signed: position up to which the snapshot is complete; the earliest position
      22+t    8  entry            before the last record, so that a partial snapshot, after a crash, has no effect
      30+t    4  producers        p, then p times:
                 2  name bytes    n
                 n  name          UTF-8
                 8  sequence id   signed
                 4  chunk
                 8  active        time of the producer's last SEND, wall clock in ms

All integers are big-endian. A record that cannot be parsed is damaged, and raises `CorruptionError`. This file performs
no I/O.

[PIP-6]: https://github.com/apache/pulsar/wiki/PIP-6:-Guaranteed-Message-Deduplication
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from quire.runtime.errors import CorruptionError
from quire.runtime.limits import (
    DEDUPLICATION_PRODUCERS_MAX,
    METADATA_LOOKED_INTO_BYTES_MAX,
    NAME_CHARS_MAX,
)
from quire.serving.model.ports import EARLIEST, Position
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer

KIND: Final = b"D"
LAST: Final = 2**31 - 1
"""Chunk number of a message that is not chunked, and of the last chunk of a chunked one."""

INACTIVE_MS_MAX: Final = 6 * 3_600_000
"""Inactivity, in ms, after which a producer is dropped from snapshots, as in Pulsar.

Otherwise, generated names would accumulate.
"""

NEWEST_KEPT: Final = 100
"""Number of producers that are kept even if inactive, because after a jump of the clock all producers seem inactive."""

PRODUCERS_PER_RECORD: Final = 400
"""Maximum number of producers in one record, which fits into the state log even if all names have the maximum length.
"""

SEQUENCE_ID_MAX: Final = 2**63 - 1
"""Largest sequence id: clients and snapshots store it as a signed 64-bit integer."""

_VERSION: Final = 1
_METADATA: Final = Struct(">6xI")
_parse: Final = pb.MessageMetadata.FromString
_SINGLE: Final = Struct(">I")
_parse_single: Final = pb.SingleMessageMetadata.FromString
_OPENING: Final = Struct(">cBBBH")
_WHERE: Final = Struct(">Qqq")
_COUNT: Final = Struct(">I")
_NAME: Final = Struct(">H")
_SEEN: Final = Struct(">qIQ")


class Numbers(NamedTuple):
    """Producer name and sequence ids (`low` to `high`) of an entry; `chunk` is its chunk number, or `LAST`."""

    producer_name: str
    low: int
    high: int
    chunk: int


def numbers_of(entry: Buffer) -> Numbers | None:
    """Return the producer name and sequence ids of an entry, from its metadata.

    Return None if the metadata are unreadable, or if name or sequence ids exceed their limits.
    """
    try:
        (size,) = _METADATA.unpack_from(entry)
        if size > METADATA_LOOKED_INTO_BYTES_MAX:
            return None
        metadata = _parse(bytes(entry[10 : 10 + size]))
    except (StructError, DecodeError):
        return None
    name: str | bytes = metadata.producer_name  # the parser returns text that is not UTF-8 as bytes
    low = metadata.sequence_id
    if metadata.HasField("highest_sequence_id"):
        high = max(low, metadata.highest_sequence_id)
    else:
        high = low + _counted(metadata, memoryview(entry)[10 + size :]) - 1
    if not isinstance(name, str) or len(name) > NAME_CHARS_MAX or high > SEQUENCE_ID_MAX:
        return None
    chunk = LAST
    if metadata.HasField("chunk_id") and 0 <= metadata.chunk_id < metadata.num_chunks_from_msg - 1:
        chunk = metadata.chunk_id
    return Numbers(name, low, high, chunk)


def _counted(metadata: pb.MessageMetadata, payload: memoryview) -> int:
    """Return the number of sequence ids in a batch without `highest_sequence_id`.

    Return 1 if the second message's id is not greater than the first message's. C++ clients replace a user-chosen id 0
    by their own next id, which is then greater than the ids that the user chose later. If all messages of such a batch
    were counted, the following messages would seem to be duplicates.
    """
    count = metadata.num_messages_in_batch
    if count <= 1:
        return 1
    if metadata.compression == pb.NONE and not metadata.encryption_keys:
        second = _second_number(payload)
        if second is not None and second <= metadata.sequence_id:
            return 1
    return int(count)


def _second_number(payload: memoryview) -> int | None:
    """Return the sequence id of a batch's second message; None if there is none or it cannot be parsed."""
    try:
        (size,) = _SINGLE.unpack_from(payload)
        first = _parse_single(bytes(payload[4 : 4 + min(size, METADATA_LOOKED_INTO_BYTES_MAX)]))
        at = 4 + size + max(first.payload_size, 0)
        (size,) = _SINGLE.unpack_from(payload, at)
        second = _parse_single(bytes(payload[at + 4 : at + 4 + min(size, METADATA_LOOKED_INTO_BYTES_MAX)]))
    except (StructError, DecodeError):
        return None
    return second.sequence_id if second.HasField("sequence_id") else None


class Verdict(Enum):
    """Result of deduplication for a SEND."""

    FRESH = "published"
    DUPLICATE = "acknowledged: already stored"
    FOREIGN = "rejected: its producer name is not the session's, or its sequence id is out of range"
    OVERLAPPING = "rejected: some messages of the batch are already stored, others are not"


class Seen(NamedTuple):
    """Last accepted SEND of a producer: sequence id, chunk, and wall-clock time in ms."""

    sequence_id: int
    chunk: int
    active_ms: int


NEVER: Final = Seen(-1, LAST, 0)


class Deduplicator:
    """Last accepted SEND of each producer of one topic."""

    def __init__(self, known: dict[str, Seen] | None = None) -> None:
        self._seen = dict(known or {})

    def last_sequence_id(self, producer: str) -> int:
        """Return the highest sequence id of a completely accepted message; -1 if there is none."""
        seen = self._seen.get(producer, NEVER)
        return seen.sequence_id if seen.chunk == LAST else seen.sequence_id - 1

    def admit(self, producer: str, sent: Iterable[Numbers | None], now_ms: int) -> list[Verdict]:
        """Return a verdict for each entry that `producer` sent, in order, and mark the fresh entries as accepted."""
        seen = self._seen.get(producer, NEVER)
        verdicts = []
        for numbers in sent:
            if numbers is None or numbers.producer_name != producer:
                verdicts.append(Verdict.FOREIGN)
            elif (numbers.low, numbers.chunk) <= seen[:2]:
                is_here = (numbers.high, numbers.chunk) <= seen[:2]
                verdicts.append(Verdict.DUPLICATE if is_here else Verdict.OVERLAPPING)
            else:
                seen = Seen(numbers.high, numbers.chunk, now_ms)
                verdicts.append(Verdict.FRESH)
        if seen is not NEVER:
            self._seen[producer] = seen
        return verdicts

    def learn(self, entry: Buffer, clock_ms: int) -> None:
        """Mark a stored entry, which was written at `clock_ms`, as accepted. The replay during a load calls this."""
        numbers = numbers_of(entry)
        if numbers is not None:
            name, _, high, chunk = numbers
            self._seen[name] = max(self._seen.get(name, NEVER), Seen(high, chunk, clock_ms))

    def capture(self, now_ms: int) -> dict[str, Seen]:
        """Remove old producers, then return a copy of the state for a snapshot.

        Producers that were inactive for `INACTIVE_MS_MAX` are removed, except the newest `NEWEST_KEPT`. If more than
        `DEDUPLICATION_PRODUCERS_MAX` remain, the oldest are removed.
        """
        if len(self._seen) > NEWEST_KEPT:
            oldest = now_ms - INACTIVE_MS_MAX
            by_age = sorted(self._seen.items(), key=lambda one: one[1].active_ms)
            active = [one for one in by_age[:-NEWEST_KEPT] if one[1].active_ms >= oldest]
            self._seen = dict([*active, *by_age[-NEWEST_KEPT:]][-DEDUPLICATION_PRODUCERS_MAX:])
        return dict(self._seen)


class Snapshot(NamedTuple):
    """Deduplication snapshot of one topic."""

    generation: int
    position: Position
    seen: dict[str, Seen]


class DedupStore:
    """Deduplication snapshots of all topics of one bundle, as stored in the bundle's state log."""

    def __init__(self) -> None:
        self._snapshots: dict[str, Snapshot] = {}
        self._prepared: dict[str, tuple[Snapshot, list[bytes]]] = {}
        """Records encoded in advance for the next snapshot of the state log, by topic."""

    def find(self, topic: str, generation: int) -> Snapshot | None:
        """Return the snapshot of the topic's incarnation `generation`, if there is one."""
        found = self._snapshots.get(topic)
        return found if found is not None and found.generation == generation else None

    def put(self, topic: str, snapshot: Snapshot) -> Iterator[bytes]:
        """Keep `snapshot`; return the records to append to the state log."""
        self._snapshots[topic] = snapshot
        return encode(topic, snapshot)

    def remove(self, topic: str) -> bytes | None:
        """Forget a topic; return the record to append to the state log, or None if the topic was unknown."""
        found = self._snapshots.pop(topic, None)
        return None if found is None else _opening(topic, found.generation, EARLIEST, 0, removed=True)

    def apply(self, record: bytes) -> None:
        """Apply one record of the state log. Raises `CorruptionError`."""
        try:
            self._apply(record)
        except (StructError, UnicodeDecodeError, KeyError):
            raise CorruptionError("a deduplication record of the state log is damaged") from None

    def _apply(self, record: bytes) -> None:
        _, version, part, removed, name_bytes = _OPENING.unpack_from(record)
        if version != _VERSION:
            raise CorruptionError(
                f"unsupported deduplication record version {version}; this broker reads version {_VERSION}"
            )
        at = _OPENING.size + name_bytes
        topic = record[_OPENING.size : at].decode()
        if removed:
            self._snapshots.pop(topic, None)
            return
        generation, ledger_id, entry_id = _WHERE.unpack_from(record, at)
        if part and topic not in self._snapshots:
            return  # the record's first part was lost, and an operator gave it up
        seen = _read_producers(record, at + _WHERE.size)
        before = self._snapshots[topic].seen if part else {}
        self._snapshots[topic] = Snapshot(generation, Position(ledger_id, entry_id), {**before, **seen})

    def give(self, other: DedupStore, is_given: Callable[[str], bool]) -> None:
        """Move the snapshots of the topics for which `is_given` returns True to `other`."""
        for topic in [topic for topic in self._snapshots if is_given(topic)]:
            other._snapshots[topic] = self._snapshots.pop(topic)
            if topic in self._prepared:
                other._prepared[topic] = self._prepared.pop(topic)

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Forget the snapshots of all topics for which `is_kept` returns False."""
        self._snapshots = {topic: one for topic, one in self._snapshots.items() if is_kept(topic)}

    def prepare(self) -> Iterator[None]:
        """Encode the records for `snapshot` in small steps, so that the caller can yield to the event loop."""
        self._prepared = {}
        for topic, snapshot in list(self._snapshots.items()):
            records = []
            for record in encode(topic, snapshot):
                records.append(record)
                yield
            self._prepared[topic] = snapshot, records

    def snapshot(self) -> Iterator[bytes]:
        """Yield records from which `apply` restores this state."""
        prepared, self._prepared = self._prepared, {}
        for topic, snapshot in self._snapshots.items():
            of, records = prepared.get(topic, (None, []))
            yield from records if of is snapshot else encode(topic, snapshot)


def encode(topic: str, snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the state log records of one snapshot, at least one."""
    items = list(snapshot.seen.items())
    for start in range(0, max(1, len(items)), PRODUCERS_PER_RECORD):
        chosen = items[start : start + PRODUCERS_PER_RECORD]
        is_last = start + PRODUCERS_PER_RECORD >= len(items)
        position = snapshot.position if is_last else EARLIEST
        opening = _opening(topic, snapshot.generation, position, int(start > 0))
        yield b"".join([opening, _COUNT.pack(len(chosen)), *_producers(chosen)])


def _opening(topic: str, generation: int, position: Position, part: int, *, removed: bool = False) -> bytes:
    name = topic.encode()
    return _OPENING.pack(KIND, _VERSION, part, removed, len(name)) + name + _WHERE.pack(generation, *position)


def _producers(items: Iterable[tuple[str, Seen]]) -> Iterator[bytes]:
    for name, seen in items:
        raw = name.encode()
        yield _NAME.pack(len(raw)) + raw + _SEEN.pack(*seen)


def _read_producers(record: bytes, at: int) -> dict[str, Seen]:
    (count,) = _COUNT.unpack_from(record, at)
    at += _COUNT.size
    seen: dict[str, Seen] = {}
    for _ in range(count):
        start = at + _NAME.size
        end = start + _NAME.unpack_from(record, at)[0]
        seen[record[start:end].decode()] = Seen._make(_SEEN.unpack_from(record, end))
        at = end + _SEEN.size
    return seen
