"""Statistics of a topic's history: rates, sizes, keys and hot keys over time, producers, partitions.

Each task computes the sums of its slice (`Part`), and the driver merges them (`sketches`). So the driver needs the same
few megabytes for a day and for ten years. The range is divided into some fifty intervals of publish time, which `page`
draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quire.spark_source import cutting
from quire.spark_source.broker import Broker
from quire.spark_source.jobs.sketches import KEYS_KEPT, Distinct, Hot, Hottest, Sizes, add_counts
from quire.spark_source.jobs.slices import Progress, over, quietly, refuse
from quire.spark_source.options import Options, for_batch
from quire.spark_source.plan import Slice, plan
from quire.spark_source.task import read_slice

COLUMNS: Final = ("entry", "batch_index", "key", "value", "publish_time", "producer", "undecoded")
INTERVALS: Final = 50
_KEPT: Final = ("columns", "value_schema", "on_bad_value", "on_undecodable", "chunks")

_S, _MIN, _H, _D = 1000, 60_000, 3_600_000, 86_400_000
WIDTHS_MS: Final = (
    *(1, 10, 100, _S, 2 * _S, 5 * _S, 10 * _S, 30 * _S, _MIN, 2 * _MIN, 5 * _MIN, 10 * _MIN, 30 * _MIN),
    *(_H, 2 * _H, 6 * _H, 12 * _H, _D, 2 * _D, 7 * _D, 14 * _D, 28 * _D, 91 * _D, 365 * _D),
)
"""Possible lengths of an interval in milliseconds."""

PRODUCERS_SHOWN: Final = 20
HOT_KEYS_SHOWN: Final = 20
GROUPS_HELD: Final = 400_000
"""Maximum number of (key, interval) rows of one slice in memory; beyond it, equal pairs are combined."""


@dataclass
class Part:
    """Sums of one slice, or of all slices."""

    messages: int = 0
    entries: int = 0
    undecoded: int = 0
    """Number of encrypted and damaged entries, which other counts do not include."""
    nulls: int = 0
    with_key: int = 0
    sizes: Sizes = field(default_factory=Sizes)
    over_time: dict[int, int] = field(default_factory=dict)
    bytes_over_time: dict[int, int] = field(default_factory=dict)
    distinct: Distinct = field(default_factory=Distinct)
    hottest: Hottest = field(default_factory=Hottest)
    producers: dict[str, int] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)

    def merge(self, other: Part) -> None:
        self.messages += other.messages
        self.entries += other.entries
        self.undecoded += other.undecoded
        self.nulls += other.nulls
        self.with_key += other.with_key
        self.sizes.merge(other.sizes)
        self.distinct.merge(other.distinct)
        self.hottest.merge(other.hottest)
        add_counts(self.over_time, other.over_time)
        add_counts(self.bytes_over_time, other.bytes_over_time)
        add_counts(self.producers, other.producers)
        add_counts(self.partitions, other.partitions)


@dataclass
class Profile:
    """Result of a profile. Interval `n` begins at `n * interval_ms`, in publish times."""

    topics: str
    slices: int
    interval_ms: int
    sums: Part = field(default_factory=Part)

    def as_dict(self) -> dict[str, Any]:
        sums, sizes = self.sums, self.sums.sizes
        return {
            "topics": self.topics,
            "messages": sums.messages,
            "entries": sums.entries,
            "undecodable_entries": sums.undecoded,
            "null_values": sums.nulls,
            "value_bytes": sizes.bytes,
            "sizes": {
                "mean": round(sizes.bytes / max(1, sums.messages - sums.nulls)),
                **{f"p{round(100 * part)}": sizes.quantile(part) for part in (0.5, 0.9, 0.99)},
                "max": sizes.largest,
                "classes": [one._asdict() for one in sizes.octaves()],
            },
            "interval_ms": self.interval_ms,
            "over_time": [
                {
                    "start_ms": number * self.interval_ms,
                    "messages": sums.over_time.get(number, 0),
                    "bytes": sums.bytes_over_time.get(number, 0),
                }
                for number in self.intervals
            ],
            "keys": {
                "messages_with_key": sums.with_key,
                "distinct": sums.distinct.count,
                "distinct_is_exact": sums.distinct.is_exact,
                "hot_counts_are_low_by_at_most": sums.hottest.unseen,
                "hot": [
                    {
                        "key": text_of(key),
                        "messages": hot.messages,
                        "bytes": hot.bytes,
                        "over_time": [hot.over_time.get(number, 0) for number in self.intervals],
                    }
                    for key, hot in sums.hottest.top(HOT_KEYS_SHOWN)
                ],
            },
            "producers": [{"producer": name, "messages": count} for name, count in _largest(sums.producers)],
            "partitions": [
                {"partition": name, "messages": sums.partitions[name]} for name in sums.partitions
            ],
        }

    @property
    def intervals(self) -> Sequence[int]:
        """Numbers of the intervals from the first to the last message.

        There are at most `20 * INTERVALS`, the latest ones, because wrong clocks may make the range very long.
        """
        used = sorted(self.sums.over_time)
        if not used:
            return []
        if used[-1] - used[0] < 20 * INTERVALS:
            return range(used[0], used[-1] + 1)
        return used[-20 * INTERVALS :]


def text_of(key: bytes) -> str:
    """Return a key as text for display."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else repr(text)


def _largest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:PRODUCERS_SHOWN]


def profile(
    options: Mapping[str, str], *, spark: Any = None, dry_run: bool = False, progress: Progress = quietly
) -> Profile:
    """Compute the statistics of a query. `options` are reading options. Raises the errors of reading."""
    refuse(options, _KEPT, "is not allowed for profiles, which choose what they read")
    parsed = replace(for_batch(options), columns=COLUMNS, keep_raw=True)
    broker = parsed.broker
    pieces = cutting.slices(plan(parsed, broker), parsed)
    name = ", ".join(dict.fromkeys(piece.origin.topic for piece in pieces)) or ", ".join(parsed.topics)
    found = Profile(name, len(pieces), _interval_ms(parsed, pieces, broker))
    if dry_run:
        return found
    for piece in pieces:
        found.sums.partitions.setdefault(piece.origin.name, 0)
    for part in over(partial(profile_slice, parsed, found.interval_ms), pieces, spark, progress):
        found.sums.merge(part)
    return found


CLOCK_SKEW_MS: Final = 3_600_000
"""Assumed greatest difference of producers' and brokers' clocks; used to choose the length of intervals."""


def _interval_ms(options: Options, pieces: Sequence[Slice], broker: Broker) -> int:
    """Choose a length that divides the range into some fifty intervals, by the brokers' clocks."""
    ledgers = {(piece.origin.name, piece.origin.ledger_id) for piece in pieces}
    first, last = [], []
    for name in dict.fromkeys(piece.origin.name for piece in pieces):
        for segment in broker.segments(name)["segments"]:
            if (name, segment["ledger_id"]) in ledgers:
                first.append(segment["first_clock_ms"])
                last.append(segment["last_clock_ms"])
    start, end = min(first, default=0), max(last, default=0)
    if options.start.time_ms is not None:
        start = max(start - CLOCK_SKEW_MS, options.start.time_ms)
    if options.end.time_ms is not None:
        end = min(end + CLOCK_SKEW_MS, options.end.time_ms)
    wanted = max(0, end - start) / INTERVALS
    return next((width for width in WIDTHS_MS if width >= wanted), WIDTHS_MS[-1])


def profile_slice(options: Options, interval_ms: int, piece: Slice) -> Part:
    """Compute the sums of one slice."""
    part = Part()
    groups: list[pa.Table] = []
    last = -1
    for batch in read_slice(piece, options):
        rows = pa.Table.from_batches([batch])
        is_message = pc.is_null(rows["undecoded"])
        part.undecoded += len(rows) - pc.sum(is_message).as_py()
        rows = rows.filter(is_message)
        if not len(rows):
            continue
        ids = rows["entry"].to_numpy()
        part.entries += int((np.diff(ids, prepend=last) != 0).sum())
        last = int(ids[-1])
        groups.append(_count(part, rows, interval_ms))
        if sum(map(len, groups)) > GROUPS_HELD:
            groups = [_summed(groups)]
    part.partitions[piece.origin.name] = part.messages
    if groups:
        _keys(part, _summed(groups))
    return part


def _count(part: Part, rows: pa.Table, interval_ms: int) -> pa.Table:
    """Add a batch of messages to the sums, and return the batch's counts by key and interval."""
    part.messages += len(rows)
    part.nulls += rows["value"].null_count
    part.with_key += len(rows) - rows["key"].null_count
    sizes = pc.cast(pc.binary_length(rows["value"]), pa.int64())
    part.sizes.count(sizes.drop_null().to_numpy())
    times = pc.divide(rows["publish_time"].cast(pa.int64()), 1000 * interval_ms)
    sizes = pc.fill_null(sizes, 0)
    every = pa.table({"key": rows["key"], "interval": times, "messages": sizes, "bytes": sizes})
    sums = every.group_by("interval").aggregate([("messages", "count"), ("bytes", "sum")]).to_pydict()
    add_counts(part.over_time, dict(zip(sums["interval"], sums["messages_count"], strict=True)))
    add_counts(part.bytes_over_time, dict(zip(sums["interval"], sums["bytes_sum"], strict=True)))
    for one in pc.value_counts(rows["producer"]).to_pylist():
        add_counts(part.producers, {one["values"]: one["counts"]})
    keyed = every.filter(pc.is_valid(every["key"]))
    found = keyed.group_by(["key", "interval"]).aggregate([("messages", "count"), ("bytes", "sum")])
    return found.select(["key", "interval", "messages_count", "bytes_sum"]).rename_columns(every.column_names)


def _summed(groups: Sequence[pa.Table]) -> pa.Table:
    names = groups[0].column_names
    found = pa.concat_tables(groups).group_by(["key", "interval"])
    return (
        found.aggregate([("messages", "sum"), ("bytes", "sum")])
        .select(["key", "interval", "messages_sum", "bytes_sum"])
        .rename_columns(names)
    )


def _keys(part: Part, groups: pa.Table) -> None:
    """Add the slice's keys to the sums: the number of different keys, and the hottest keys by interval."""
    sums = groups.group_by("key").aggregate([("messages", "sum")])
    part.distinct.add_keys(sums["key"].to_pylist())
    top = sums.take(pc.select_k_unstable(sums, KEYS_KEPT + 1, [("messages_sum", "descending")]))
    if len(top) > KEYS_KEPT:
        part.hottest.unseen = top["messages_sum"][KEYS_KEPT].as_py()
        top = top.slice(0, KEYS_KEPT)
    hottest = groups.filter(pc.is_in(groups["key"], value_set=top["key"].combine_chunks()))
    for row in hottest.to_pylist():
        one = Hot(row["messages"], row["bytes"], {row["interval"]: row["messages"]})
        part.hottest.keys.setdefault(row["key"], Hot()).merge(one)
