"""What one turn of the event loop has for one bookie travels in one request, whatever its ledgers.

Writers of many ledgers `send` here. At the end of the turn each bookie that has something gets one `AddRequest` (8 MiB
at most, else several). Its statuses go back to the writers in order, and only then is each writer told once to advance,
so ten blocks of a ledger that one journal group made durable are one confirmation.

That is why ten thousand ledgers with a block each cost little more than one ledger with ten thousand: no task, no
future and no timer belongs to a block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakValueDictionary

from quire.ledger.writer_core import Asker, Outgoing, Pending, Replica
from quire.runtime.limits import ADD_REQUEST_BYTES_MAX
from quire.wire.bookie import AddRequest, BookieId, BookiePort, Status

_log = logging.getLogger(__name__)


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
        self._outgoing: WeakValueDictionary[BookieId, Outgoing] = WeakValueDictionary()
        """Replicas keep them: a bookie to which nobody writes has none."""
        self._due: list[Outgoing] = []
        """Those in which something waits."""

    def send(self, pending: Pending, replica: Replica) -> None:
        """Queue one block for one bookie; the answer comes to `replica.core`."""
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


def _requests_of(waiting: list[tuple[Pending, Replica]]) -> Iterator[Sequence[tuple[Pending, Replica]]]:
    """What waits, in order, as much at once as a request may have."""
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
    """All answers first, then one `advance` per writer: no callback before all acks are counted."""
    assert len(statuses) == len(sent)
    touched: dict[Asker, None] = {}
    if any(statuses):
        _count(sent, statuses, touched)
    else:  # all are OK, which is 0: as `answered` does it, without a call for each block
        for pending, replica in sent:
            pending.acks |= replica.bit
            touched[replica.core] = None
    for core in touched:
        try:
            core.advance()
        except Exception:
            _log.exception("the owner of ledger %d failed on a confirmation", core.ledger_id)


def _count(
    sent: Sequence[tuple[Pending, Replica]], statuses: Sequence[Status], touched: dict[Asker, None]
) -> None:
    """Answers of which some are refusals."""
    for (pending, replica), status in zip(sent, statuses, strict=True):
        touched[core := replica.core] = None
        try:
            core.answered(pending, replica, status)
        except Exception:
            _log.exception("the owner of ledger %d failed on an answer", core.ledger_id)
