"""Half-open ranges of a topic: by position, by time, and within one segment.

A position is (ledger, entry, batch index); `start` is the first message that is read, `end` the first one that is not.
An entry that is one message has batch index 0 here (and -1 in the column `batch_index`). The order of positions is the
order of messages in a partition, since ledger ids only grow. Positions of different topics cannot be compared.

A time is compared with the *publish time* of each message. `pruning` skips segments that cannot match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from quire.runtime.errors import ConfigurationError
from quire.spark_source.protobuf import Flags, Ints

ENTRY_END: Final = 1 << 62
"""Greater than every entry id."""

_POSITION: Final = re.compile(r"(\d+):(\d+)(?::(\d+))?")


class Position(NamedTuple):
    """Position of a message. `batch_index` is 0 for an entry that is one message."""

    ledger_id: int
    entry_id: int
    batch_index: int = 0


@dataclass(frozen=True)
class Bound:
    """Start or end of a range: a position or a time. If both are None, it is the start or end of the topic."""

    position: Position | None = None
    time_ms: int | None = None
    latest: bool = False


def parse_bound(option: str, text: str) -> Bound:
    """Parse `earliest`, `latest`, `ledger:entry[:batch]`, epoch ms or ISO-8601. Raises `ConfigurationError`."""
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
    """Range of rows in one segment: `[first, end)`, both of which are pairs (entry, batch index).

    It includes only rows that were published at `start_ms` or later and before `end_ms`.
    """

    first: tuple[int, int] = (0, 0)
    end: tuple[int, int] = (ENTRY_END, 0)
    start_ms: int | None = None
    end_ms: int | None = None

    def narrowed(self, first_entry: int, end_entry: int) -> Window:
        """Return the part of this window within the entries `[first_entry, end_entry)`."""
        return replace(self, first=max(self.first, (first_entry, 0)), end=min(self.end, (end_entry, 0)))

    @property
    def entry_end(self) -> int:
        """First entry after the window."""
        return self.end[0] + (self.end[1] > 0)

    def entries(self, ids: Ints) -> tuple[int, int]:
        """Return the range `[first, last)` of the indexes into `ids` whose entries are in the window.

        `ids` are ascending entry ids, of shape (n,).
        """
        return int(np.searchsorted(ids, self.first[0])), int(np.searchsorted(ids, self.entry_end))

    def rows(self, ids: Ints, entry: Ints, batch_index: Ints, publish_time_ms: Ints) -> Flags | None:
        """Return a mask of the rows in the window; None if all are in it.

        Row i is message `batch_index[i]` of entry `ids[entry[i]]`.
        """
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
        """Return whether one row is in the window; a row without a time matches every time range."""
        if not self.first <= (entry_id, max(batch_index, 0)) < self.end:
            return False
        if publish_time_us is None:
            return True
        after_start = self.start_ms is None or publish_time_us >= self.start_ms * 1000
        return after_start and (self.end_ms is None or publish_time_us < self.end_ms * 1000)
