"""What a topic has that a copy of it has not: the slices from where the copy of each partition ends to the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from quire.runtime.errors import ConfigurationError
from quire.spark_source import cutting
from quire.spark_source.jobs.slices import Piece
from quire.spark_source.options import Options
from quire.spark_source.plan import report_trimmed, slices, topics_of, whole
from quire.spark_source.positions import Bound, Position

Ends = Mapping[str, Position]
"""By partition the first entry that is not copied."""


class Since(NamedTuple):
    """The slices, partition by partition and in order, and where they end."""

    topic: str
    pieces: list[Piece]
    ends: dict[str, Position]


def since(ends: Ends, options: Options, *, archived: bool = False) -> Since:
    """`archived`: only up to the first segment of each partition that the archive does not have.

    Raises `NotFound` where retention took what was to be copied next, unless `on_data_loss=report`.
    """
    broker = options.broker
    [topic] = topics_of(options, broker)
    answer = whole(topic, broker)
    names = [f"{topic}-partition-{i}" for i in range(answer["partitions"])] or [topic]
    pieces: list[Piece] = []
    found = dict(ends)
    for name in names:
        partition = whole(name, broker) if answer["partitions"] else answer
        wanted = replace(options, start=Bound(position=ends.get(name)))
        report_trimmed(name, partition["segments"], wanted)
        some = list(slices(partition, wanted))
        if archived:
            some = list(takewhile(lambda one: one.archived is not None, some))
        pieces += map(Piece.of, cutting.slices(some, wanted))
        if some:
            found[name] = Position(some[-1].origin.ledger_id, some[-1].end_entry)
    return Since(topic, pieces, found)


def check_one_topic(options: Options, what: str) -> None:
    """A copy is of one topic. Raises `ConfigurationError`."""
    if len(options.topics) != 1:
        raise ConfigurationError(f"one {what} takes one topic: give the option topic")
