"""From a broker's answer to the slices that are to be read.

A topic partition is a list of segments; the broker tells where each lies (`quire.spark_source.broker` has the
endpoints and their JSON). What is wanted of a segment is a slice: a range of entries, so that the same slice can be
read from the archive or through the broker, whichever has the segment when the task runs. `cutting` makes tasks of
them. A plan does no reading of its own but one request for each partition, and ends where the topic ended at that
moment.

A plan proves that it is whole: each segment's messages go on where those of the one before end, by the numbers that the
topic gives them, and the segment with the last confirmed entry is among them. An answer that does not is asked for
again, and then refused: a query may fail, but it never returns less than there is.

Spark plans once per DataFrame: a long-lived one never sees later messages, and may name segments that retention has
removed meanwhile, which its tasks then report.
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
from quire.spark_source.positions import CLOCK_SKEW_MS, Bound, Position, Window

_PARTITION: Final = re.compile(r"(.+)-partition-(\d+)")

_log = logging.getLogger(__name__)

ATTEMPTS: Final = 4
PAUSE_S: Final = 0.25
"""Between two attempts to get a plan that is whole."""


@dataclass(frozen=True)
class ArchivedObject:
    """Where a segment lies in the archive: store's URL, object's name, its length in bytes and its footer's CRC."""

    store: str
    name: str
    bytes: int
    crc: int


@dataclass(frozen=True)
class Slice:
    """Entries `[first_entry, end_entry)` of one segment, and of them the rows in `window`."""

    origin: Origin
    first_entry: int
    end_entry: int
    window: Window
    archived: ArchivedObject | None
    bytes: int = 0
    """About how many its blocks have: a segment's are taken to be spread evenly over its entries."""

    def part(self, first_entry: int, end_entry: int) -> Slice:
        """Some of its entries."""
        share = (end_entry - first_entry) / (self.end_entry - self.first_entry)
        return replace(
            self,
            first_entry=first_entry,
            end_entry=end_entry,
            window=self.window.narrowed(first_entry, end_entry),
            bytes=round(self.bytes * share),
        )


def plan(options: Options, broker: Broker) -> list[Slice]:
    """What a query wants of each segment, in the topics' order.

    Raises `NotFound`, `Unavailable`, `ConfigurationError`, `CorruptionError`.
    """
    topics = topics_of(options, broker)
    if not topics and options.pattern:
        tenant, namespace, pattern = options.pattern
        raise ConfigurationError(f"no topic of {tenant}/{namespace} matches topics_pattern {pattern!r}")
    partitions = [partition for topic in topics for partition in _partitions(topic, broker)]
    by_position = options.start.position or options.end.position
    if by_position and len(partitions) != 1:
        raise ConfigurationError(
            f"start and end by position name a place in one partition, but {len(partitions)} are read; "
            "use a time, or name the partition"
        )
    return [
        piece for partition in partitions for piece in slices(partition, _started(partition, options, broker))
    ]


def _started(partition: dict[str, Any], options: Options, broker: Broker) -> Options:
    """The options for one partition: `starting_subscription` is a position, and one that was given is there."""
    if options.starting_subscription is not None:
        start = subscription_position(partition["topic"], options.starting_subscription, broker)
        return replace(options, start=Bound(position=start))
    _check_start(partition, options)
    report_trimmed(partition["topic"], partition["segments"], options)
    if options.compacted and options.starts_at_beginning:
        _report_outlived(partition["topic"], partition["segments"], options, broker)
    return options


def _check_start(partition: Mapping[str, Any], options: Options) -> None:
    """A position beyond the topic's end is another topic's. Raises `ConfigurationError`."""
    start, segments = options.start.position, partition["segments"]
    if start is None or not segments:
        return
    last = segments[-1]
    if start > (last["ledger_id"], last["last_entry"] + 1, 0):
        raise ConfigurationError(
            f"start={start.ledger_id}:{start.entry_id} lies beyond the end of {partition['topic']}, whose last entry "
            f"is {last['ledger_id']}:{last['last_entry']}; is it a position of another topic?"
        )


def subscription_position(topic: str, subscription: str, broker: Broker) -> Position:
    """The entry after the last one up to which a durable subscription has acknowledged all. Raises `NotFound`."""
    cursor = broker.cursor(topic, subscription)
    if cursor is None:
        raise NotFound(f"topic {topic} has no durable subscription {subscription} to start at")
    return Position(cursor.ledger_id, cursor.entry_id + 1)


def report_trimmed(topic: str, segments: Sequence[Mapping[str, Any]], options: Options) -> None:
    """What was at a start by position may be gone.

    The other starts name nothing that retention can take: a subscription holds back what it has not acknowledged, and
    `earliest` and times mean what is there.
    """
    start = options.start.position
    if start is None or not segments or not segments[0]["first_index"]:
        return
    if start.ledger_id < segments[0]["ledger_id"]:
        report_loss(
            f"{topic} begins with message {segments[0]['first_index']} in ledger {segments[0]['ledger_id']}, and what "
            f"was at {start.ledger_id}:{start.entry_id} was trimmed",
            options,
        )


def _report_outlived(
    topic: str, segments: Sequence[Mapping[str, Any]], options: Options, broker: Broker
) -> None:
    """The last message of a key outlives retention on the broker, where a compaction has kept it."""
    if segments and segments[0]["first_index"] and broker.is_compacted(topic):
        report_loss(
            f"{topic} begins with message {segments[0]['first_index']}, and what its compaction keeps of those before "
            "is the broker's own",
            options,
        )


def report_loss(sentence: str, options: Options) -> None:
    """What retention took is a warning, or (without `on_data_loss=report`) the end: raises `NotFound`."""
    if not options.report_data_loss:
        raise NotFound(f"{sentence}; option on_data_loss=report goes on without it")
    _log.warning("%s", sentence)


def origin_of(name: str, ledger_id: int) -> Origin:
    """A partition's name as the columns `topic` and `partition`."""
    match = _PARTITION.fullmatch(name)
    topic, partition = (match[1], int(match[2])) if match else (name, -1)
    return Origin(topic=topic, partition=partition, ledger_id=ledger_id, name=name)


def slices(partition: dict[str, Any], options: Options) -> Iterator[Slice]:
    """What is wanted of one partition, a slice of each segment, from what the broker says of it."""
    if options.start.latest or options.end == Bound():
        return  # nothing after the end, nothing before the beginning
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
    """What `window` wants of a segment's entries up to and with `last_entry`; None when that is nothing."""
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
    """Where the broker says a segment is archived; None when it is not."""
    pointer = segment["archive"]
    if not pointer:
        return None
    return ArchivedObject(**{key: pointer[key] for key in ("store", "name", "bytes", "crc")})


def _window(segment: dict[str, Any], options: Options) -> Window | None:
    """Which rows of a segment are wanted; None when surely none is."""
    start, end, ledger_id = options.start, options.end, segment["ledger_id"]
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
    too_old = start.time_ms is not None and segment["last_clock_ms"] < start.time_ms - CLOCK_SKEW_MS
    if too_old and segment["state"] != "active":
        return None
    if end.time_ms is not None and segment["first_clock_ms"] > end.time_ms + CLOCK_SKEW_MS:
        return None
    return Window(first, stop, start.time_ms, end.time_ms)


def topics_of(options: Options, broker: Broker) -> list[str]:
    """The topics that are asked for by name, or those that match the pattern now."""
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


def _partitions(topic: str, broker: Broker) -> Iterator[dict[str, Any]]:
    answer = whole(topic, broker)
    if not answer["partitions"]:
        yield answer
    for i in range(answer["partitions"]):
        yield whole(f"{topic}-partition-{i}", broker)


def whole(topic: str, broker: Broker) -> dict[str, Any]:
    """What the broker says of a topic, proven to lack nothing. Raises `CorruptionError` when it stays incomplete."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S)
        answer = broker.segments(topic)
        lacking = "" if answer["partitions"] else what_lacks(answer)
        if not lacking:
            return answer
    raise CorruptionError(
        f"the broker's plan of {topic} is not whole, so the query would return too little: {lacking}; "
        f"see what `quire topics internal-stats {topic}` says of the segment"
    )


def what_lacks(partition: dict[str, Any]) -> str:
    """What is missing in a broker's answer, with segment and entry; nothing when it is whole."""
    segments, end = partition["segments"], partition["end"]
    for one, following in pairwise(segments):
        next_index = one["first_index"] + one["messages"]
        if next_index != following["first_index"]:
            return (
                f"segment {one['ledger_id']} ends with entry {one['last_entry']} and message {next_index - 1}, but "
                f"segment {following['ledger_id']}, which comes next, begins with message {following['first_index']}"
            )
    ends = {one["ledger_id"]: one["last_entry"] for one in segments}
    if end["entry"] >= 0 and ends.get(end["ledger"], -1) < end["entry"]:
        return (
            f"segment {end['ledger']} with the last confirmed entry {end['entry']} is not among the segments"
        )
    return ""
