"""A ledger's label: its record, kept beside its blocks by the bookies that hold them.

The metadata store says whose a ledger is, where its blocks lie and where it ends. A label says the same where the
blocks are, for the day on which the metadata store is lost for good (`quire rescue metadata`); nothing else reads one.

    ledger        id of the ledger | 2^62, which no ledger has: to a bookie a label is a block like any other
    entry         the version of the node that the record was, or is; a bookie's last entry is the newest it knows
    LAC           -1
    clock         when the ledger was created
    first index   0
    the entry     1 byte: version of this format, 1; then the LedgerRecord as JSON

Labels cost a publish nothing: the first one travels before the ledger's first block, in the same request, so that a
bookie that has a block has the label, too (one that refused it is asked again, and again less often). Others follow
each change of the record: before the first block to a changed ensemble, when the ledger is closed, when repair names
another bookie. Repair tells it again when it put blocks back, and when a bookie found it damaged. An empty ledger has
none. A label goes with its ledger: deletion lays a tombstone on both.

A ledger in write-ahead logs on object storage has its label there, before its first block in each of them. Nothing
is told there when it ends: the log's own end is that of all ledgers in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quire.ledger import states
from quire.ledger.outbox import Outbox
from quire.ledger.writer_core import Pending, Replica
from quire.metadata.records import LedgerRecord, decode, encode
from quire.runtime.errors import CorruptionError
from quire.wire import block
from quire.wire.block import Buffer
from quire.wire.bookie import AddRequest, BookieId, BookiePort, Status
from quire.wire.ledger_ids import label_id, labelled

VERSION: Final = b"\x01"
AGAIN_S: Final = (1.0, 60.0)
"""When a bookie that refused a label, or did not answer, is asked again: at first, and at the most."""

_ASK_AGAIN: Final = frozenset({Status.UNREACHABLE, Status.BUSY, Status.READ_ONLY, Status.IO_ERROR})


def make(record: LedgerRecord, version: int) -> Buffer:
    """The label of a record whose node has this version."""
    entry = VERSION + encode(record)
    return block.cut(label_id(record.ledger_id), version, -1, record.created_ms, 0, [entry])


def read(found: Buffer) -> tuple[LedgerRecord, int]:
    """The record that a label holds, and its version. Raises `CorruptionError`."""
    header = block.verify(found)
    where = f"the label of ledger {labelled(header.ledger_id)}"
    entry = bytes(next(iter(block.entries(found, header))))
    if entry[:1] != VERSION:
        raise CorruptionError(
            f"{where} has version {entry[:1].hex()}, which this version of Quire does not know"
        )
    record = decode(LedgerRecord, entry[1:], where)
    if record.ledger_id != labelled(header.ledger_id):
        raise CorruptionError(f"{where} is that of ledger {record.ledger_id}")
    return record, header.first_entry


def tell(port: Callable[[BookieId], BookiePort], record: LedgerRecord, version: int) -> None:
    """Give the label to all bookies that the record names, once: for whoever writes no blocks behind it."""
    made = make(record, version)
    for bookie in states.all_bookies(record):
        if not bookie.is_wal:  # one that has ended takes none, and none needs to know the end
            port(bookie).add(AddRequest(bookie, [made], recovery=True, priority=True), lambda _statuses: None)


class Label:
    """That of a ledger which is being written. It travels before whatever is sent to the same bookies after it."""

    def __init__(self, outbox: Outbox, record: LedgerRecord, version: int) -> None:
        self.outbox = outbox
        self._record = record
        self.version = version
        self.is_ended = False
        """Nobody who did not take it is asked again."""

    def send(self) -> None:
        """Give it to the bookies of the last fragment; who does not take it is asked again until it changes or ends."""
        pending = Pending(make(self._record, self.version), self.version)
        for bookie in states.ensemble(self._record.fragments[-1]):
            _Sending(self, self._record.ledger_id, pending, bookie).send()

    def change(self, record: LedgerRecord, version: int) -> None:
        """The record was changed, so others are told from now on."""
        self._record, self.version = record, version


class _Sending:
    """One label on its way to one bookie; an `Asker`."""

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
        if status in _ASK_AGAIN:
            asyncio.get_running_loop().call_later(self._again_s, self.send)
            self._again_s = min(2 * self._again_s, AGAIN_S[1])

    def advance(self) -> None:
        """Nothing waits for a label."""
