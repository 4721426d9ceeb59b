"""Ledger labels: copies of a ledger's metadata record, stored on the bookies beside the ledger's blocks.

The metadata store records a ledger's purpose, the bookies of its blocks, and its end. Labels contain the same data on
the bookies, in case the metadata store is lost (`quire rescue metadata`) or restored from an older copy. A recovery
uses a label that is newer than the record, and distinguishes two ledgers with the same id by their labels (`lives`).

    ledger        id of the ledger | 2^62, an id that no ledger has: a bookie stores a label like any other block
    entry         version of the metadata node with this record, so the last entry is the newest label
    LAC           nonce of the ledger, because a bookie returns LACs from memory; -1 for a record without a nonce
    clock         creation time of the ledger
    first index   0
    the entry     1 byte: version of this format, 1; then the LedgerRecord as JSON

Labels do not delay a publish: the writer sends the first one before the ledger's first block, in the same request, so a
bookie with a block also has the label. A refused label is sent again, with exponential back-off. A new label is sent
after each change of the record: before the first block to a changed ensemble, after the close, and when repair replaces
a bookie. Recoveries and repair send the label before the blocks that they write. Repair also sends it when a bookie
reports that its label is damaged. An empty ledger has no label. A deletion writes tombstones for the ledger and for its
label.

A bookie refuses a label of another ledger under the same id (CONFLICT). Then the id was used before, the bookie has the
other ledger's blocks, and the writer ends (`IdUsedBefore`).

A ledger in write-ahead logs (WALs) on object storage has its label in each WAL, before its first block there. A WAL
needs no label with the ledger's end, because closing a WAL closes all its ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final
from weakref import ref

from quire.ledger import states
from quire.ledger.outbox import Outbox
from quire.ledger.writer_core import Pending, Replica, WriterCore
from quire.metadata.records import LedgerRecord, LedgerState, decode, encode
from quire.runtime.errors import CorruptionError
from quire.wire import block
from quire.wire.block import Buffer
from quire.wire.bookie import AddRequest, BookieId, BookiePort, Status
from quire.wire.ledger_ids import label_id, labelled

VERSION: Final = b"\x01"
AGAIN_S: Final = (1.0, 60.0)
"""First and longest delay in seconds before a label is sent again, after a bookie refused it or did not answer."""

_ASK_AGAIN: Final = frozenset({Status.UNREACHABLE, Status.BUSY, Status.READ_ONLY, Status.IO_ERROR})


def make(record: LedgerRecord, version: int) -> Buffer:
    """Return the label of `record` at node version `version`.

    For a record in IN_RECOVERY, return the label of the last version in which the ledger was OPEN.
    """
    if record.state is LedgerState.IN_RECOVERY:
        record, version = states.before_recovery(record), version - 1
    entry = VERSION + encode(record)
    return block.cut(label_id(record.ledger_id), version, record.nonce, record.created_ms, 0, [entry])


def read(found: Buffer) -> tuple[LedgerRecord, int]:
    """Return the record in a label, and the version of the record's node. Raises `CorruptionError`."""
    header = block.verify(found)
    where = f"the label of ledger {labelled(header.ledger_id)}"
    entry = bytes(next(iter(block.entries(found, header))))
    if entry[:1] != VERSION:
        raise CorruptionError(
            f"{where} has format version {entry[:1].hex()}, which this version of Quire does not support; upgrade Quire"
        )
    record = decode(LedgerRecord, entry[1:], where)
    if record.ledger_id != labelled(header.ledger_id):
        raise CorruptionError(f"{where} contains the record of ledger {record.ledger_id}")
    return record, header.first_entry


def send(port: Callable[[BookieId], BookiePort], record: LedgerRecord, version: int) -> None:
    """Send the label once to all bookies in the record, without retries; for callers that send no blocks after it."""
    made = make(record, version)
    for bookie in states.all_bookies(record):
        if not bookie.is_wal:  # a WAL gets a label only before a ledger's first block
            port(bookie).add(AddRequest(bookie, [made], recovery=True, priority=True), lambda _statuses: None)


class Label:
    """Label of a ledger that is being written. It is sent before all later blocks to the same bookies.

    `core` is the writer's core. The label ends it when a bookie has another ledger's label or a tombstone.
    """

    def __init__(self, outbox: Outbox, record: LedgerRecord, version: int, core: WriterCore) -> None:
        self.outbox = outbox
        self._core = ref(core)
        self._record = record
        self.version = version
        self.is_ended = False
        """True after the ledger's writer has ended; then refused labels are not sent again."""

    def send(self) -> None:
        """Send the label to the bookies of the last fragment."""
        self.send_to(states.ensemble(self._record.fragments[-1]))

    def send_to(self, bookies: Iterable[BookieId]) -> None:
        """Send the label to `bookies`. A refused label is sent again until the record changes or the writer ends."""
        pending = Pending(make(self._record, self.version), self.version)
        for bookie in bookies:
            _Sending(self, self._record.ledger_id, pending, bookie).send()

    def refused(self, bookie: BookieId, status: Status) -> None:
        """End the writer, because the bookie has another ledger's label or a tombstone."""
        core = self._core()
        if core is None or self.is_ended:
            return
        if status is Status.DELETED:
            core.fenced(bookie, status)
        else:
            core.conflicts(bookie)

    def change(self, record: LedgerRecord, version: int) -> None:
        """Replace the record by a newer one, for later `send` calls."""
        self._record, self.version = record, version


class _Sending:
    """Delivery of one label to one bookie, with retries. An `AnswerSink`."""

    def __init__(self, label: Label, ledger_id: int, pending: Pending, bookie: BookieId) -> None:
        self.ledger_id = ledger_id
        self._label = label
        self._pending = pending
        self._bookie = bookie
        self._again_s = AGAIN_S[0]

    def send(self) -> None:
        label = self._label
        if not label.is_ended and label.version == self._pending.last_entry:
            label.outbox.send(self._pending, Replica(self, self._bookie, 0))

    def answered(self, pending: Pending, replica: Replica, status: Status) -> None:
        if status in (Status.CONFLICT, Status.DELETED):
            self._label.refused(self._bookie, status)
        elif status in _ASK_AGAIN:
            asyncio.get_running_loop().call_later(self._again_s, self.send)
            self._again_s = min(2 * self._again_s, AGAIN_S[1])

    def advance(self) -> None:
        """Do nothing, because no block waits for a label's acknowledgement."""
