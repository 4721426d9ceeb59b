"""Base class of dispatchers, which dispatch the entries of offered blocks to consumers. Performs no I/O.

part        contents                                                 file
read        the read position, and the messages before it            `read_position`
pending     unacknowledged entries, by consumer                      `pending_acks`   (many consumers)
queue       entries waiting for redelivery                           `replay_queue`   (many consumers)
delayed     entries whose delivery time is in the future             `delayed_entries` (many consumers)

event                    action                                           result
attach, detach           change the consumers, and the active one         notices; a rewind
offer(block)             dispatch from the read position on while         deliveries; the read position
                         consumers are ready; skip acknowledged entries   is after the dispatched entries
acknowledge…             update the counts, then the cursor               unacked, mark-delete
redeliver                count the redelivery; rewind (one active         the read position is at
                         consumer), or queue the entries (many)           mark-delete again (one active consumer)
reset                    restart at the moved cursor's mark-delete        only the cursor's state is kept
"""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments, preceding
from quire.serving.model.request import SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery
from quire.serving.subscription.dispatch.read_position import ReadPosition


class Dispatcher:
    """Dispatcher of one subscription, which sends the entries of its topic to its consumers."""

    kind: SubscriptionKind

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        self.cursor = cursor
        self.read = ReadPosition(cursor, segments)
        self.consumers: list[Consumer] = []
        """Attached consumers; ordered by rank for Exclusive and Failover, otherwise unordered."""
        self.notices: list[tuple[Consumer, bool]] = []
        """Consumers to notify that they became active (True) or inactive (False); the shell empties the list."""
        self.room_was_made = False
        """True if an acknowledgement allows more dispatching; the shell then dispatches again, and resets the flag."""

    def fits(self, view: BlockView) -> bool:
        """Return whether all messages of `view` may be dispatched without exceeding `limit_unacked`."""
        return True

    def cut(self, view: BlockView, wanted: Position) -> BlockView:
        """Return a prefix of `view` whose entries from `wanted` on may be dispatched; the last batch is not split."""
        return view

    def limit_unacked(self, most: int) -> bool:
        """Set the limit of unacknowledged messages of all consumers together; 0: no limit.

        Return whether messages can be dispatched that could not before. Only shared subscriptions have such a limit.
        """
        return False

    def attach(self, consumer: Consumer) -> None:
        """Add a consumer. Raises `ConsumerBusy`."""
        raise NotImplementedError

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer; its unacknowledged entries are dispatched again."""
        raise NotImplementedError

    def detach_all(self) -> None:
        """Detach all consumers in one step; their unacknowledged messages are read again."""
        raise NotImplementedError

    def wanted(self) -> Position | None:
        """Return the position of the entry to be offered next; None if no consumer can receive it."""
        raise NotImplementedError

    def offer(self, view: BlockView) -> list[Delivery]:
        """Dispatch entries of `view`, a block that contains `wanted()`, to consumers that are ready."""
        raise NotImplementedError

    def acknowledge(self, ledger_id: int, entry_ids: Sequence[int] | BitMap) -> None:
        """Acknowledge entries of one ledger. Ids that do not exist or are already acknowledged are ignored."""
        raise NotImplementedError

    def acknowledge_partly(self, position: Position, ack_set: int, batch_size: int) -> None:
        """Acknowledge the messages of a batch whose bits are not set in `ack_set`.

        `batch_size` is the number of messages that the client claims.
        """
        left = self.read.left_of_batch(position, ack_set, batch_size)
        if left is None:
            return
        remaining, acked = left
        if remaining:
            self._acknowledge_partly(position, remaining, acked)
        else:
            self.acknowledge(position.ledger_id, [position.entry_id])

    def _acknowledge_partly(self, position: Position, remaining: int, acked: int) -> None:
        """See `ReadPosition.acknowledge_partly`."""
        raise NotImplementedError

    def redeliver(self, consumer: Consumer, ids: dict[int, list[int]] | None) -> None:
        """Redeliver `ids` (entry ids by ledger) or, if None, all unacknowledged entries of `consumer`."""
        raise NotImplementedError

    def begin(self) -> None:
        """Discard all state except the cursor's, and read from the mark-delete position on."""
        self.read.begin()

    def reset(self) -> None:
        """Restart at the mark-delete position of a cursor that was moved by a seek. Precondition: no consumers."""
        assert not self.consumers
        self.begin()

    def skip_to(self, first: Position) -> None:
        """Acknowledge the entries before `first`, because they were trimmed."""
        if self.cursor.mark_delete < preceding(first):
            self.cursor.acknowledge_up_to(preceding(first), self.read.segments)
            self.begin()
