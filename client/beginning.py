"""Where the consumer of one partition begins, and which messages it leaves out. No I/O.

A broker begins at whole entries; a user may begin, or go on, at a message within one. What lies below the *floor* is
left out. A subscription that is not durable has its place here: a reader that comes back goes on after the last
message that it handed out, and the floor stays. A durable one has it at the broker, which also keeps which messages
of a batch a seek left out; the floor is for brokers that do not, and for ids that do not say how large the batch is. So
it counts once, for the first entry after a seek: whoever moves the cursor afterwards decides what comes.
"""

from __future__ import annotations

from quire.client.entry import to_words
from quire.client.messages import EARLIEST, LATEST, MessageId
from quire.client.subscribe import SubscribeAs
from quire.wire import pulsar_pb2 as pb


class Beginning:
    """`start` is what a SUBSCRIBE says, of a durable subscription only if it is new."""

    def __init__(self, how: SubscribeAs) -> None:
        self._how = how
        self.start = how.start.beginning if how.start_inclusive else how.start
        self.start_inclusive = how.start_inclusive
        self._floor, self._floor_inclusive = self.start, self.start_inclusive
        self._is_sought = False
        """A seek moved the cursor, and the consumer is not attached again since."""

    def wanted(self, place: tuple[int, int]) -> int:
        """Of an entry, the next that came, the bits of its messages that are not below the floor."""
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
        """A seek has ended; it comes next."""
        self._is_sought = True
        self._floor, self._floor_inclusive = to, True
        if not self._how.durable:
            self.start, self.start_inclusive = to, True

    def attached(self) -> None:
        if self._how.durable and not self._is_sought:
            self._floor = EARLIEST
        self._is_sought = False

    def go_on_after(self, last_taken: MessageId, first_chunk: MessageId | None) -> None:
        """Go on after what was handed out; a message in chunks may have begun before that, and is not whole yet."""
        if self._how.durable:
            return
        if (
            last_taken != self._floor or self._floor_inclusive
        ):  # else the attempt before this one came to nothing
            self.start, self.start_inclusive = last_taken, False
        self._floor, self._floor_inclusive = last_taken, False
        if first_chunk is not None and first_chunk.place < last_taken.place:
            self.start, self.start_inclusive = first_chunk, True


def sought_id(to: MessageId) -> pb.MessageIdData:
    """The id for a SEEK; of a message in a batch with the bits from it on, which the cursor keeps."""
    data = to.to_wire()
    if to.batch_index > 0 and to.batch_size:
        data.ack_set.extend(to_words((1 << to.batch_size) - (1 << to.batch_index), to.batch_size))
    return data
