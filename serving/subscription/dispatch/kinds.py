"""Dispatchers by subscription type."""

from __future__ import annotations

from quire.serving.model.ports import ConsumerBusy
from quire.serving.model.positions import Segments
from quire.serving.model.request import AUTO_SPLIT, KeySharing, SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.subscription.dispatch.shared import Shared
from quire.serving.subscription.dispatch.single_active import SingleActive


def dispatcher_of(
    kind: SubscriptionKind,
    cursor: Cursor,
    segments: Segments,
    partition: int = -1,
    sharing: KeySharing = AUTO_SPLIT,
) -> Dispatcher:
    """Create a dispatcher. Only Failover uses `partition` (-1: not a partition), only Key_Shared uses `sharing`."""
    match kind:
        case SubscriptionKind.KEY_SHARED:
            return KeyShared(cursor, segments, sharing)
        case SubscriptionKind.SHARED:
            return Shared(cursor, segments)
        case SubscriptionKind.EXCLUSIVE | SubscriptionKind.FAILOVER:
            return SingleActive(kind, cursor, segments, partition)


def changed_to(kind: SubscriptionKind, former: Dispatcher, partition: int, sharing: KeySharing) -> Dispatcher:
    """Return `former` if it is of this kind, else a new dispatcher.

    Raises `ConsumerBusy` if `former` is of another kind and has consumers.
    """
    if kind is former.kind and (not isinstance(former, KeyShared) or former.sharing == sharing):
        return former
    if former.consumers:
        connected = f" ({former.sharing})" if isinstance(former, KeyShared) else ""
        wanted = f" ({sharing})" if kind is SubscriptionKind.KEY_SHARED else ""
        raise ConsumerBusy(
            f"subscription {former.cursor.key.subscription} has consumers of type {former.kind.label}{connected}, "
            f"so a consumer of type {kind.label}{wanted} cannot be attached"
        )
    return dispatcher_of(kind, former.cursor, former.read.segments, partition, sharing)
