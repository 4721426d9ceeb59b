"""Acknowledgement state of one partition, and the acks to send to the broker. No I/O.

The broker tracks entries, while applications acknowledge messages. When all messages of an entry are acknowledged, the
entry's id is sent to the broker. Until then a batch-index ack can be sent: the bit set of the messages still
unacknowledged, so that the broker redelivers only those. The consumer setting `batch_index_ack` enables it.
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
        """Acknowledge the message at `index` of an entry; -1 is the only message of an unbatched entry."""
        if not entry.unacked:
            return
        entry.unacked &= ~(1 << index) if index >= 0 else 0
        if not entry.unacked:
            self._partial.pop(entry, None)
            self._done += entry.ids
        elif self._batch_index_ack:
            self._partial[entry] = None

    def add(self, ids: Sequence[pb.MessageIdData]) -> None:
        """Acknowledge whole entries."""
        self._done += ids

    def ack_id(self, one: MessageId) -> None:
        """Acknowledge a message by its id alone. For a message of a batch, this requires batch-index acks."""
        if one.first_chunk is not None:
            self._done.append(commands.message_id(*one.first_chunk, one.partition))
        if one.batch_index < 0 or one.batch_size <= 1:
            self._done.append(commands.message_id(one.ledger_id, one.entry_id, one.partition))
        elif self._batch_index_ack:
            rest = (1 << one.batch_size) - 1 & ~(1 << one.batch_index)
            self._done.append(partly(one.ledger_id, one.entry_id, one.partition, rest, one.batch_size))

    def ack_cumulative(self, one: MessageId) -> None:
        """Acknowledge all messages up to and including `one`; only the highest id is kept."""
        last = one.batch_index < 0 or one.batch_index + 1 >= one.batch_size
        if last:
            data = commands.message_id(one.ledger_id, one.entry_id, one.partition)
        elif self._batch_index_ack:
            rest = (1 << one.batch_size) - (1 << one.batch_index + 1)
            data = partly(one.ledger_id, one.entry_id, one.partition, rest, one.batch_size)
        elif one.entry_id > 0:
            data = commands.message_id(one.ledger_id, one.entry_id - 1, one.partition)
        else:
            return  # no earlier entry in this ledger
        if self._cumulative is None or one.place > self._cumulative[0]:
            self._cumulative = one.place, data

    def take(self) -> tuple[list[pb.MessageIdData], pb.MessageIdData | None]:
        """Return the acks to send now and clear them: individual ids, and the cumulative id or None."""
        ids = self._done
        if self._partial:
            ids = ids + [entry.rest() for entry in self._partial]
            self._partial = {}
        cumulative = self._cumulative[1] if self._cumulative is not None else None
        self._done, self._cumulative = [], None
        return ids, cumulative

    def restore(self, ids: list[pb.MessageIdData]) -> None:
        """Put back the individual ids of acks that the broker did not answer, so that they are sent again."""
        self._done = ids + self._done
