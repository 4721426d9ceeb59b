"""Requests to archive the segments of one topic now, Pulsar's `offload`, with the status of each topic's last request.

As in Pulsar, the status belongs to the loaded topic. After an unload or a change of the owner, it is NOT_RUN.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from quire.metadata.records import SegmentRecord
from quire.runtime.errors import AlreadyExists
from quire.runtime.tasks import Tasks
from quire.serving.model.ports import Position
from quire.serving.model.statistics import MessagePosition, OffloadProcessStatus
from quire.serving.topic.topic import PersistentTopic
from quire.tiering.offload import Offloader

RUNNING = OffloadProcessStatus("RUNNING")


class OffloadRequests:
    def __init__(self, offloader: Offloader, tasks: Tasks) -> None:
        self._offloader = offloader
        self._tasks = tasks
        self._last: WeakKeyDictionary[PersistentTopic, OffloadProcessStatus] = WeakKeyDictionary()

    def begin(self, topic: PersistentTopic, end: Position) -> None:
        """Archive, in the background, the sealed segments before the segment of `end`.

        Raises `AlreadyExists` during another request.
        """
        if self._last.get(topic) is RUNNING:
            raise AlreadyExists(f"topic {topic.name} is already being offloaded; wait for its end")
        self._last[topic] = RUNNING
        self._tasks.start(self._carry_out(topic, end), f"offload {topic.name}")

    def status(self, topic: PersistentTopic) -> OffloadProcessStatus:
        """Return the status of the topic's last request."""
        return self._last.get(topic) or OffloadProcessStatus()

    async def _carry_out(self, topic: PersistentTopic, end: Position) -> None:
        ended = OffloadProcessStatus("ERROR", "the request was interrupted by an internal error, see the log")
        try:
            report = await self._offloader.upload(topic.name, lambda: _left_before(topic, end))
            ended = _ended(topic, end, report.errors)
        finally:
            self._last[topic] = ended


def _ended(topic: PersistentTopic, end: Position, errors: Sequence[str]) -> OffloadProcessStatus:
    if _left_before(topic, end):
        why = errors[-1] if errors else f"topic {topic.name} was closed, or moved to another broker"
        return OffloadProcessStatus("ERROR", why)
    first = next((one.ledger_id for one in topic.log.segment_list.totals() if one.archive is None), -1)
    return OffloadProcessStatus("SUCCESS", "", MessagePosition(first, 0 if first >= 0 else -1))


def _left_before(topic: PersistentTopic, end: Position) -> list[SegmentRecord]:
    """List the sealed segments before the segment of `end` that are not archived yet, oldest first."""
    sealed = topic.log.segment_list.sealed
    return [one for one in sealed if one.ledger_id < end.ledger_id and one.archive is None]
