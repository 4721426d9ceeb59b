"""Deduplication: what a producer sends twice is answered twice and written once. No I/O.

For each producer name we know the highest sequence id that was accepted. A SEND at or below it is a duplicate.
Whose an entry is, and its number, is what its metadata say (`numbers_of`), when it comes as when it is replayed: so
nobody can put an entry into the log that is taken for something else when the topic is loaded again. An entry that
names another producer than its PRODUCER did, or has no number that can be kept, is foreign, and not for this log.

A chunked message is several SENDs of one sequence id, so the number is a pair, (sequence id, chunk); a message in
one piece, and the last chunk of one in several, has the chunk LAST. So who sends a message again adds only the
chunks that are missing (C++ consumers give up a message of which a chunk comes twice), and a message counts as sent,
for whoever asks where to go on, only with its last chunk.

What is known survives a restart in two parts. A *snapshot* in the bundle's state log holds all pairs and the position
up to which the topic was confirmed when it was taken; loading replays the entries behind that position by their
metadata. A snapshot is taken of what was accepted and written when all of it is confirmed: an entry that was
lost with the broker must not be remembered, or its second sending would be dropped. Replaying an entry that
the snapshot already knows changes nothing.

    offset size  a record of the state log
         0    1  "D"
         1    1  version          1
         2    1  part             0 begins a topic's snapshot (and replaces the former one), 1 continues it
         3    1  removed          1: the topic is gone, or deduplicates no more; nothing follows the position
         4    2  topic bytes      t
         6    t  topic            its full name, UTF-8
       6+t    8  generation
      14+t    8  ledger           signed: position up to which the snapshot knows everything; before its last
      22+t    8  entry            record the earliest, so that half a snapshot, after a crash, promises nothing
      30+t    4  producers        p, then p times:
                 2  name bytes    n
                 n  name          UTF-8
                 8  sequence id   signed
                 4  chunk
                 8  active        when it last sent, wall clock in ms

All big-endian. A record that does not parse is damage and raises `CorruptionError`.
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
"""The chunk of a message in one piece."""

INACTIVE_MS_MAX: Final = 6 * 3_600_000
"""A producer that sent nothing for so long is forgotten, as Pulsar does: generated names would pile up."""

PRODUCERS_PER_RECORD: Final = 400
"""With the longest names, of four bytes a character, still below a state log's record."""

SEQUENCE_ID_MAX: Final = 2**63 - 1
"""Clients and snapshots hold it as a signed number of 64 bits."""

_VERSION: Final = 1
_METADATA: Final = Struct(">6xI")
_parse: Final = pb.MessageMetadata.FromString
_OPENING: Final = Struct(">cBBBH")
_WHERE: Final = Struct(">Qqq")
_COUNT: Final = Struct(">I")
_NAME: Final = Struct(">H")
_SEEN: Final = Struct(">qIQ")


class Numbers(NamedTuple):
    """Whose an entry is and which of his messages it holds: sequence ids `low` .. `high`, or the `chunk` of one."""

    producer_name: str
    low: int
    high: int
    chunk: int


def numbers_of(entry: Buffer) -> Numbers | None:
    """What the entry's metadata say; None when that cannot be kept."""
    try:
        (size,) = _METADATA.unpack_from(entry)
        if size > METADATA_LOOKED_INTO_BYTES_MAX:
            return None
        metadata = _parse(bytes(entry[10 : 10 + size]))
    except (StructError, DecodeError):
        return None
    name: str | bytes = metadata.producer_name  # the parser gives text that is not UTF-8 as bytes
    low = metadata.sequence_id
    high = max(low, metadata.highest_sequence_id)
    if not isinstance(name, str) or len(name) > NAME_CHARS_MAX or high > SEQUENCE_ID_MAX:
        return None
    chunk = LAST
    if metadata.HasField("chunk_id") and 0 <= metadata.chunk_id < metadata.num_chunks_from_msg - 1:
        chunk = metadata.chunk_id
    return Numbers(name, low, high, chunk)


class Verdict(Enum):
    """What becomes of a SEND."""

    FRESH = "published"
    DUPLICATE = "answered, for it is here already"
    FOREIGN = "refused"


class Seen(NamedTuple):
    """The newest of one producer: sequence id, chunk, and when it was seen (ms)."""

    sequence_id: int
    chunk: int
    active_ms: int


NEVER: Final = Seen(-1, LAST, 0)


class Deduplicator:
    """One topic's producers and what each sent last."""

    def __init__(self, known: dict[str, Seen] | None = None) -> None:
        self._seen = dict(known or {})

    def last_sequence_id(self, producer: str) -> int:
        """The highest that was accepted whole, -1 for none."""
        seen = self._seen.get(producer, NEVER)
        return seen.sequence_id if seen.chunk == LAST else seen.sequence_id - 1

    def admit(self, producer: str, sent: Iterable[Numbers | None], now_ms: int) -> list[Verdict]:
        """What becomes of the entries that `producer` sent, one after the other; what is fresh is accepted."""
        seen = self._seen.get(producer, NEVER)
        verdicts = []
        for numbers in sent:
            if numbers is None or numbers.producer_name != producer:
                verdicts.append(Verdict.FOREIGN)
            elif (numbers.low, numbers.chunk) <= seen[:2]:
                verdicts.append(Verdict.DUPLICATE)
            else:
                seen = Seen(numbers.high, numbers.chunk, now_ms)
                verdicts.append(Verdict.FRESH)
        if seen is not NEVER:
            self._seen[producer] = seen
        return verdicts

    def learn(self, entry: Buffer, clock_ms: int) -> None:
        """An entry of the log, written at `clock_ms`. What nobody admitted is nobody's duplicate."""
        numbers = numbers_of(entry)
        if numbers is not None:
            self.admit(numbers.producer_name, [numbers], clock_ms)

    def capture(self, now_ms: int) -> dict[str, Seen]:
        """A copy for a snapshot; forgets who was inactive too long, or longest of too many."""
        oldest = now_ms - INACTIVE_MS_MAX
        kept = [(name, seen) for name, seen in self._seen.items() if seen.active_ms >= oldest]
        if len(kept) > DEDUPLICATION_PRODUCERS_MAX:
            kept.sort(key=lambda one: one[1].active_ms)
        self._seen = dict(kept[-DEDUPLICATION_PRODUCERS_MAX:])
        return dict(self._seen)


class Snapshot(NamedTuple):
    """What is kept of one topic."""

    generation: int
    position: Position
    seen: dict[str, Seen]


class DedupStore:
    """All deduplicated topics of one bundle, as the state log keeps them."""

    def __init__(self) -> None:
        self._snapshots: dict[str, Snapshot] = {}
        self._prepared: dict[str, tuple[Snapshot, list[bytes]]] = {}
        """Records of the next snapshot of all, of what each topic had when they were made."""

    def find(self, topic: str, generation: int) -> Snapshot | None:
        """The topic's snapshot, if there is one of this incarnation."""
        found = self._snapshots.get(topic)
        return found if found is not None and found.generation == generation else None

    def put(self, topic: str, snapshot: Snapshot) -> Iterator[bytes]:
        """Remember `snapshot`; answers the records to append."""
        self._snapshots[topic] = snapshot
        return encode(topic, snapshot)

    def remove(self, topic: str) -> bytes | None:
        """Forget a topic; returns the record to append, if it was known."""
        found = self._snapshots.pop(topic, None)
        return None if found is None else _opening(topic, found.generation, EARLIEST, 0, removed=True)

    def apply(self, record: bytes) -> None:
        """Take one record of the log. Raises `CorruptionError`."""
        try:
            self._apply(record)
        except (StructError, UnicodeDecodeError, KeyError):
            raise CorruptionError("a deduplication record of the state log is damaged") from None

    def _apply(self, record: bytes) -> None:
        _, version, part, removed, name_bytes = _OPENING.unpack_from(record)
        if version != _VERSION:
            raise CorruptionError(f"a deduplication record of version {version}; known is {_VERSION}")
        at = _OPENING.size + name_bytes
        topic = record[_OPENING.size : at].decode()
        if removed:
            self._snapshots.pop(topic, None)
            return
        generation, ledger_id, entry_id = _WHERE.unpack_from(record, at)
        if part and topic not in self._snapshots:
            return  # its beginning was lost, and given up
        seen = _read_producers(record, at + _WHERE.size)
        before = self._snapshots[topic].seen if part else {}
        self._snapshots[topic] = Snapshot(generation, Position(ledger_id, entry_id), {**before, **seen})

    def give(self, other: DedupStore, is_given: Callable[[str], bool]) -> None:
        """Some of the topics are the other's from now on."""
        for topic in [topic for topic in self._snapshots if is_given(topic)]:
            other._snapshots[topic] = self._snapshots.pop(topic)
            if topic in self._prepared:
                other._prepared[topic] = self._prepared.pop(topic)

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Forget all other topics."""
        self._snapshots = {topic: one for topic, one in self._snapshots.items() if is_kept(topic)}

    def prepare(self) -> Iterator[None]:
        """Make most of what `snapshot` needs, a little in each step: to be done before, over many turns of the loop."""
        self._prepared = {}
        for topic, snapshot in list(self._snapshots.items()):
            records = []
            for record in encode(topic, snapshot):
                records.append(record)
                yield
            self._prepared[topic] = snapshot, records

    def snapshot(self) -> Iterator[bytes]:
        """Records from which `apply` makes the same again."""
        prepared, self._prepared = self._prepared, {}
        for topic, snapshot in self._snapshots.items():
            of, records = prepared.get(topic, (None, []))
            yield from records if of is snapshot else encode(topic, snapshot)


def encode(topic: str, snapshot: Snapshot) -> Iterator[bytes]:
    """The records of one snapshot; at least one."""
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
