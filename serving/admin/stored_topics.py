"""`/admin/v2/persistent/…/truncate`, `trim`, `offload`, `internal-info`: the stored data of a topic."""

from __future__ import annotations

from collections.abc import Sequence

from quire.security.authorization import Action
from quire.serving.admin.requests import Where, position_of
from quire.serving.admin.route import TOPIC, TOPIC_NAME, Route, body
from quire.serving.broker import Broker
from quire.serving.model.ports import Position
from quire.serving.names import TopicName


def routes(broker: Broker) -> Sequence[Route]:
    storage, may = broker.admin.topics.storage, Action.ADMINISTER

    async def offload(end: Position, topic: TopicName) -> None:
        """Archive the sealed segments before the segment of an entry now; with `latest`, all of them.

        A partitioned topic only supports `latest`. GET returns the status.
        """
        await storage.offload(topic, end)

    return (
        Route("DELETE", f"{TOPIC}/truncate", storage.truncate, TOPIC_NAME, may=may),
        Route("POST", f"{TOPIC}/trim", storage.trim, TOPIC_NAME, may=may),
        Route("PUT", f"{TOPIC}/offload", offload, body(position_of, Where), TOPIC_NAME, may=may),
        Route("GET", f"{TOPIC}/offload", storage.offload_status, TOPIC_NAME, may=may),
        Route("GET", f"{TOPIC}/internal-info", storage.internal_info, TOPIC_NAME, may=Action.LOOKUP),
    )
