"""One delivered entry: which of its messages are not acknowledged yet, as a bit set, and its id on the wire.

Nothing refers to an entry but its messages: what the user has forgotten costs nothing here.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import DecodedMessage

_WORD: Final = (1 << 64) - 1


class Source(Protocol):
    """The consumer of a partition, as what it delivered knows it."""

    topic: str
    generation: int

    def taken(self, message: Any) -> None:
        """The user has it now."""
        ...

    def ack(self, entry: Entry, index: int) -> None:
        """The message at `index` (-1: the entry is one message)."""
        ...

    def value_of(self, entry: Entry, decoded: DecodedMessage) -> Any:
        """The payload as the consumer's schema has it."""
        ...


class Entry:
    """One delivered entry. `generation` tells whether it came before the last rewind or reconnect."""

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
        """Ids of the entries before it that hold the beginning of its message."""
        self.unacked = (1 << batch_size) - 1

    @property
    def place(self) -> tuple[int, int]:
        return self.ledger_id, self.entry_id

    @property
    def ids(self) -> list[pb.MessageIdData]:
        """All that is done when its messages are."""
        return [*self.chunks, commands.message_id(self.ledger_id, self.entry_id, self.partition)]

    def rest(self) -> pb.MessageIdData:
        """Its id with the bit set of what is not acknowledged."""
        return partly(self.ledger_id, self.entry_id, self.partition, self.unacked, self.batch_size)


def partly(ledger_id: int, entry_id: int, partition: int, unacked: int, size: int) -> pb.MessageIdData:
    """An entry's id with a bit set of its unacknowledged messages, as an ACK carries it."""
    return commands.message_id(
        ledger_id, entry_id, partition, ack_set=to_words(unacked, size), batch_size=size
    )


def to_words(bits: int, size: int) -> list[int]:
    """A bit set of `size` bits as signed 64-bit words, the lowest first."""
    words = [bits >> at & _WORD for at in range(0, size, 64)]
    return [word - (1 << 64) if word >> 63 else word for word in words]


def from_words(words: list[int]) -> int:
    """The bit set that `to_words` took apart."""
    return sum((word & _WORD) << 64 * i for i, word in enumerate(words))
