"""Offsets: how far a stream has come in each partition.

Spark keeps them in its checkpoint as JSON, with sorted keys, since it compares the text:

    {"persistent://public/default/t-partition-0": {"batch": 0, "entry": 12, "index": 3400, "ledger": 5}, …}

An offset is half-open: it names the first message that is not read yet, by its position and by its index in the
partition, which grows by one a message. The index is what proves that a stream lacks nothing: the messages between two
offsets are as many as their indexes say, and a partition whose first message comes after an offset has lost what lies
between. The position says of which incarnation of the topic the index is: an offset whose ledger does not go with its
index is of another topic, and refused.

Two positions may name one place: behind the last entry of a ledger, and the first of the next one. So an offset stays
as it is while its index does.

A partition that is not in a stream's offset was added later, and is read from its first message on: from `BEGINNING`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from quire.runtime.errors import ConfigurationError
from quire.spark_source.plan import Slice, slice_of
from quire.spark_source.positions import ENTRY_END, Window


@dataclass(frozen=True)
class Offset:
    """The first message that is not read yet: message `batch` of an entry, and its index in the partition."""

    batch: int
    entry: int
    index: int
    ledger: int


BEGINNING: Final = Offset(batch=0, entry=0, index=0, ledger=-1)
"""Before everything that was ever published to a partition."""

Offsets = Mapping[str, Offset]
"""By the full names of partitions."""


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """What Spark writes down: equal offsets become equal texts."""
    return {name: asdict(offsets[name]) for name in sorted(offsets)}


def from_json(value: Mapping[str, Any]) -> dict[str, Offset]:
    """The reverse. Raises `ConfigurationError` for what is no offset of a stream of format quire."""
    try:
        return {name: Offset(**{key: int(one[key]) for key in _FIELDS}) for name, one in value.items()}
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ConfigurationError(
            f"{str(value)[:200]} is no offset of a stream of format quire; is the checkpoint another query's?"
        ) from None


_FIELDS: Final = tuple(Offset.__dataclass_fields__)


class Place(NamedTuple):
    """Where reading begins that goes on at an offset, and how many messages before it are gone."""

    offset: Offset
    lost: int


@dataclass(frozen=True)
class Partition:
    """One partition as the broker described it at one moment: its segments, oldest first, and where it ends."""

    name: str
    segments: tuple[Mapping[str, Any], ...]
    end: Offset

    @property
    def first_index(self) -> int:
        """Of the oldest message that is there."""
        return int(self.segments[0]["first_index"]) if self.segments else self.end.index

    def place(self, at: Offset) -> Place:
        """Where reading goes on. Raises `ConfigurationError` for an offset of another topic."""
        if at.index > self.end.index:
            raise self._foreign(at, f"the topic ends before message {self.end.index}")
        if at.index < self.first_index:
            return Place(self._first(at), self.first_index - at.index)
        segment = self._segment_of(at.index)
        if segment is None:  # at the end, where nothing is read
            if self.segments and at.ledger < self.segments[-1]["ledger_id"]:
                raise self._foreign(at, f"that message is of ledger {self.segments[-1]['ledger_id']}")
            return Place(at, 0)
        ledger_id, first_index = int(segment["ledger_id"]), int(segment["first_index"])
        if at.ledger == ledger_id:
            return Place(at, 0)
        if at.ledger > ledger_id or at.index != first_index:
            raise self._foreign(at, f"that message is of ledger {ledger_id}")
        return Place(Offset(batch=0, entry=0, index=first_index, ledger=ledger_id), 0)

    def _first(self, at: Offset) -> Offset:
        """The first message that is there, for an offset before it."""
        if not self.segments:
            return self.end
        ledger_id = int(self.segments[0]["ledger_id"])
        if at.ledger >= ledger_id:
            raise self._foreign(at, f"the topic begins with message {self.first_index} in ledger {ledger_id}")
        return Offset(batch=0, entry=0, index=self.first_index, ledger=ledger_id)

    def _segment_of(self, index: int) -> Mapping[str, Any] | None:
        for one in self.segments:
            if one["first_index"] <= index < one["first_index"] + one["messages"]:
                return one
        return None

    def _foreign(self, at: Offset, instead: str) -> ConfigurationError:
        return ConfigurationError(
            f"the stream stands at message {at.index} in ledger {at.ledger} of {self.name}, but {instead}: the topic "
            "was deleted and made anew, or the checkpoint is of another topic; begin with a new checkpoint"
        )

    # -- what lies between two offsets -----------------------------------------------------------------

    def between(self, start: Offset, end: Offset) -> Iterator[Slice]:
        """Slices with all messages from `start` to `end`, both where `place` finds them or at the end."""
        for segment in self.segments:
            first_index = segment["first_index"]
            if first_index >= end.index or first_index + segment["messages"] <= start.index:
                continue
            ledger_id = segment["ledger_id"]
            window = Window(
                first=(start.entry, start.batch) if start.ledger == ledger_id else (0, 0),
                end=(end.entry, end.batch) if end.ledger == ledger_id else (ENTRY_END, 0),
            )
            piece = slice_of(self.name, segment, segment["last_entry"], window)
            if piece is not None:
                yield piece

    def bytes_between(self, start_index: int, end_index: int) -> int:
        """About how many: as if a segment's bytes were spread evenly over its messages."""
        return round(sum(size for _, _, size in self._parts(start_index, end_index)))

    def index_after(self, start_index: int, size: int) -> int:
        """The index that is about `size` bytes after another one."""
        left = float(size)
        for first, last, part in self._parts(start_index, self.end.index):
            if part >= left:
                return first + int((last - first) * left / part)
            left -= part
        return self.end.index

    def _parts(self, start_index: int, end_index: int) -> Iterator[tuple[int, int, float]]:
        """(first index, one after the last, bytes) of each segment's part that lies between."""
        for one in self.segments:
            first, last = one["first_index"], one["first_index"] + one["messages"]
            begin, stop = max(first, start_index), min(last, end_index)
            if begin < stop:
                yield begin, stop, one["bytes"] * (stop - begin) / one["messages"]


@dataclass(frozen=True)
class Limits:
    """How much a micro-batch may have; None: no limit. Each partition that has news moves by one message at least."""

    rows: int | None = None
    bytes: int | None = None


def limited(partitions: Mapping[str, Partition], starts: Mapping[str, int], limits: Limits) -> dict[str, int]:
    """The index at which each partition's part of a micro-batch ends, of those that have messages after `starts`.

    The limits are shared out by what waits in each partition, so that all come to their end together.
    """
    news = {name: one.end.index - starts[name] for name, one in partitions.items()}
    news = {name: rows for name, rows in news.items() if rows > 0}
    ends = {name: partitions[name].end.index for name in news}
    total = sum(news.values())
    if limits.rows is not None and limits.rows < total:
        for name, rows in news.items():
            ends[name] = starts[name] + max(1, rows * limits.rows // total)
    sizes = {name: partitions[name].bytes_between(starts[name], ends[name]) for name in news}
    total = sum(sizes.values())
    if limits.bytes is not None and limits.bytes < total:
        for name, size in sizes.items():
            after = partitions[name].index_after(starts[name], size * limits.bytes // total)
            ends[name] = min(ends[name], max(starts[name] + 1, after))
    return ends
