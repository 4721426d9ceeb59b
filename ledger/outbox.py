"""What one turn of the event loop has for one bookie travels in one request, whatever its ledgers.

Writers of many ledgers `send` here. At the end of the turn each bookie that
has something gets one `AddRequest` (8 MiB at most; more goes out at once). Its statuses go back to the writers in
order, and only then is each writer told once to advance, so ten blocks of a ledger that one journal group made
durable are one confirmation.

That is why ten thousand ledgers with a block each cost little more than one ledger with ten thousand: no task, no
future and no timer belongs to a block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from quire.ledger.writer_core import Asker, Pending, Replica
from quire.runtime.limits import ADD_REQUEST_BYTES_MAX
from quire.wire.block import Buffer
from quire.wire.bookie import AddRequest, BookieId, BookiePort, Status

_log = logging.getLogger(__name__)


class _Lane:
    """What waits for one bookie: three columns of the same length."""

    __slots__ = ("blocks", "bytes", "pendings", "replicas")

    def __init__(self) -> None:
        self.blocks: list[Buffer] = []
        self.pendings: list[Pending] = []
        self.replicas: list[Replica] = []
        self.bytes = 0


class Outbox:
    """`port` finds a bookie's port; `at_end` puts off until the end of the turn.

    See `AddRequest` for `recovery` and `priority`. What is no recovery's was sealed by the broker that sends it.
    """

    def __init__(
        self,
        port: Callable[[BookieId], BookiePort],
        at_end: Callable[[Callable[[], None]], object],
        *,
        recovery: bool = False,
        priority: bool = False,
    ) -> None:
        self._port = port
        self.at_end = at_end
        self._recovery = recovery
        self._priority = priority
        self._lanes: dict[BookieId, _Lane] = {}

    def send(self, pending: Pending, replica: Replica) -> None:
        """Queue one block for one bookie; the answer comes to `replica.core`."""
        lanes = self._lanes
        lane = lanes.get(replica.bookie)
        if lane is None:
            if not lanes:
                self.at_end(self._flush)
            lane = lanes[replica.bookie] = _Lane()
        block = pending.block
        lane.bytes += len(block)
        if lane.bytes > ADD_REQUEST_BYTES_MAX and lane.blocks:
            self._dispatch(replica.bookie, lane)
            lane = lanes[replica.bookie] = _Lane()
            lane.bytes = len(block)
        lane.blocks.append(block)
        lane.pendings.append(pending)
        lane.replicas.append(replica)

    def _flush(self) -> None:
        lanes, self._lanes = self._lanes, {}
        for bookie, lane in lanes.items():
            self._dispatch(bookie, lane)

    def _dispatch(self, bookie: BookieId, lane: _Lane) -> None:
        def done(statuses: Sequence[Status]) -> None:
            _distribute(lane, statuses)

        request = AddRequest(bookie, lane.blocks, self._recovery, self._priority, not self._recovery)
        self._port(bookie).add(request, done)


def _distribute(lane: _Lane, statuses: Sequence[Status]) -> None:
    """All answers first, then one `advance` per writer: no callback before all acks are counted."""
    assert len(statuses) == len(lane.blocks)
    touched: dict[Asker, None] = {}
    if any(statuses):
        _count(lane, statuses, touched)
    else:  # all are OK, which is 0: as `answered` does it, without a call for each block
        for pending, replica in zip(lane.pendings, lane.replicas, strict=True):
            pending.acks |= replica.bit
            touched[replica.core] = None
    for core in touched:
        try:
            core.advance()
        except Exception:
            _log.exception("the owner of ledger %d failed on a confirmation", core.ledger_id)


def _count(lane: _Lane, statuses: Sequence[Status], touched: dict[Asker, None]) -> None:
    """Answers of which some are refusals."""
    for pending, replica, status in zip(lane.pendings, lane.replicas, statuses, strict=True):
        touched[core := replica.core] = None
        try:
            core.answered(pending, replica, status)
        except Exception:
            _log.exception("the owner of ledger %d failed on an answer", core.ledger_id)
