"""Offsets: the progress of a stream in each partition.

Spark stores them in its checkpoint as JSON, and compares the text, so keys are sorted:

    {"persistent://public/default/t-partition-0":
        {"batch": 0, "entry": 12, "generation": 1767225600000, "index": 3400, "ledger": 5}, …}

An offset is the position of the first message that is not read yet, and its index in the partition. Indexes grow by one
per message, so they prove that a stream misses nothing: the difference of two offsets' indexes is the number of
messages between them. If a partition's oldest message comes after an offset, the messages in between are lost.

The ledger and the generation identify the incarnation of the topic. Ledger ids are unique, so an offset belongs to this
topic if the offset's ledger contains its message. An offset at the end of its ledger belongs to the topic if that
ledger precedes the ledger of the next message. It also does if that ledger was trimmed, and the generation is the
topic's. Every other offset is refused. Offsets written by older versions have no generation (0), which matches any.

Two positions may be equivalent: the end of a ledger, and the first entry of the next ledger. So an offset keeps its
position as long as its index does not change.

A partition that a stream's offset lacks was added later, and is read from its first message (`BEGINNING`).
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
    """Position and index in the partition of the first message that is not read yet: message `batch` of an entry."""

    batch: int
    entry: int
    index: int
    ledger: int
    generation: int = 0
    """Generation of the topic; 0 if unknown."""


BEGINNING: Final = Offset(batch=0, entry=0, index=0, ledger=-1)
"""Offset before all messages that were ever published to a partition."""

Offsets = Mapping[str, Offset]
"""Offsets by the full names of partitions."""


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return the JSON value for Spark's checkpoint: equal offsets have equal texts.

    An offset that an older version wrote keeps its text, without a generation.
    """
    return {name: _json(offsets[name]) for name in sorted(offsets)}


def _json(offset: Offset) -> dict[str, int]:
    fields = asdict(offset)
    return {key: fields[key] for key in sorted(fields) if key != _GENERATION or offset.generation}


def from_json(value: Mapping[str, Any]) -> dict[str, Offset]:
    """Parse the offsets of a checkpoint. Raises `ConfigurationError` for the checkpoint of another source."""
    try:
        return {
            name: Offset(
                **{key: int(one[key]) for key in _FIELDS if key != _GENERATION},
                generation=int(one.get(_GENERATION, 0)),
            )
            for name, one in value.items()
        }
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ConfigurationError(
            f"{str(value)[:200]} is not an offset of a stream of format quire; is the checkpoint another query's?"
        ) from None


_FIELDS: Final = tuple(Offset.__dataclass_fields__)
_GENERATION: Final = "generation"


class Place(NamedTuple):
    """Offset at which reading continues, and the number of messages that were lost before it."""

    offset: Offset
    lost: int


@dataclass(frozen=True)
class Partition:
    """Snapshot of a partition on the broker: its segments, oldest first, and its end."""

    name: str
    segments: tuple[Mapping[str, Any], ...]
    end: Offset
    generation: int = 0
    """Generation of the topic, which changes when the topic is deleted and created again; 0 if unknown."""

    def offset(self, ledger: int, entry: int, batch: int, index: int) -> Offset:
        """Return an offset of this incarnation of the topic."""
        return Offset(batch=batch, entry=entry, index=index, ledger=ledger, generation=self.generation)

    @property
    def first_index(self) -> int:
        """Index of the oldest message that exists."""
        return int(self.segments[0]["first_index"]) if self.segments else self.end.index

    def place(self, at: Offset) -> Place:
        """Return the place at which reading continues. Raises `ConfigurationError` for an offset of another topic."""
        if at.index > self.end.index:
            raise self._foreign(at, f"the topic ends before message {self.end.index}")
        if at.index < self.first_index:
            return Place(self._oldest(at), self.first_index - at.index)
        number = self._segment_of(at.index)
        if number is None:  # at the end of the topic
            if self.segments and at.ledger < self.segments[-1]["ledger_id"]:
                raise self._foreign(at, f"that message is of ledger {self.segments[-1]['ledger_id']}")
            if not self.segments:
                self._check_generation(at)
            return Place(at, 0)
        ledger_id, first_index = int(self.segments[number]["ledger_id"]), self.segments[number]["first_index"]
        if at.ledger == ledger_id:
            return Place(at, 0)
        if at.ledger > ledger_id or at.index != first_index:
            raise self._foreign(at, f"that message is in ledger {ledger_id}")
        before = self.segments[number - 1]["ledger_id"] if number else None
        if before is None:
            self._check_generation(at)
        elif at.ledger != before:
            raise self._foreign(at, f"the previous message is in ledger {before}")
        return Place(self.offset(ledger_id, 0, 0, first_index), 0)

    def _oldest(self, at: Offset) -> Offset:
        """Return the offset of the oldest message. `at` is an offset before it, whose generation is checked."""
        self._check_generation(at)
        if not self.segments:
            return self.end
        ledger_id = int(self.segments[0]["ledger_id"])
        if at.ledger >= ledger_id:
            raise self._foreign(at, f"the topic begins with message {self.first_index} in ledger {ledger_id}")
        return self.offset(ledger_id, 0, 0, self.first_index)

    def _segment_of(self, index: int) -> int | None:
        """Return the list index of the segment that contains a message."""
        for number, one in enumerate(self.segments):
            if one["first_index"] <= index < one["first_index"] + one["messages"]:
                return number
        return None

    def _check_generation(self, at: Offset) -> None:
        """Raise `ConfigurationError` for an offset of a deleted topic of the same name."""
        if at.generation and self.generation and at.generation != self.generation:
            raise self._foreign(
                at, f"its generation is {self.generation}, but the offset's is {at.generation}"
            )

    def _foreign(self, at: Offset, instead: str) -> ConfigurationError:
        return ConfigurationError(
            f"the stream is at message {at.index} in ledger {at.ledger} of {self.name}, but {instead}: the topic was "
            "deleted and created again, or the checkpoint belongs to another topic; begin with a new checkpoint"
        )

    # -- between two offsets ---------------------------------------------------------------------------

    def between(self, start: Offset, end: Offset) -> Iterator[Slice]:
        """Yield slices of all messages from `start` to `end`. Both are results of `place`, or the partition's end."""
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
        """Estimate the bytes between two message indexes, as if all messages of a segment had the same size."""
        return round(sum(size for _, _, size in self._parts(start_index, end_index)))

    def index_after(self, start_index: int, size: int) -> int:
        """Return the message index about `size` bytes after `start_index`."""
        left = float(size)
        for first, last, part in self._parts(start_index, self.end.index):
            if part >= left:
                return first + int((last - first) * left / part)
            left -= part
        return self.end.index

    def _parts(self, start_index: int, end_index: int) -> Iterator[tuple[int, int, float]]:
        """Yield (first index, index after the last, bytes) for the part of each segment between two message indexes."""
        for one in self.segments:
            first, last = one["first_index"], one["first_index"] + one["messages"]
            begin, stop = max(first, start_index), min(last, end_index)
            if begin < stop:
                yield begin, stop, one["bytes"] * (stop - begin) / one["messages"]


@dataclass(frozen=True)
class Limits:
    """Limits of a micro-batch; None means no limit. The limit of rows is exact, the limit of bytes approximate."""

    rows: int | None = None
    bytes: int | None = None


def limited(partitions: Mapping[str, Partition], starts: Mapping[str, int], limits: Limits) -> dict[str, int]:
    """Return the index at which a micro-batch ends in each partition that has messages after `starts`.

    The limits are shared in proportion to the partitions' backlogs, so that all partitions catch up at the same time.
    Each partition gets at least one message, if the limit of rows allows it.
    """
    news = {name: one.end.index - starts[name] for name, one in partitions.items()}
    news = {name: rows for name, rows in news.items() if rows > 0}
    ends = {name: partitions[name].end.index for name in news}
    total = sum(news.values())
    if limits.rows is not None and limits.rows < total:
        shares = _shared(news, limits.rows, turn=sum(starts.values()))
        ends = {name: starts[name] + rows for name, rows in shares.items()}
    sizes = {name: partitions[name].bytes_between(starts[name], ends[name]) for name in ends}
    total = sum(sizes.values())
    if limits.bytes is not None and limits.bytes < total:
        for name, size in sizes.items():
            after = partitions[name].index_after(starts[name], size * limits.bytes // total)
            ends[name] = min(ends[name], max(starts[name] + 1, after))
    return ends


def _shared(news: Mapping[str, int], rows: int, turn: int) -> dict[str, int]:
    """Share a limit of rows in proportion to the backlogs `news`, with at least one row for each partition.

    If there are fewer rows than partitions, each micro-batch serves the next partitions, round-robin, from number
    `turn` on. `turn` grows by the rows of each micro-batch.
    """
    names = sorted(news)
    if rows < len(names):
        return {names[(turn + i) % len(names)]: 1 for i in range(rows)}
    total = sum(news.values())
    shares = {name: max(1, news[name] * rows // total) for name in names}
    while (above := sum(shares.values()) - rows) > 0:
        largest = max(shares, key=lambda name: shares[name])
        shares[largest] -= min(above, max(1, shares[largest] - rows // len(names)))
    return shares
