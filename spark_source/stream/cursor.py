"""The durable cursor of a stream: a subscription on the broker, named `stream_name`, in each partition.

Spark calls `initialOffset` for a new query, and again after a restart until the first micro-batch is committed. Until
then the checkpoint does not contain the result ([`MicroBatchExecution`]). At the second call, "latest" would be a later
position, and the query would skip the messages in between. So the start is recorded on the broker before it is returned
to Spark, in the subscription's properties, which never change. The first caller creates a partition's cursor, and all
later callers return the start that it records. A stream has begun when all cursors exist. From then on a topic that
newly matches a pattern is read from its first message.

The cursor's position is the last commit of the stream. So `stats` shows the backlog, and the cursor holds back
retention as any durable subscription does. Reading does not depend on the position: a stream continues at the offsets
of its checkpoint, and proves by the messages' indexes that it misses none. If the cursor was moved or deleted (by a
message TTL, a quota, an expiry or an operator), the next commit restores it.

An abandoned stream keeps its backlog until its subscription is deleted, or expires by the namespace's
`subscriptionExpirationTime`. A shorter fixed time would not be safe: a stream that was stopped over a weekend must find
its messages.

When partitions are added, the broker copies the subscriptions of older partitions, with their properties, to the new
ones. The properties contain the name of the old partition, so a copied start is recognized, and the new partition is
read from its first message.

[`MicroBatchExecution`]: https://github.com/apache/spark/blob/master/sql/core/src/main/scala/org/apache/spark/sql/execution/streaming/runtime/MicroBatchExecution.scala
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
"""Property with the offset at which the stream began, in the format of `offsets.to_json`."""

BEGUN: Final = "quire.spark.begun"
"""Property of the cursor that was created last, so that all partitions have cursors."""

_log = logging.getLogger(__name__)


class DurableCursor:
    """Cursors of the stream `name`, one for each partition."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self._broker = broker
        self._moved: dict[str, int] = {}
        """Message index to which each partition's cursor was moved last."""

    def start(self, partition: str) -> tuple[Offset, bool] | None:
        """Return the stream's start in a partition, and whether its cursor was created last; None if it has no cursor.

        Raises `ConfigurationError` if the subscription of that name is not the cursor of a stream.
        """
        found = self._broker.cursor(partition, self.name)
        if found is None:
            return None
        if START not in found.properties:
            raise ConfigurationError(
                f"subscription {self.name} of {partition} is not the cursor of a stream; set another stream_name, or "
                f"begin at its position with starting_subscription={self.name}"
            )
        start = from_json(json.loads(found.properties[START])).get(partition, BEGINNING)
        return start, BEGUN in found.properties

    def begin_all(
        self, partitions: Mapping[str, Partition], first: Callable[[Partition], Offset]
    ) -> dict[str, Offset]:
        """Return the stream's start in each partition. `first` computes it for partitions without a cursor.

        The last cursor that is created records that the stream has begun. If it exists, a partition without a cursor
        was added later.
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
        """Create the cursor of a partition. Return the stream's start, which a concurrent caller may have set first."""
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
        """Move the cursors to `offsets`.

        A failure is only logged, because only retention needs the cursors' positions. The next call retries.
        """
        for partition, offset in offsets.items():
            if self._moved.get(partition) == offset.index:
                continue
            try:
                self._move(partition, offset)
                self._moved[partition] = offset.index
            except QuireError as error:
                _log.warning("cannot move cursor %s of %s: %s", self.name, partition, error)

    def _move(self, partition: str, offset: Offset) -> None:
        try:
            self._broker.reset_cursor(partition, self.name, *_next_entry(offset))
        except NotFound:
            self._broker.segments(partition)  # raises for a deleted topic, so that it is not created again
            _log.warning("cursor %s of %s was deleted, creating it again", self.name, partition)
            self.begin(partition, offset)


def _next_entry(offset: Offset) -> tuple[int, int]:
    """Return the entry with the next message as the cursor's position. A partly read entry counts as unread."""
    return (-1, -1) if offset.ledger < 0 else (offset.ledger, offset.entry)
