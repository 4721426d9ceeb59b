"""Which dispatcher deals for which kind of subscription."""

from __future__ import annotations

from quire.serving.model.positions import Segments
from quire.serving.model.request import KeySharing, SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.exclusive import Exclusive
from quire.serving.subscription.dispatch.failover import Failover
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.subscription.dispatch.shared import Shared


def dispatcher_of(
    kind: SubscriptionKind, cursor: Cursor, segments: Segments, partition: int, sharing: KeySharing
) -> Dispatcher:
    """A new dispatcher. `partition`: of a partitioned topic, for failover; `sharing`: for key-shared."""
    match kind:
        case SubscriptionKind.FAILOVER:
            return Failover(cursor, segments, partition)
        case SubscriptionKind.KEY_SHARED:
            return KeyShared(cursor, segments, sharing)
        case SubscriptionKind.SHARED:
            return Shared(cursor, segments)
        case SubscriptionKind.EXCLUSIVE:
            return Exclusive(cursor, segments)
