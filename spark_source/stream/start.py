"""Offsets of positions, times and indexes: the start of a stream, and the ends of micro-batches.

To map a position to a message index, or an index to a position, the block with the entry is read, because it contains
the index of the entry's first message. The first and the last offset of a segment are known without reading.
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
    """Return the first offset of a new stream in a partition. Raises `NotFound`, `ConfigurationError`."""
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
    """Return the offset of a position, or of the next message if the position's entry does not exist."""
    for one in partition.segments:
        ledger_id, first_index = one["ledger_id"], one["first_index"]
        if ledger_id > position.ledger_id or (ledger_id == position.ledger_id and position[1:] == (0, 0)):
            return partition.offset(ledger_id, 0, 0, first_index)
        if ledger_id == position.ledger_id and position.entry_id <= one["last_entry"]:
            index, count = _entry(partition.name, broker, position)
            if position.batch_index < count:
                return partition.offset(*position, index + position.batch_index)
            return at_position(partition, broker, Position(ledger_id, position.entry_id + 1))
    return partition.end


def at_index(partition: Partition, broker: Broker, index: int) -> Offset:
    """Return the offset of message `index`, or the partition's end if `index` is the next message's."""
    if index == partition.end.index:
        return partition.end
    position = Position(*broker.position_of_index(partition.name, index))
    first, count = _entry(partition.name, broker, position)
    if not first <= index < first + count:
        raise CorruptionError(
            f"the broker returned entry {position.ledger_id}:{position.entry_id} for message {index} of "
            f"{partition.name}, but it has messages {first} to {first + count - 1}"
        )
    return partition.offset(position.ledger_id, position.entry_id, index - first, index)


def _entry(name: str, broker: Broker, position: Position) -> tuple[int, int]:
    """Return the index of an entry's first message, and the entry's number of messages."""
    content = broker.blocks(name, position.ledger_id, position.entry_id, 1)
    if not content:
        raise ConfigurationError(f"{name} has no entry {position.ledger_id}:{position.entry_id}")
    header = block.verify(content, 0)
    counts = block.message_counts(content, header)
    number = position.entry_id - header.first_entry
    return header.first_index + [0, *accumulate(counts)][number], counts[number]
