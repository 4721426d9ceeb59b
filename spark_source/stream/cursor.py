"""The durable cursor of a stream: a subscription on the broker, of the name `stream_name`, in each partition.

Spark asks a new query where it begins, and asks again after a restart until the first micro-batch is committed; nothing
of the answer is in the checkpoint until then. "Latest" would mean another moment then, and what was published in
between would be skipped. So the answer is written down on the broker before Spark has it: in the subscription's
properties, where nothing changes it. A partition's cursor is made once, by whoever comes first, and all who come later
begin there. When all of them are there, a stream has begun: a topic that matches a pattern later is read from its first
message, whenever Spark asks again.

The cursor itself stands where the stream has committed, so that `stats` shows the backlog, and holds back retention as
any durable subscription does. Reading does not rest on it: a stream goes on at the offsets of its checkpoint, and
proves by the messages' indexes that nothing between them is gone. When the cursor was moved or deleted (by a time to
live, a quota, an expiry, a person), the next commit puts it back.

A stream that was abandoned keeps its backlog until its subscription is deleted, or expires by the namespace's
`subscriptionExpirationTime`, which is its lease. Nothing shorter would be safe: a stream that stands still for a
week-end is to find its messages.

Partitions that are added later get the subscriptions of their elders from the broker, properties and all; since those
name the partition they are of, the new one begins with its first message.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Final

from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound, QuireError
from quire.spark_source.broker import Broker
from quire.spark_source.stream.offsets import BEGINNING, Offset, Offsets, Partition, from_json, to_json

START: Final = "quire.spark.start"
"""The property with the offset at which the stream began, as `offsets.to_json` has it."""

BEGUN: Final = "quire.spark.begun"
"""The property of the cursor that was made last, when all partitions had theirs."""

_log = logging.getLogger(__name__)


class DurableCursor:
    """The cursors of the stream `name`, one a partition."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self._broker = broker
        self._moved: dict[str, int] = {}
        """The index that each was moved to."""

    def start(self, partition: str) -> tuple[Offset, bool] | None:
        """Where the stream began in a partition, and whether this cursor was the last to be made; None without one.

        Raises `ConfigurationError` when the subscription of that name is no stream's.
        """
        found = self._broker.cursor(partition, self.name)
        if found is None:
            return None
        if START not in found.properties:
            raise ConfigurationError(
                f"subscription {self.name} of {partition} is not the cursor of a stream; give another stream_name, or "
                f"begin where it stands with starting_subscription={self.name}"
            )
        start = from_json(json.loads(found.properties[START])).get(partition, BEGINNING)
        return start, BEGUN in found.properties

    def begin_all(
        self, partitions: Mapping[str, Partition], first: Callable[[Partition], Offset]
    ) -> dict[str, Offset]:
        """Where the stream begins in each partition; `first` says it for those that have no cursor yet.

        The last one that is made says of all of them that the stream has begun; from then on what has no cursor was
        added later.
        """
        found, has_begun = {}, False
        for name in partitions:
            begun = self.start(name)
            if begun is not None:
                found[name], is_last = begun
                has_begun |= is_last
        missing = [name for name in partitions if name not in found]
        for name in missing:
            offset = BEGINNING if has_begun else first(partitions[name])
            found[name] = self.begin(name, offset, is_last=name == missing[-1])
        return found

    def begin(self, partition: str, offset: Offset, *, is_last: bool = False) -> Offset:
        """Make the cursor of a partition; where the stream begins, which somebody else may have been first to say."""
        properties = {START: json.dumps(to_json({partition: offset}))}
        if is_last:
            properties[BEGUN] = "true"
        try:
            self._broker.subscribe(partition, self.name, *_next_entry(offset), properties)
        except AlreadyExists:
            pass
        begun = self.start(partition)
        if begun is None:
            raise NotFound(f"the cursor {self.name} of {partition} was deleted while the stream began")
        return begun[0]

    def move(self, offsets: Offsets) -> None:
        """Everything before `offsets` is done. What fails is left to the next call: only retention rests on it."""
        for partition, offset in offsets.items():
            if self._moved.get(partition) == offset.index:
                continue
            try:
                self._move(partition, offset)
                self._moved[partition] = offset.index
            except QuireError as error:
                _log.warning("the cursor %s of %s was not moved: %s", self.name, partition, error)

    def _move(self, partition: str, offset: Offset) -> None:
        try:
            self._broker.reset_cursor(partition, self.name, *_next_entry(offset))
        except NotFound:
            self._broker.segments(partition)  # a topic that is gone is not made anew
            _log.warning("the cursor %s of %s was gone, and is made anew", self.name, partition)
            self.begin(partition, offset)


def _next_entry(offset: Offset) -> tuple[int, int]:
    """The entry that holds the next message, for the broker; of which all is still to do."""
    return (-1, -1) if offset.ledger < 0 else (offset.ledger, offset.entry)
