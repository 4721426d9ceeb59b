"""Planning: from a broker's list of segments to the slices to be read.

A topic partition is a list of segments, and the broker returns the location of each (`quire.spark_source.broker` has
the endpoints and their JSON). A slice is a range of entries of one segment. It can be read from the archive or through
the broker, whichever has the segment when the task runs. `cutting` combines and cuts slices into tasks. A plan takes
one request for each partition, and ends at the last confirmed entry at that moment.

A plan is verified to be complete, by the topic-wide indexes of messages. Each segment must begin with the message after
the last one of its predecessor, and one segment must contain the last confirmed entry. An incomplete list is requested
again, up to `ATTEMPTS` times. Then the query fails, because it must not miss messages.

Spark plans once per DataFrame. A long-lived DataFrame never contains later messages. Some of its segments may have been
trimmed since; its tasks then fail or warn.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from quire.runtime.errors import ConfigurationError, CorruptionError, NotFound
from quire.spark_source.broker import Broker
from quire.spark_source.columns import Origin
from quire.spark_source.options import Options
from quire.spark_source.positions import Bound, Position, Window
from quire.spark_source.pruning import may_contain

_PARTITION: Final = re.compile(r"(.+)-partition-(\d+)")

_log = logging.getLogger(__name__)

ATTEMPTS: Final = 4
PAUSE_S: Final = 0.25
"""Pause between two attempts to get a complete plan."""


@dataclass(frozen=True)
class ArchivedObject:
    """Location of a segment in the archive: the store's URL, the object's name, its length, and its footer's CRC."""

    store: str
    name: str
    bytes: int
    crc: int


@dataclass(frozen=True)
class Slice:
    """The rows in `window` of the entries `[first_entry, end_entry)` of one segment."""

    origin: Origin
    first_entry: int
    end_entry: int
    window: Window
    archived: ArchivedObject | None
    bytes: int = 0
    """Approximate bytes of the slice's blocks, as if a segment's bytes were spread evenly over its entries."""

    def part(self, first_entry: int, end_entry: int) -> Slice:
        """Return the part of the slice within the entries `[first_entry, end_entry)`."""
        share = (end_entry - first_entry) / (self.end_entry - self.first_entry)
        return replace(
            self,
            first_entry=first_entry,
            end_entry=end_entry,
            window=self.window.narrowed(first_entry, end_entry),
            bytes=round(self.bytes * share),
        )


def plan(options: Options, broker: Broker) -> list[Slice]:
    """Return the slices of a query, in the order of its topics.

    Raises `NotFound`, `Unavailable`, `ConfigurationError`, `CorruptionError`.
    """
    topics = topics_of(options, broker)
    if not topics and options.pattern:
        tenant, namespace, pattern = options.pattern
        raise ConfigurationError(f"no topic of {tenant}/{namespace} matches topics_pattern {pattern!r}")
    partitions = [partition for topic in topics for partition in _partitions(topic, options, broker)]
    by_position = options.start.position or options.end.position
    if by_position and len(partitions) != 1:
        raise ConfigurationError(
            f"start and end by position apply to one partition, but {len(partitions)} are read; "
            "use a time, or set one partition as the topic"
        )
    return [
        piece
        for partition in partitions
        for piece in slices(partition, _resolved_start(partition, options, broker))
    ]


def _resolved_start(partition: dict[str, Any], options: Options, broker: Broker) -> Options:
    """Return the options for one partition, with `starting_subscription` replaced by its position.

    Check a position that the user gave.
    """
    if options.starting_subscription is not None:
        start = subscription_position(partition["topic"], options.starting_subscription, broker)
        return replace(options, start=Bound(position=start))
    _check_start(partition, options)
    report_trimmed(partition["topic"], partition["segments"], options)
    if options.compacted and options.starts_at_beginning:
        _report_kept_by_compaction(partition["topic"], partition["segments"], options, broker)
    return options


def _check_start(partition: Mapping[str, Any], options: Options) -> None:
    """Raise `ConfigurationError` for a position beyond the topic's end, which must belong to another topic."""
    start, segments = options.start.position, partition["segments"]
    if start is None or not segments:
        return
    last = segments[-1]
    if start > (last["ledger_id"], last["last_entry"] + 1, 0):
        raise ConfigurationError(
            f"start={start.ledger_id}:{start.entry_id} is beyond the end of {partition['topic']}, whose last entry "
            f"is {last['ledger_id']}:{last['last_entry']}; is it a position of another topic?"
        )


def subscription_position(topic: str, subscription: str, broker: Broker) -> Position:
    """Return the first entry that a durable subscription has not acknowledged. Raises `NotFound`."""
    cursor = broker.cursor(topic, subscription)
    if cursor is None:
        raise NotFound(
            f"topic {topic} has no durable subscription {subscription}, which starting_subscription needs"
        )
    return Position(cursor.ledger_id, cursor.entry_id + 1)


def report_trimmed(topic: str, segments: Sequence[Mapping[str, Any]], options: Options) -> None:
    """Report messages that were trimmed after the position at which the query starts.

    Other starts cannot lose messages to retention: a subscription retains unacknowledged messages, and `earliest` and
    times refer to the messages that still exist. If the message index of a start is known, `jobs.since` compares the
    index instead.
    """
    start = options.start.position
    if start is None or not segments or not segments[0]["first_index"]:
        return
    if start.ledger_id < segments[0]["ledger_id"]:
        report_loss(
            f"{topic} begins with message {segments[0]['first_index']} in ledger {segments[0]['ledger_id']}; messages "
            f"from {start.ledger_id}:{start.entry_id} on were trimmed",
            options,
        )


def _report_kept_by_compaction(
    topic: str, segments: Sequence[Mapping[str, Any]], options: Options, broker: Broker
) -> None:
    """Report messages that were trimmed, but may still be in the result of the broker's own compaction."""
    if segments and segments[0]["first_index"] and broker.is_compacted(topic):
        report_loss(
            f"{topic} begins with message {segments[0]['first_index']}; earlier messages may be in the result of its "
            "compaction, which only the broker can read",
            options,
        )


def report_loss(sentence: str, options: Options) -> None:
    """Log a loss of messages if `on_data_loss=report`, else raise `NotFound`."""
    if not options.report_data_loss:
        raise NotFound(f"{sentence}; option on_data_loss=report continues without them")
    _log.warning("%s", sentence)


def origin_of(name: str, ledger_id: int) -> Origin:
    """Split a partition's name into the columns `topic` and `partition`."""
    match = _PARTITION.fullmatch(name)
    topic, partition = (match[1], int(match[2])) if match else (name, -1)
    return Origin(topic=topic, partition=partition, ledger_id=ledger_id, name=name)


def slices(partition: dict[str, Any], options: Options) -> Iterator[Slice]:
    """Yield the slices of one partition, one for each segment, from the broker's list of segments."""
    if options.start.latest or options.end == Bound():
        return  # the range is empty: it starts at the topic's end, or ends at its beginning
    end = partition["end"]
    for segment in partition["segments"]:
        ledger_id, last_entry = segment["ledger_id"], segment["last_entry"]
        if ledger_id == end["ledger"]:
            last_entry = end["entry"]
        window = _window(segment, options)
        if window is None or last_entry < 0:
            continue
        piece = slice_of(partition["topic"], segment, last_entry, window)
        if piece is not None:
            yield piece


def slice_of(partition: str, segment: Mapping[str, Any], last_entry: int, window: Window) -> Slice | None:
    """Return the slice of a segment's entries that are in `window` and not after `last_entry`; None if it is empty."""
    first, stop = window.first[0], min(window.entry_end, last_entry + 1)
    if first >= stop:
        return None
    return Slice(
        origin=origin_of(partition, segment["ledger_id"]),
        first_entry=first,
        end_entry=stop,
        window=window.narrowed(first, stop),
        archived=archived_object(segment),
        bytes=round(segment["bytes"] * (stop - first) / (last_entry + 1)),
    )


def archived_object(segment: Mapping[str, Any]) -> ArchivedObject | None:
    """Return a segment's location in the archive from the broker's response; None if it is not archived."""
    pointer = segment["archive"]
    if not pointer:
        return None
    return ArchivedObject(**{key: pointer[key] for key in ("store", "name", "bytes", "crc")})


def _window(segment: dict[str, Any], options: Options) -> Window | None:
    """Return the window of a segment that the options select; None if none of its rows can match."""
    start, end, ledger_id = options.start, options.end, segment["ledger_id"]
    if not may_contain(segment, start.time_ms, end.time_ms):
        return None
    first, stop = (0, 0), Window().end
    if start.position is not None:
        if ledger_id < start.position.ledger_id:
            return None
        if ledger_id == start.position.ledger_id:
            first = start.position[1:]
    if end.position is not None:
        if ledger_id > end.position.ledger_id:
            return None
        if ledger_id == end.position.ledger_id:
            stop = end.position[1:]
    if "end_entry" in segment:
        first, stop = max(first, (segment["first_entry"], 0)), min(stop, (segment["end_entry"], 0))
    return Window(first, stop, start.time_ms, end.time_ms)


def topics_of(options: Options, broker: Broker) -> list[str]:
    """Return the topics that the options list, or the existing topics that match their pattern."""
    if options.pattern is None:
        return list(options.topics)
    tenant, namespace, pattern = options.pattern
    prefix = f"persistent://{tenant}/{namespace}/"
    found: dict[str, None] = {}
    for name in broker.topics(tenant, namespace):
        match = _PARTITION.fullmatch(name)
        parent = match[1] if match and broker.partitions(match[1]) else name
        if re.fullmatch(pattern, parent.removeprefix(prefix)):
            found[parent] = None
    return list(found)


def _partitions(topic: str, options: Options, broker: Broker) -> Iterator[dict[str, Any]]:
    times = options.start.time_ms, options.end.time_ms
    answer = load_segments(topic, broker, *times)
    if not answer["partitions"]:
        yield answer
    for i in range(answer["partitions"]):
        yield load_segments(f"{topic}-partition-{i}", broker, *times)


def load_segments(
    topic: str, broker: Broker, start_ms: int | None = None, end_ms: int | None = None
) -> dict[str, Any]:
    """Return the result of `Broker.segments`, verified to be complete.

    Raises `CorruptionError` if it is still incomplete after `ATTEMPTS` requests.
    """
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S)
        answer = broker.segments(topic, start_ms, end_ms)
        lacking = "" if answer["partitions"] else find_gap(answer)
        if not lacking:
            return answer
    raise CorruptionError(
        f"the broker's plan of {topic} is incomplete, so the query would miss messages: {lacking}; "
        f"`quire topics internal-stats {topic}` shows the segment"
    )


def find_gap(partition: dict[str, Any]) -> str:
    """Return a description of the messages that a broker's list of segments lacks; "" if it is complete."""
    segments, end = partition["segments"], partition["end"]
    for one, following in pairwise(segments):
        next_index = one["first_index"] + one["messages"]
        if next_index != following["first_index"]:
            return (
                f"segment {one['ledger_id']} ends with entry {one['last_entry']} and message {next_index - 1}, but "
                f"the next segment {following['ledger_id']} begins with message {following['first_index']}"
            )
    ends = {one["ledger_id"]: one["last_entry"] for one in segments}
    if end["entry"] >= 0 and ends.get(end["ledger"], -1) < end["entry"]:
        return f"the last confirmed entry {end['entry']} is in segment {end['ledger']}, which is missing"
    return ""
