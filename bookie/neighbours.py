"""What intake and requests ask of the parts around them, of which there are two kinds.

A node on disks is `bookie.storage`; one whose journal and entry logs are objects is `wal.storage`. Both judge blocks
by the same `intake`, keep them in the same memtables and answer by the same `requests`.
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


class Identified(Protocol):
    @property
    def bookie_id(self) -> BookieId: ...


class Spanning(Protocol):
    """Blocks of one ledger that lie together, without a gap."""

    @property
    def first_entry(self) -> int: ...

    @property
    def last_entry(self) -> int: ...


class Runs(Protocol):
    """Where flushed blocks are."""

    def rows(self, ledger_id: int, from_entry: int, limit: int) -> Sequence[Spanning]:
        """At most `limit` in order, from the one that holds `from_entry` or the next one after it."""
        ...


class Journaling(Protocol):
    """Whatever makes blocks durable, in the order in which they come."""

    @property
    def failure(self) -> QuireError | None:
        """Why nothing is acknowledged any more."""
        ...

    def append(
        self, parts: Sequence[Buffer], size_bytes: int, done: AddDone, statuses: Sequence[Status]
    ) -> None:
        """Queue blocks that belong together; `done(statuses)` on the loop when all are durable, never within."""
        ...

    def control(self, control: Control, done: AddDone) -> None:
        """Queue a change of a ledger; `done(OK)` when it, and everything appended before, is durable."""
        ...

    def barrier(self, done: AddDone, statuses: Sequence[Status]) -> None:
        """`done(statuses)` when everything appended before is durable."""
        ...


class Standing(Protocol):
    """What is wrong with the node, and so which blocks it takes; see `bookie.health`."""

    failure: str
    is_read_only: bool
    is_exhausted: bool

    @property
    def is_short_of_space(self) -> bool: ...

    def on_worse(self, callback: Callable[[], None]) -> None: ...


class Flushing(Protocol):
    """Brings blocks from the memtable to where they stay."""

    is_awaited: bool
    """A ledger counts as flushed only when this has its blocks; otherwise the journal is enough."""

    def on_flushed(self, callback: Callable[[], None]) -> None: ...

    def begin(self) -> None:
        """Freeze the memtable now, and flush it."""
        ...

    def soon(self) -> None: ...


class Reading(Protocol):
    """What was taken, wherever it lies; see `bookie.reads`."""

    def forget(self, ledger_id: int) -> None: ...

    def compare(
        self, ledger_id: int, first_entry: int, block: Buffer, recovery: bool, done: CompareDone
    ) -> None: ...

    async def read(self, request: ReadRequest) -> ReadResponse: ...

    async def find_time(self, request: FindTimeRequest) -> SimpleResponse: ...

    async def find_hole(self, request: FindHoleRequest) -> SimpleResponse: ...
