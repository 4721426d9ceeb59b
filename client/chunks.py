"""Messages larger than the maximum entry, which producers cut into chunks and consumers join. No I/O.

A message is compressed as a whole and then cut. Each chunk is an entry, encrypted separately, with the sequence id
and uuid of the message, its own number, and the number and total size of all chunks (Pulsar's [PIP-37]):

    chunk 0 ─ chunk 1 ─ … ─ chunk n-1      other producers' entries may be between them
       └ first chunk's id      └ the message's id, known when the last chunk is stored

A consumer joins the chunks of one uuid. It drops a repeated chunk, and cannot join a chunk without its predecessors
(which were trimmed, acknowledged or discarded). Incomplete messages take memory, so their number and age are
limited, as in Pulsar's clients.

[PIP-37]: https://github.com/apache/pulsar/wiki/PIP-37%3A-Large-message-size-handling-in-Pulsar
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from quire.runtime.limits import CHUNKED_MESSAGE_BYTES_MAX
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import Buffer, Undecodable

CHUNK_METADATA_BYTES: Final = 128
"""Bytes reserved for the metadata that only chunks have: uuid, numbers, and the overhead of encryption."""

JOINED_MAX: Final = 100
"""Number of completed messages that a consumer remembers to recognize repeated chunks."""


class Incomplete(Enum):
    """Result for a chunk that does not complete its message."""

    WAITS = "for the others"
    REPEATED = "it is here already"
    ORPHANED = "those before it are missing"


class Joined(NamedTuple):
    """A complete message: its joined payload, and the ids of all its chunks except the last."""

    payload: memoryview
    before: tuple[pb.MessageIdData, ...]


class _Pending:
    """Chunked message of which only some chunks have arrived."""

    __slots__ = ("bytes_max", "count", "ids", "parts", "since_s", "size")

    def __init__(self, count: int, bytes_max: int, since_s: float) -> None:
        self.count = count
        self.bytes_max = bytes_max
        self.since_s = since_s
        self.size = 0
        self.parts: list[Buffer] = []
        self.ids: list[pb.MessageIdData] = []


def cut(metadata: pb.MessageMetadata, payload: Buffer, bytes_max: int) -> Iterator[memoryview]:
    """Yield the chunks of a payload, `bytes_max` bytes each.

    `metadata` is updated for each chunk before it is yielded.
    """
    view = memoryview(payload)
    metadata.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
    metadata.num_chunks_from_msg = -(-len(view) // bytes_max)
    metadata.total_chunk_msg_size = len(view)
    for number in range(metadata.num_chunks_from_msg):
        metadata.chunk_id = number
        yield view[number * bytes_max : (number + 1) * bytes_max]


class Joiner:
    """Joiner of the chunks of one partition; it holds the incomplete messages, oldest first."""

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._pending: dict[str, _Pending] = {}
        self._joined: dict[str, None] = {}
        """Completed messages, oldest first: a producer may resend their last chunks after a lost connection."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def first_id(self) -> pb.MessageIdData | None:
        """The id of the first chunk of the oldest incomplete message, or None."""
        return next(iter(self._pending.values())).ids[0] if self._pending else None

    def add(
        self, metadata: pb.MessageMetadata, payload: Buffer, id_data: pb.MessageIdData, now_s: float
    ) -> Joined | Incomplete:
        """Add a chunk. Raises `Undecodable` if it contradicts the earlier chunks or the message is too large."""
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
            raise Undecodable(
                f"chunk {number} does not belong "
                f"to the {pending.count} chunks of its message: it exceeds their announced size or count"
            )
        pending.parts.append(payload)
        if number + 1 < pending.count:
            pending.ids.append(id_data)
            return Incomplete.WAITS
        del self._pending[uuid]
        self._remember(uuid)
        if pending.size != pending.bytes_max:
            raise Undecodable(
                f"the chunks of a message have {pending.size} bytes in total, "
                f"but the first announced {pending.bytes_max}"
            )
        return Joined(memoryview(b"".join(pending.parts)), tuple(pending.ids))

    def _begin(self, metadata: pb.MessageMetadata, now_s: float) -> None:
        """Start a message at its first chunk, and discard earlier chunks with its uuid."""
        size = metadata.total_chunk_msg_size
        if not 0 < size <= CHUNKED_MESSAGE_BYTES_MAX:
            raise Undecodable(
                f"a chunked message announces {size} bytes, but at most {CHUNKED_MESSAGE_BYTES_MAX} are allowed"
            )
        self._pending.pop(metadata.uuid, None)
        self._joined.pop(metadata.uuid, None)
        self._pending[metadata.uuid] = _Pending(metadata.num_chunks_from_msg, size, now_s)

    def _remember(self, uuid: str) -> None:
        self._joined[uuid] = None
        if len(self._joined) > JOINED_MAX:
            del self._joined[next(iter(self._joined))]

    def overflowing(self) -> list[pb.MessageIdData]:
        """Discard the oldest messages above the maximum number; return the ids of their chunks."""
        given_up: list[pb.MessageIdData] = []
        while len(self._pending) > self._messages_max:
            given_up += self._pop_oldest().ids
        return given_up

    def expired(self, before_s: float) -> list[pb.MessageIdData]:
        """Discard messages whose first chunk arrived before `before_s`; return the ids of their chunks."""
        given_up: list[pb.MessageIdData] = []
        while self._pending and next(iter(self._pending.values())).since_s < before_s:
            given_up += self._pop_oldest().ids
        return given_up

    def clear(self) -> None:
        """Discard all chunks; the broker redelivers them."""
        self._pending.clear()

    def _pop_oldest(self) -> _Pending:
        return self._pending.pop(next(iter(self._pending)))
