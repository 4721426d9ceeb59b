"""Values that applications hold: message ids, messages and receipts.

A message id is the position of a message: ledger, entry, and for a message of a batch its index. Ids of one partition
have the order of its messages. `EARLIEST` is before the first message, and `LATEST` after the last.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from quire.client.entry import Entry
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import DecodedMessage

T_co = TypeVar("T_co", covariant=True)


class MessageId(NamedTuple):
    """Position of a message. `batch_index` is -1 for an unbatched entry, `partition` -1 for an unpartitioned topic."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    partition: int = -1
    batch_size: int = 0
    topic: str = ""
    first_chunk: tuple[int, int] | None = None
    """The (ledger, entry) of a chunked message's first chunk; ledger and entry of this id are those of the last chunk.
    """

    def __str__(self) -> str:
        last = f"{self.ledger_id}:{self.entry_id}:{self.partition}:{self.batch_index}"
        if self.first_chunk is None:
            return last
        ledger_id, entry_id = self.first_chunk
        return f"{ledger_id}:{entry_id}:{self.partition}:{self.batch_index};{last}"

    @classmethod
    def parse(cls, text: str, topic: str = "") -> MessageId:
        """Parse the text form of an id: `[FIRST-CHUNK;]LEDGER:ENTRY[:PARTITION[:BATCH-INDEX]]`. Raises ValueError."""
        first, separator, last = text.rpartition(";")
        if separator:
            chunk = cls.parse(first)
            return cls.parse(last, topic)._replace(first_chunk=(chunk.ledger_id, chunk.entry_id))
        parts = [int(part) for part in text.split(":")]
        if not 2 <= len(parts) <= 4:
            raise ValueError(f"{text!r} is not a message id such as 12:0")
        ledger_id, entry_id, partition, batch_index = (*parts, -1, -1)[:4]
        return cls(ledger_id, entry_id, batch_index, partition, 0, topic)

    @classmethod
    def from_wire(cls, data: pb.MessageIdData, topic: str, batch_index: int, batch_size: int) -> MessageId:
        ledger_id, entry_id = commands.position(data)
        return cls(ledger_id, entry_id, batch_index, data.partition, batch_size, topic)

    def to_wire(self) -> pb.MessageIdData:
        made = commands.message_id(
            self.ledger_id, self.entry_id, self.partition, self.batch_index, batch_size=self.batch_size
        )
        if self.first_chunk is not None:
            made.first_chunk_message_id.CopyFrom(commands.message_id(*self.first_chunk, self.partition))
        return made

    @property
    def beginning(self) -> MessageId:
        """Position to read this message from: its first chunk, if it is in chunks."""
        if self.first_chunk is None:
            return self
        return MessageId(*self.first_chunk, partition=self.partition, topic=self.topic)

    @property
    def place(self) -> tuple[int, int, int]:
        """Sort key for ids of one partition: an id of a whole entry is after those of its messages."""
        index = self.batch_index if self.batch_index >= 0 else 1 << 62
        return self.ledger_id, self.entry_id, index


EARLIEST: Final = MessageId(-1, -1)
LATEST: Final = MessageId(2**63 - 1, 2**63 - 1)


class Receipt(NamedTuple):
    """Confirmation that a message is stored. If the broker dropped it as a duplicate, `message_id` is (-1, -1)."""

    message_id: MessageId
    sequence_id: int


class Message(Generic[T_co]):
    """Message that a consumer or reader received."""

    __slots__ = ("_decoded", "_entry", "payload")

    def __init__(self, entry: Entry, decoded: DecodedMessage) -> None:
        self._entry = entry
        self._decoded = decoded
        self.payload = decoded.payload
        """Bytes of the message; None for a null value, which marks the key as deleted for compaction."""

    def __repr__(self) -> str:
        return f"Message({self.id}, {len(self.payload or b'')} bytes)"

    @property
    def value(self) -> T_co | None:
        """The payload decoded with the consumer's schema; None for a null value.

        It is decoded at each access. Raises ValueError, or an error that the value's class raises.
        """
        value: T_co | None = self._entry.source.value_of(self._entry, self._decoded)
        return value

    @property
    def schema_version(self) -> bytes:
        """Version of the schema that the message was written with; empty if the producer had no schema."""
        return self._entry.schema_version

    @property
    def id(self) -> MessageId:
        entry, one = self._entry, self._decoded
        size = one.batch_size if one.batch_index >= 0 else 0
        first = commands.position(entry.chunks[0]) if entry.chunks else None
        return MessageId(
            entry.ledger_id, entry.entry_id, one.batch_index, entry.partition, size, entry.source.topic, first
        )

    @property
    def topic(self) -> str:
        """Full name of the topic, or of the partition if the topic is partitioned."""
        return self._entry.source.topic

    @property
    def key(self) -> str | None:
        return self._decoded.key

    @property
    def key_bytes(self) -> bytes | None:
        """The key as bytes; a key that is not text is base64 in `key`."""
        return key_bytes(self._decoded)

    @property
    def ordering_key(self) -> bytes | None:
        return self._decoded.ordering_key

    @property
    def properties(self) -> Mapping[str, str]:
        return self._decoded.properties

    @property
    def event_time_ms(self) -> int:
        """Event time in ms that the producer set; 0: none."""
        return self._decoded.event_time_ms

    @property
    def publish_time_ms(self) -> int:
        return self._decoded.publish_time_ms

    @property
    def producer_name(self) -> str:
        return self._decoded.producer_name

    @property
    def sequence_id(self) -> int:
        return self._decoded.sequence_id

    @property
    def redelivery_count(self) -> int:
        return self._entry.redelivery_count


def key_bytes(one: DecodedMessage) -> bytes | None:
    """Return a message's key as bytes, whether it was sent as text or as base64."""
    if one.key is None:
        return None
    return b64decode(one.key) if one.key_is_base64 else one.key.encode()
