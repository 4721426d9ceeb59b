"""Messages that are larger than an entry may be: cut into chunks by producers, joined by consumers. No I/O.

A message is compressed whole, then cut; each chunk is an entry of its own, encrypted by itself, with the sequence id
of the message, one uuid, its number and the count and size of all:

    chunk 0 ─ chunk 1 ─ … ─ chunk n-1      other producers' entries may lie between them
       └ first chunk's id      └ the message's id: it is there when its last chunk is

A consumer joins what has one uuid. A chunk that comes again is dropped; one that follows no other (its beginning was
trimmed, acknowledged or given up) cannot be joined. What is incomplete takes memory, so there is a bound on how many
messages are, and on how long; both as in Pulsar's clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from quire.runtime.limits import CHUNKED_MESSAGE_BYTES_MAX
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import Buffer, Undecodable

CHUNK_METADATA_BYTES: Final = 128
"""Room for what only chunks have: uuid, numbers, and what encryption adds to the payload."""

JOINED_MAX: Final = 100
"""Messages that a consumer remembers for the sake of chunks that come again."""


class Incomplete(Enum):
    """What came of a chunk that does not make its message whole."""

    WAITS = "for the others"
    REPEATED = "it is here already"
    ORPHANED = "those before it are missing"


class Joined(NamedTuple):
    """A message that is whole: its payload as it was before it was cut, and the ids of all chunks but the last."""

    payload: memoryview
    before: tuple[pb.MessageIdData, ...]


class _Pending:
    """A message of which some chunks are here."""

    __slots__ = ("bytes_max", "count", "ids", "parts", "since_s", "size")

    def __init__(self, count: int, bytes_max: int, since_s: float) -> None:
        self.count = count
        self.bytes_max = bytes_max
        self.since_s = since_s
        self.size = 0
        self.parts: list[Buffer] = []
        self.ids: list[pb.MessageIdData] = []


def cut(metadata: pb.MessageMetadata, payload: Buffer, bytes_max: int) -> Iterator[memoryview]:
    """The chunks of a payload, of `bytes_max` each; before each, `metadata` are changed to be its own."""
    view = memoryview(payload)
    metadata.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
    metadata.num_chunks_from_msg = -(-len(view) // bytes_max)
    metadata.total_chunk_msg_size = len(view)
    for number in range(metadata.num_chunks_from_msg):
        metadata.chunk_id = number
        yield view[number * bytes_max : (number + 1) * bytes_max]


class Joiner:
    """The incomplete messages of one partition, the oldest first."""

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._pending: dict[str, _Pending] = {}
        self._joined: dict[str, None] = {}
        """What became whole, the oldest first: a producer that lost its connection may send the end of it again."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def first_id(self) -> pb.MessageIdData | None:
        """The first chunk of the oldest message that is incomplete."""
        return next(iter(self._pending.values())).ids[0] if self._pending else None

    def add(
        self, metadata: pb.MessageMetadata, payload: Buffer, id_data: pb.MessageIdData, now_s: float
    ) -> Joined | Incomplete:
        """Take a chunk. Raises `Undecodable` for one that contradicts the others, or a message that is too large."""
        uuid, number = metadata.uuid, metadata.chunk_id
        if number == 0:
            self._begin(metadata, now_s)
        pending = self._pending.get(uuid)
        if pending is None and uuid in self._joined:
            return Incomplete.REPEATED
        if pending is None or number > len(pending.parts):
            return Incomplete.ORPHANED
        if number < len(pending.parts):
            return Incomplete.REPEATED
        pending.size += len(payload)
        if pending.size > pending.bytes_max or metadata.num_chunks_from_msg != pending.count:
            del self._pending[uuid]
            raise Undecodable(f"chunk {number} does not belong to the {pending.count} chunks before it")
        pending.parts.append(payload)
        if number + 1 < pending.count:
            pending.ids.append(id_data)
            return Incomplete.WAITS
        del self._pending[uuid]
        self._remember(uuid)
        if pending.size != pending.bytes_max:
            raise Undecodable(f"chunks of {pending.size} bytes were to be {pending.bytes_max}")
        return Joined(memoryview(b"".join(pending.parts)), tuple(pending.ids))

    def _begin(self, metadata: pb.MessageMetadata, now_s: float) -> None:
        """The first chunk: what had its uuid before was sent in vain, and begins again."""
        size = metadata.total_chunk_msg_size
        if not 0 < size <= CHUNKED_MESSAGE_BYTES_MAX:
            raise Undecodable(f"chunks claim {size} bytes; allowed are {CHUNKED_MESSAGE_BYTES_MAX}")
        self._pending.pop(metadata.uuid, None)
        self._joined.pop(metadata.uuid, None)
        self._pending[metadata.uuid] = _Pending(metadata.num_chunks_from_msg, size, now_s)

    def _remember(self, uuid: str) -> None:
        self._joined[uuid] = None
        if len(self._joined) > JOINED_MAX:
            del self._joined[next(iter(self._joined))]

    def overflowing(self) -> list[pb.MessageIdData]:
        """Give up the oldest while there are too many; the ids of what was given up."""
        given_up: list[pb.MessageIdData] = []
        while len(self._pending) > self._messages_max:
            given_up += self._pop_oldest().ids
        return given_up

    def expired(self, before_s: float) -> list[pb.MessageIdData]:
        """Give up what began before; the ids of what was given up."""
        given_up: list[pb.MessageIdData] = []
        while self._pending and next(iter(self._pending.values())).since_s < before_s:
            given_up += self._pop_oldest().ids
        return given_up

    def clear(self) -> None:
        """All of it comes again."""
        self._pending.clear()

    def _pop_oldest(self) -> _Pending:
        return self._pending.pop(next(iter(self._pending)))
