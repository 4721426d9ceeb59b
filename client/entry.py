"""One delivered entry: the bit set of its unacknowledged messages, and its id for ACK commands.

Only its messages refer to an entry, so its memory is released when the application has released them.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import DecodedMessage

_WORD: Final = (1 << 64) - 1


class Source(Protocol):
    """Interface of a partition's consumer to the entries that it received."""

    topic: str
    generation: int

    def taken(self, message: Any) -> None:
        """Record that the message was handed to the application."""
        ...

    def ack(self, entry: Entry, index: int) -> None:
        """Acknowledge the message at `index` of an entry; -1 is the only message of an unbatched entry."""
        ...

    def value_of(self, entry: Entry, decoded: DecodedMessage) -> Any:
        """Decode the message's payload with the consumer's schema."""
        ...


class Entry:
    """One delivered entry. Its `generation` is compared with the consumer's, to skip entries from before a rewind."""

    __slots__ = (
        "batch_size",
        "chunks",
        "entry_id",
        "generation",
        "ledger_id",
        "partition",
        "redelivery_count",
        "schema_version",
        "source",
        "unacked",
    )

    def __init__(
        self,
        source: Source,
        place: tuple[int, int],
        partition: int,
        batch_size: int,
        redelivery_count: int,
        generation: int,
        schema_version: bytes = b"",
        chunks: tuple[pb.MessageIdData, ...] = (),
    ) -> None:
        self.source = source
        self.ledger_id, self.entry_id = place
        self.partition = partition
        self.batch_size = batch_size
        self.redelivery_count = redelivery_count
        self.generation = generation
        self.schema_version = schema_version
        self.chunks = chunks
        """For a chunked message, the ids of the entries with its earlier chunks."""
        self.unacked = (1 << batch_size) - 1

    @property
    def place(self) -> tuple[int, int]:
        return self.ledger_id, self.entry_id

    @property
    def ids(self) -> list[pb.MessageIdData]:
        """Ids to acknowledge when its messages are acknowledged: those of the earlier chunks, and its own."""
        return [*self.chunks, commands.message_id(self.ledger_id, self.entry_id, self.partition)]

    def rest(self) -> pb.MessageIdData:
        """Return the entry's id with the bit set of its unacknowledged messages, as for an ACK."""
        return partly(self.ledger_id, self.entry_id, self.partition, self.unacked, self.batch_size)


def partly(ledger_id: int, entry_id: int, partition: int, unacked: int, size: int) -> pb.MessageIdData:
    """Return an entry's id with the bit set of its unacknowledged messages, as an ACK contains it."""
    return commands.message_id(
        ledger_id, entry_id, partition, ack_set=to_words(unacked, size), batch_size=size
    )


def to_words(bits: int, size: int) -> list[int]:
    """Split a bit set of `size` bits into signed 64-bit words, the lowest first."""
    words = [bits >> at & _WORD for at in range(0, size, 64)]
    return [word - (1 << 64) if word >> 63 else word for word in words]


def from_words(words: list[int]) -> int:
    """Join the words of a bit set to an integer; the reverse of `to_words`."""
    return sum((word & _WORD) << 64 * i for i, word in enumerate(words))
