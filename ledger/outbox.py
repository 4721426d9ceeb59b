"""Batching of adds: all blocks for one bookie in one turn of the event loop share one request, over all ledgers.

Writers of many ledgers call `send`. At the end of the turn, each bookie with queued blocks gets one `AddRequest`, or
several if they exceed 8 MiB. The response's statuses are passed to the writers in order, and then `advance` of each
writer is called once, so ten blocks of a ledger in one request cause one confirmation.

So ten thousand ledgers with one block each cost little more than one ledger with ten thousand blocks, because no block
has a task, future or timer of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakValueDictionary

from quire.ledger.writer_core import AnswerSink, Outgoing, Pending, Replica
from quire.runtime.limits import ADD_REQUEST_BYTES_MAX
from quire.wire.bookie import AddRequest, BookieId, BookiePort, Status

_log = logging.getLogger(__name__)


class Outbox:
    """Queues of blocks by bookie. `port` returns a bookie's port; `at_end` schedules a call at the end of the turn.

    `recovery` and `priority` are flags of each `AddRequest`. Outside a recovery, requests are marked `is_sealed_here`,
    because this process has created the blocks.
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
        self._outgoing: WeakValueDictionary[BookieId, Outgoing] = WeakValueDictionary()
        """Queue of each bookie. The values are weak: a queue exists while a replica of a writer refers to it."""
        self._due: list[Outgoing] = []
        """Queues that are not empty."""

    def send(self, pending: Pending, replica: Replica) -> None:
        """Queue one block for one bookie; the response is delivered to `replica.core`."""
        outgoing = replica.outgoing
        if outgoing is None:
            outgoing = replica.outgoing = self._outgoing_to(replica.bookie)
        waiting = outgoing.waiting
        if not waiting:
            if not self._due:
                self.at_end(self._flush)
            self._due.append(outgoing)
        waiting.append((pending, replica))

    def _outgoing_to(self, bookie: BookieId) -> Outgoing:
        outgoing = self._outgoing.get(bookie)
        if outgoing is None:
            outgoing = self._outgoing[bookie] = Outgoing(bookie)
        return outgoing

    def _flush(self) -> None:
        due, self._due = self._due, []
        for outgoing in due:
            waiting, outgoing.waiting = outgoing.waiting, []
            for sent in _requests_of(waiting):
                self._dispatch(outgoing.bookie, sent)

    def _dispatch(self, bookie: BookieId, sent: Sequence[tuple[Pending, Replica]]) -> None:
        blocks = [pending.block for pending, _ in sent]
        request = AddRequest(bookie, blocks, self._recovery, self._priority, not self._recovery)
        self._port(bookie).add(request, lambda statuses: _distribute(sent, statuses))


class Outboxes:
    """Outboxes of one process, by kind of traffic."""

    def __init__(
        self, port: Callable[[BookieId], BookiePort], at_end: Callable[[Callable[[], None]], object]
    ) -> None:
        self.usual = Outbox(port, at_end)
        self.recovery = Outbox(port, at_end, recovery=True, priority=True)
        self.priority = Outbox(port, at_end, priority=True)


def _requests_of(waiting: list[tuple[Pending, Replica]]) -> Iterator[Sequence[tuple[Pending, Replica]]]:
    """Split queued blocks, in order, into requests that do not exceed the size limit."""
    sizes = [len(pending.block) for pending, _ in waiting]
    if sum(sizes) <= ADD_REQUEST_BYTES_MAX:
        yield waiting
        return
    start = byte_count = 0
    for at, size in enumerate(sizes):
        byte_count += size
        if byte_count > ADD_REQUEST_BYTES_MAX and at > start:
            yield waiting[start:at]
            start, byte_count = at, size
    yield waiting[start:]


def _distribute(sent: Sequence[tuple[Pending, Replica]], statuses: Sequence[Status]) -> None:
    """Deliver all statuses, then call `advance` once per writer, so all acks are counted before any callback runs."""
    assert len(statuses) == len(sent)
    touched: dict[AnswerSink, None] = {}
    if any(statuses):
        _count(sent, statuses, touched)
    else:  # all are OK, which is 0: do what `answered` does, without a call for each block
        for pending, replica in sent:
            pending.acks |= replica.bit
            touched[replica.core] = None
    for core in touched:
        try:
            core.advance()
        except Exception:
            _log.exception("ledger %d: the listener failed on a confirmation", core.ledger_id)


def _count(
    sent: Sequence[tuple[Pending, Replica]], statuses: Sequence[Status], touched: dict[AnswerSink, None]
) -> None:
    """Deliver statuses that are not all OK; add each writer to `touched`."""
    for (pending, replica), status in zip(sent, statuses, strict=True):
        touched[core := replica.core] = None
        try:
            core.answered(pending, replica, status)
        except Exception:
            _log.exception("ledger %d: the writer failed on a bookie's response", core.ledger_id)
