"""Where a stream begins, and where a micro-batch is cut: offsets for what is known only by position, time or index.

The index of a position, and the position of an index within a batch, are in the block that holds the entry; it is
read for that. The first and the last offset of a segment are known without it.
"""

from __future__ import annotations

from itertools import accumulate

from quire.runtime.errors import ConfigurationError, CorruptionError
from quire.spark_source.broker import Broker
from quire.spark_source.options import Options
from quire.spark_source.plan import report_trimmed, subscription_position
from quire.spark_source.positions import Position
from quire.spark_source.stream.offsets import BEGINNING, Offset, Partition
from quire.wire import block


def resolve(partition: Partition, options: Options, broker: Broker) -> Offset:
    """Where a new stream of these options begins in a partition. Raises `NotFound`, `ConfigurationError`."""
    start, name = options.start, partition.name
    if options.starting_subscription:
        return at_position(
            partition, broker, subscription_position(name, options.starting_subscription, broker)
        )
    if start.position is not None:
        report_trimmed(name, partition.segments, options)
        return at_position(partition, broker, start.position)
    if start.time_ms is not None:
        return at_position(partition, broker, Position(*broker.position_at_time(name, start.time_ms)))
    return partition.end if start.latest else partition.place(BEGINNING).offset


def at_position(partition: Partition, broker: Broker, position: Position) -> Offset:
    """The offset of a position, or of what comes next where there is no such entry."""
    for one in partition.segments:
        ledger_id, first_index = one["ledger_id"], one["first_index"]
        if ledger_id > position.ledger_id or (ledger_id == position.ledger_id and position[1:] == (0, 0)):
            return Offset(batch=0, entry=0, index=first_index, ledger=ledger_id)
        if ledger_id == position.ledger_id and position.entry_id <= one["last_entry"]:
            index, count = _entry(partition.name, broker, position)
            if position.batch_index < count:
                return _offset(position, index + position.batch_index, position.batch_index)
            return at_position(partition, broker, Position(ledger_id, position.entry_id + 1))
    return partition.end


def at_index(partition: Partition, broker: Broker, index: int) -> Offset:
    """The offset of a message of a partition, or of its end."""
    if index == partition.end.index:
        return partition.end
    position = Position(*broker.position_of_index(partition.name, index))
    first, count = _entry(partition.name, broker, position)
    if not first <= index < first + count:
        raise CorruptionError(
            f"the broker says that message {index} of {partition.name} is in entry {position.ledger_id}:"
            f"{position.entry_id}, which has messages {first} to {first + count - 1}"
        )
    return _offset(position, index, index - first)


def _offset(position: Position, index: int, batch: int) -> Offset:
    return Offset(batch=batch, entry=position.entry_id, index=index, ledger=position.ledger_id)


def _entry(name: str, broker: Broker, position: Position) -> tuple[int, int]:
    """The index of an entry's first message, and how many it has."""
    content = broker.blocks(name, position.ledger_id, position.entry_id, 1)
    if not content:
        raise ConfigurationError(f"{name} has no entry {position.ledger_id}:{position.entry_id}")
    header = block.verify(content, 0)
    counts = block.message_counts(content, header)
    number = position.entry_id - header.first_entry
    return header.first_index + [0, *accumulate(counts)][number], counts[number]
