"""Which messages of which entries are acknowledged, and what to tell the broker. No I/O.

The broker keeps entries; users acknowledge messages. When no message of an entry is left the entry is done and its
id goes to the broker. Until then the broker is told the bit set of those that are left (a batch-index ack), if the
consumer wants that, so that a redelivery brings only the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.client.entry import Entry, partly
from quire.client.messages import MessageId
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb


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
            self._done += entry.ids
        elif self._batch_index_ack:
            self._partial[entry] = None

    def add(self, ids: Sequence[pb.MessageIdData]) -> None:
        """Entries as a whole."""
        self._done += ids

    def ack_id(self, one: MessageId) -> None:
        """A message by its id alone; a message of a batch only as a batch-index ack."""
        if one.first_chunk is not None:
            self._done.append(commands.message_id(*one.first_chunk, one.partition))
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
