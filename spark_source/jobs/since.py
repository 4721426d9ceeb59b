"""Slices of a topic that are not copied yet: from the end of each partition's copy to the partition's end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

from quire.runtime.errors import ConfigurationError
from quire.spark_source import cutting
from quire.spark_source.broker import Broker
from quire.spark_source.jobs.slices import Piece
from quire.spark_source.options import Options
from quire.spark_source.plan import load_segments, report_loss, report_trimmed, slices, topics_of
from quire.spark_source.positions import Bound, Position


class End(NamedTuple):
    """End of a partition's copy: the first entry that is not copied, and the index of its first message.

    By the index, a job detects messages that were trimmed before they were copied, even if the ledger was deleted. The
    index is known only if the copy ends with a segment; -1 means unknown.
    """

    ledger_id: int
    entry_id: int
    message_index: int = -1


Ends = Mapping[str, End]
"""Ends of copies, by partition."""


class Since(NamedTuple):
    """Slices that are not copied yet, by partition and in order, and the ends of the copies after them."""

    topic: str
    pieces: list[Piece]
    ends: dict[str, End]
    indexes: dict[tuple[str, int, int], int]
    """Message index after each segment, by (partition, ledger, entry after the segment's last one)."""

    def end_of(self, piece: Piece) -> End:
        """Return the end of a partition's copy after a slice."""
        index = self.indexes.get((piece.partition, piece.ledger_id, piece.end_entry), -1)
        return End(piece.ledger_id, piece.end_entry, index)


def since(ends: Ends, options: Options, *, archived: bool = False) -> Since:
    """Return the slices that are not copied. With `archived`, stop at each partition's first unarchived segment.

    Raises `NotFound` if the next messages to be copied were trimmed, unless `on_data_loss=report`.
    """
    broker = options.broker
    [topic] = topics_of(options, broker)
    answer = load_segments(topic, broker)
    names = [f"{topic}-partition-{i}" for i in range(answer["partitions"])] or [topic]
    found = Since(topic, [], dict(ends), {})
    for name in names:
        partition = load_segments(name, broker) if answer["partitions"] else answer
        end = ends.get(name)
        start = None if end is None else Position(end.ledger_id, end.entry_id)
        wanted = replace(options, start=Bound(position=start))
        _report_trimmed(partition, end, wanted, broker)
        some = list(slices(partition, wanted))
        if archived:
            some = list(takewhile(lambda one: one.archived is not None, some))
        found.pieces.extend(map(Piece.of, cutting.slices(some, wanted)))
        for one in partition["segments"]:
            place = name, one["ledger_id"], one["last_entry"] + 1
            found.indexes[place] = one["first_index"] + one["messages"]
        if some:
            found.ends[name] = found.end_of(Piece.of(some[-1]))
    return found


def _report_trimmed(partition: Mapping[str, Any], end: End | None, wanted: Options, broker: Broker) -> None:
    """Report messages that were trimmed before they were copied. The trimming of copied messages is not reported."""
    name, segments = partition["topic"], partition["segments"]
    if end is None or end.message_index < 0:
        report_trimmed(name, segments, wanted)
        return
    first = segments[0]["first_index"] if segments else broker.next_index(name)
    if first > end.message_index:
        report_loss(
            f"messages {end.message_index} to {first - 1} of {name} were trimmed before they were copied",
            wanted,
        )


def check_one_topic(options: Options, what: str) -> None:
    """Raise `ConfigurationError` unless the options name one topic."""
    if len(options.topics) != 1:
        raise ConfigurationError(f"a {what} takes one topic; set the option topic")
