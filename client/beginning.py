"""Start position of one partition's consumer, and the messages to skip before it. No I/O.

A broker starts delivery at an entry, but an application may start or continue at a message within a batch. Messages
below the *floor* are skipped. For a non-durable subscription, the position is kept here: after a reconnect, a reader
continues after the last message that it returned, and the floor stays. For a durable subscription, the broker stores
the position, and which messages of a batch a seek skipped. There the floor is needed only for brokers that do not store
the skipped messages, and for ids without a batch size. So it applies once, to the first entry after a seek.
"""

from __future__ import annotations

from quire.client.entry import to_words
from quire.client.messages import EARLIEST, LATEST, MessageId
from quire.client.subscribe import SubscribeAs
from quire.wire import pulsar_pb2 as pb


class Beginning:
    """Start position of one subscription.

    A SUBSCRIBE carries `start`, which a durable subscription uses only if it is new.
    """

    def __init__(self, how: SubscribeAs) -> None:
        self._how = how
        self.start = how.start.beginning if how.start_inclusive else how.start
        self.start_inclusive = how.start_inclusive
        self._floor, self._floor_inclusive = self.start, self.start_inclusive
        self._is_sought = False
        """True if a seek has moved the cursor, and the consumer has not been attached again since."""

    def wanted(self, place: tuple[int, int]) -> int:
        """Return the bit set of the next entry's messages that are not below the floor."""
        floor, inclusive = self._floor, self._floor_inclusive
        if self._how.durable:
            self._floor = EARLIEST
        if place > floor[:2] or floor == LATEST:
            return -1
        if place < floor[:2]:
            return -1 if self._how.durable else 0
        if floor.batch_index >= 0:
            return -1 << floor.batch_index + (not inclusive)
        return -1 if inclusive else 0

    def sought(self, to: MessageId) -> None:
        """Record a successful seek: delivery continues at `to`."""
        self._is_sought = True
        self._floor, self._floor_inclusive = to, True
        if not self._how.durable:
            self.start, self.start_inclusive = to, True

    def attached(self) -> None:
        if self._how.durable and not self._is_sought:
            self._floor = EARLIEST
        self._is_sought = False

    def go_on_after(self, last_taken: MessageId, first_chunk: MessageId | None) -> None:
        """Start after the last message returned, or at the first chunk of an earlier incomplete message."""
        if self._how.durable:
            return
        if last_taken != self._floor or self._floor_inclusive:  # else the previous attempt delivered nothing
            self.start, self.start_inclusive = last_taken, False
        self._floor, self._floor_inclusive = last_taken, False
        if first_chunk is not None and first_chunk.place < last_taken.place:
            self.start, self.start_inclusive = first_chunk, True


def sought_id(to: MessageId) -> pb.MessageIdData:
    """Return the id for a SEEK.

    For a message within a batch, its `ack_set` has the bits of this message and later ones, which are to be delivered.
    """
    data = to.to_wire()
    if to.batch_index > 0 and to.batch_size:
        data.ack_set.extend(to_words((1 << to.batch_size) - (1 << to.batch_index), to.batch_size))
    return data
