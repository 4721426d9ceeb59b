"""Interfaces that `intake` and `requests` use, each with two implementations.

`bookie.storage` is the node with disks; `wal.storage` is the node with journal and entry logs in an object store. Both
use the same `intake` to check blocks, the same memtables, and the same `requests` to answer requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quire.bookie.journal_core import Control
from quire.runtime.errors import QuireError
from quire.wire.block import Buffer
from quire.wire.bookie import (
    AddDone,
    BookieId,
    FindHoleRequest,
    FindTimeRequest,
    ReadRequest,
    ReadResponse,
    SimpleResponse,
    Status,
)

CompareDone = Callable[[Status], None]
"""Callback with the result of a comparison."""


class Identified(Protocol):
    """Identity of a node."""

    @property
    def bookie_id(self) -> BookieId: ...


class Spanning(Protocol):
    """Range of entries of adjacent blocks of one ledger, without a gap."""

    @property
    def first_entry(self) -> int: ...

    @property
    def last_entry(self) -> int: ...


class Runs(Protocol):
    """Index of flushed blocks."""

    def rows(self, ledger_id: int, from_entry: int, limit: int) -> Sequence[Spanning]:
        """Return at most `limit` runs in order, from the one that contains `from_entry` or the next one after it."""
        ...


class Journaling(Protocol):
    """Journal that makes records durable, in the order of calls.

    Implemented by `journal.Journal` on a disk, and by `wal.object_journal.ObjectJournal` on an object store.
    """

    @property
    def failure(self) -> QuireError | None:
        """Error that ended the journal; None while it acknowledges records."""
        ...

    def append(
        self, parts: Sequence[Buffer], size_bytes: int, done: AddDone, statuses: Sequence[Status]
    ) -> None:
        """Queue blocks of one request; call `done(statuses)` on the event loop when all are durable.

        `done` is never called before this method returns.
        """
        ...

    def control(self, control: Control, done: AddDone) -> None:
        """Queue a change of a ledger's state; call `done(OK)` when it, and everything appended before, is durable."""
        ...

    def barrier(self, done: AddDone, statuses: Sequence[Status]) -> None:
        """Call `done(statuses)` when everything appended before is durable."""
        ...


class Standing(Protocol):
    """Health of the node, and which blocks it accepts; see `bookie.health`."""

    failure: str
    is_read_only: bool
    is_exhausted: bool

    @property
    def is_short_of_space(self) -> bool: ...

    def on_worse(self, callback: Callable[[], None]) -> None: ...


class Flushing(Protocol):
    """Flush of blocks from the memtable to their storage."""

    is_awaited: bool
    """True if a ledger counts as flushed only when its blocks are in the storage; false if the journal is enough."""

    def on_flushed(self, callback: Callable[[], None]) -> None: ...

    def begin(self) -> None:
        """Freeze the memtable now, and flush it."""
        ...

    def soon(self) -> None: ...


class Reading(Protocol):
    """Reads of accepted blocks, from memory or storage; see `bookie.reads`."""

    def forget(self, ledger_id: int) -> None: ...

    def compare(
        self, ledger_id: int, first_entry: int, block: Buffer, recovery: bool, done: CompareDone
    ) -> None: ...

    async def read(self, request: ReadRequest) -> ReadResponse: ...

    async def find_time(self, request: FindTimeRequest) -> SimpleResponse: ...

    async def find_hole(self, request: FindHoleRequest) -> SimpleResponse: ...
