"""Half-open ranges of a topic: by position, by time, and within one segment.

A position is (ledger, entry, batch index); `start` is the first message that is read, `end` the first that is
not. An entry that is one message has batch index 0 here (its column says -1). Positions of one partition compare in
its order, since ledger ids only grow; positions of different topics have nothing to do with each other.

Time means the *publish time* that each message carries, compared message by message; the broker's clock in the
blocks serves only to leave out what cannot match, with `CLOCK_SKEW_MS` allowed between the two clocks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from quire.runtime.errors import ConfigurationError
from quire.spark_source.protobuf import Flags, Ints

CLOCK_SKEW_MS: Final = 3_600_000
"""A message counts as published at most this long before or after the broker took it, where segments are left out."""

ENTRY_END: Final = 1 << 62
"""Beyond any entry id."""

_POSITION: Final = re.compile(r"(\d+):(\d+)(?::(\d+))?")


class Position(NamedTuple):
    """A message's place. `batch_index` 0 for an entry that is one message."""

    ledger_id: int
    entry_id: int
    batch_index: int = 0


@dataclass(frozen=True)
class Bound:
    """One end of what a user asked for: a position, a time, or (both None) the topic's own end."""

    position: Position | None = None
    time_ms: int | None = None
    latest: bool = False


def parse_bound(option: str, text: str) -> Bound:
    """`earliest`, `latest`, `ledger:entry[:batch]`, epoch ms or ISO-8601. Raises `ConfigurationError`."""
    if text.lower() in ("earliest", "latest"):
        return Bound(latest=text.lower() == "latest")
    if match := _POSITION.fullmatch(text):
        return Bound(position=Position(*(int(part or 0) for part in match.groups())))
    if text.isdigit():
        return Bound(time_ms=int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"option {option}={text!r} is neither earliest, latest, LEDGER:ENTRY[:BATCH], epoch milliseconds "
            "nor an ISO-8601 time"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Bound(time_ms=round(moment.timestamp() * 1000))


@dataclass(frozen=True)
class Window:
    """Which rows of one segment are wanted: from `first` up to and without `end`, each (entry, batch index),
    published at `start_ms` or later and before `end_ms`."""

    first: tuple[int, int] = (0, 0)
    end: tuple[int, int] = (ENTRY_END, 0)
    start_ms: int | None = None
    end_ms: int | None = None

    def narrowed(self, first_entry: int, end_entry: int) -> Window:
        """This window within the entries `[first_entry, end_entry)`."""
        return replace(self, first=max(self.first, (first_entry, 0)), end=min(self.end, (end_entry, 0)))

    @property
    def entry_end(self) -> int:
        """The first entry that holds nothing wanted."""
        return self.end[0] + (self.end[1] > 0)

    def entries(self, ids: Ints) -> tuple[int, int]:
        """The part `[first, last)` of ascending entry ids, shape (n,), that holds wanted rows."""
        return int(np.searchsorted(ids, self.first[0])), int(np.searchsorted(ids, self.entry_end))

    def rows(self, ids: Ints, entry: Ints, batch_index: Ints, publish_time_ms: Ints) -> Flags | None:
        """Which rows are wanted; None: all. Row i is message `batch_index[i]` of entry `ids[entry[i]]`."""
        masks: list[Flags] = []
        if self.first[1] and ids[0] == self.first[0]:
            masks.append((entry != 0) | (np.maximum(batch_index, 0) >= self.first[1]))
        if self.end[1] and ids[-1] == self.end[0]:
            masks.append((entry != len(ids) - 1) | (np.maximum(batch_index, 0) < self.end[1]))
        if self.start_ms is not None:
            masks.append((publish_time_ms >= self.start_ms)[entry])
        if self.end_ms is not None:
            masks.append((publish_time_ms < self.end_ms)[entry])
        keep = np.logical_and.reduce(masks) if masks else None
        return None if keep is None or keep.all() else keep

    def has(self, entry_id: int, batch_index: int, publish_time_us: int | None) -> bool:
        """Whether one row is wanted; a row without a time is, whatever times are asked for."""
        if not self.first <= (entry_id, max(batch_index, 0)) < self.end:
            return False
        if publish_time_us is None:
            return True
        after_start = self.start_ms is None or publish_time_us >= self.start_ms * 1000
        return after_start and (self.end_ms is None or publish_time_us < self.end_ms * 1000)
