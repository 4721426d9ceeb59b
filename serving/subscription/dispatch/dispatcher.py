"""What every dispatcher is: it is offered blocks and dispatches their entries to consumers. A core.

part        is                                                       in
read        the read position, and what lies before it in messages   `read_position`
pending     who holds what, and gives it back                        `pending_acks`   (many consumers)
queue       what was read, is held by nobody and may be dispatched   `replay_queue`   (many consumers)
delayed     what was read and waits for its time                     `delayed_entries` (many consumers)

event                    does                                             leaves
attach, detach           consumers; may change who is active              notices; a rewind
offer(block)             dispatches from the read position on while       deliveries; the read position
                         consumers are ready; skips what is acknowledged  has moved over what was dispatched
acknowledge…             counts, then hands it to the cursor              unacked, mark-delete
redeliver                counts the redelivery; a rewind (one active      the read position is at
                         consumer) or back into the queue (many)          mark-delete again
reset                    the cursor was moved
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
    """Dispatches the entries of one topic to the consumers of one subscription."""

    kind: SubscriptionKind

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        self.cursor = cursor
        self.read = ReadPosition(cursor, segments)
        self.consumers: list[Consumer] = []
        """In no order that matters, but for failover: there by rank."""
        self.notices: list[tuple[Consumer, bool]] = []
        """Consumers to be told that they became, or ceased to be, the active one; the shell empties it."""
        self.room_was_made = False
        """An acknowledgement made it possible to dispatch more: the shell looks again, and resets it."""

    def attach(self, consumer: Consumer) -> None:
        """A consumer connected. Raises `ConsumerBusy`."""
        raise NotImplementedError

    def detach(self, consumer: Consumer) -> None:
        """A consumer is gone; what it holds will be dispatched again."""
        raise NotImplementedError

    def wanted(self) -> Position | None:
        """The entry to be offered next; None when nobody could take it."""
        raise NotImplementedError

    def offer(self, view: BlockView) -> list[Delivery]:
        """Dispatch from `view`, a block that holds `wanted()`, as much as consumers are ready to take."""
        raise NotImplementedError

    def acknowledge(self, ledger_id: int, entry_ids: Sequence[int] | BitMap) -> None:
        """Entries of one ledger. Ids that do not exist, or are acknowledged already, are passed over."""
        raise NotImplementedError

    def acknowledge_partly(self, position: Position, ack_set: int, batch_size: int) -> None:
        """Messages of one batch: those whose bits are not in `ack_set`. `batch_size` is what the client says."""
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
        """Deliver again `ids` (entry ids by ledger), or (None) everything that `consumer` holds."""
        raise NotImplementedError

    def begin(self) -> None:
        """Read from mark-delete on, knowing nothing."""
        self.read.begin()

    def reset(self) -> None:
        """The cursor was moved by somebody else: begin again at its mark-delete."""
        assert not self.consumers
        self.begin()

    def skip_to(self, first: Position) -> None:
        """What lies before `first` is gone from the topic."""
        if self.cursor.mark_delete < preceding(first):
            self.cursor.acknowledge_up_to(preceding(first), self.read.segments)
            self.begin()
