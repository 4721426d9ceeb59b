"""Translation of ACK commands into dispatcher calls: one call per ledger for whole entries, one per partial batch."""

from __future__ import annotations

from collections.abc import Iterable

from quire.serving.model.ports import NotAllowed, Position
from quire.serving.model.positions import preceding
from quire.serving.subscription.cursor.cursor_record import bits_of
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.single_active import SingleActive
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb


def acknowledge_each(dispatcher: Dispatcher, ids: Iterable[pb.MessageIdData]) -> None:
    """Acknowledge individual message ids; consecutive whole entries of one ledger are one operation on its bitmap."""
    ledger_id = -1
    entry_ids: list[int] = []
    for one in ids:
        if one.ack_set:
            position = Position(one.ledgerId, one.entryId)
            dispatcher.acknowledge_partly(position, bits_of(one.ack_set), one.batch_size)
            continue
        if one.ledgerId != ledger_id:
            if entry_ids:
                dispatcher.acknowledge(ledger_id, entry_ids)
            ledger_id, entry_ids = one.ledgerId, []
        entry_ids.append(one.entryId)
    if entry_ids:
        dispatcher.acknowledge(ledger_id, entry_ids)


def acknowledge_up_to(dispatcher: Dispatcher, ids: Iterable[pb.MessageIdData]) -> None:
    """Acknowledge everything up to each of `ids`; if an id has an `ack_set`, up to a message within that batch.

    Raises `NotAllowed` unless the subscription is Exclusive or Failover.
    """
    if not isinstance(dispatcher, SingleActive):
        label = dispatcher.kind.label
        raise NotAllowed(
            f"a {label} subscription accepts no cumulative acknowledgement: acknowledge individual message ids"
        )
    for one in ids:
        position = Position(*commands.position(one))
        if one.ack_set:
            dispatcher.acknowledge_up_to(preceding(position))
            dispatcher.acknowledge_partly(position, bits_of(one.ack_set), one.batch_size)
        else:
            dispatcher.acknowledge_up_to(position)
