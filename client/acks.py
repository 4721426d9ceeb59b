"""Which messages of which entries are acknowledged, and what to tell the broker. No I/O.

The broker keeps entries; users acknowledge messages. An `Entry` remembers, as a bit set, which of its messages are
not acknowledged yet. When none is left the entry is done and its id goes to the broker. Until then the broker
is told the bit set itself (a batch-index ack), if the consumer wants that, so that a redelivery brings only the rest.

Nothing refers to an entry but its messages: what the user has forgotten costs nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quire.client.messages import MessageId
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from quire.client.partition_consumer import PartitionConsumer

_WORD: Final = (1 << 64) - 1


class Entry:
    """One delivered entry. `generation` tells whether it came before the last rewind or reconnect."""

    __slots__ = (
        "batch_size",
        "entry_id",
        "generation",
        "ledger_id",
        "partition",
        "redelivery_count",
        "source",
        "unacked",
    )

    def __init__(
        self,
        source: PartitionConsumer,
        place: tuple[int, int],
        partition: int,
        batch_size: int,
        redelivery_count: int,
        generation: int,
    ) -> None:
        self.source = source
        self.ledger_id, self.entry_id = place
        self.partition = partition
        self.batch_size = batch_size
        self.redelivery_count = redelivery_count
        self.generation = generation
        self.unacked = (1 << batch_size) - 1

    def whole(self) -> pb.MessageIdData:
        return commands.message_id(self.ledger_id, self.entry_id, self.partition)

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


class Acks:
    """Acknowledgements of one partition that wait to be sent."""

    def __init__(self, batch_index_ack: bool) -> None:
        self._batch_index_ack = batch_index_ack
        self._done: list[pb.MessageIdData] = []
        self._partial: dict[Entry, None] = {}
        self._cumulative: tuple[tuple[int, int, int], pb.MessageIdData] | None = None

    def __len__(self) -> int:
        return len(self._done) + len(self._partial) + (self._cumulative is not None)

    def ack(self, entry: Entry, index: int) -> None:
        """The message at `index` (-1: the entry is one message)."""
        if not entry.unacked:
            return
        entry.unacked &= ~(1 << index) if index >= 0 else 0
        if not entry.unacked:
            self._partial.pop(entry, None)
            self._done.append(entry.whole())
        elif self._batch_index_ack:
            self._partial[entry] = None

    def ack_id(self, one: MessageId) -> None:
        """A message by its id alone; a message of a batch only as a batch-index ack."""
        if one.batch_index < 0 or one.batch_size <= 1:
            self._done.append(commands.message_id(one.ledger_id, one.entry_id, one.partition))
        elif self._batch_index_ack:
            rest = (1 << one.batch_size) - 1 & ~(1 << one.batch_index)
            self._done.append(partly(one.ledger_id, one.entry_id, one.partition, rest, one.batch_size))

    def ack_cumulative(self, one: MessageId) -> None:
        """Everything up to and with the message; only the highest matters."""
        last = one.batch_index < 0 or one.batch_index + 1 >= one.batch_size
        if last:
            data = commands.message_id(one.ledger_id, one.entry_id, one.partition)
        elif self._batch_index_ack:
            rest = (1 << one.batch_size) - (1 << one.batch_index + 1)
            data = partly(one.ledger_id, one.entry_id, one.partition, rest, one.batch_size)
        elif one.entry_id > 0:
            data = commands.message_id(one.ledger_id, one.entry_id - 1, one.partition)
        else:
            return  # nothing whole lies before it in its ledger
        if self._cumulative is None or one.place > self._cumulative[0]:
            self._cumulative = one.place, data

    def take(self) -> tuple[list[pb.MessageIdData], pb.MessageIdData | None]:
        """What to send now: individual ids, and the cumulative one."""
        ids = self._done
        if self._partial:
            ids = ids + [entry.rest() for entry in self._partial]
            self._partial = {}
        cumulative = self._cumulative[1] if self._cumulative is not None else None
        self._done, self._cumulative = [], None
        return ids, cumulative

    def restore(self, ids: list[pb.MessageIdData]) -> None:
        """Individual ids that were taken and not answered; they are sent again."""
        self._done = ids + self._done
