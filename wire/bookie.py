"""Protocol between brokers and bookies: requests, responses, and the port that carries them.

A request contains the UUID *and* incarnation of its bookie, because another bookie may get the same address. A bookie
of another identity returns `WRONG_BOOKIE`. Absence must be proven, so every response is one of three kinds: found, an
explicit "no such entry", or *unknown* (`Status.is_unknown`): an error never means absence.

`BookiePort` is implemented by a storage node in this process (`quire.bookie.storage`), by a client over TCP
(`quire.ledger.bookie_client`), and by simulations; all pass the same contract test. `quire.wire.bookie_codec` defines
the bytes of the frames.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from quire.wire.block import Buffer


class BookieId(NamedTuple):
    """Identity of a bookie: the UUID of its directories, and an incarnation, which increases when state may be lost."""

    uuid: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.uuid}:{self.incarnation}"

    @property
    def is_wal(self) -> bool:
        """True for a write-ahead log on object storage (`quire.wal`), False for a bookie with disks."""
        return self.uuid.startswith("wal-")

    @classmethod
    @lru_cache(maxsize=1024)
    def parse(cls, text: str) -> "BookieId":
        """Parse the result of `str`.

        Equal texts return the same object, because every ledger's record contains bookie ids.

        Raises ValueError if `text` is not `uuid:incarnation`.
        """
        uuid, _, incarnation = text.rpartition(":")
        if not uuid:
            raise ValueError(f"{text!r} is not a bookie id")
        return cls(uuid, int(incarnation))


class Status(IntEnum):
    """Outcome of one request, or of one block of an add request."""

    OK = 0
    NO_SUCH_ENTRY = 1
    """Explicit negative: the bookie has a record of the ledger (perhaps just created by a fence), but not the entry."""
    NO_SUCH_LEDGER = 2
    """The ledger is unknown to this incarnation, which proves nothing about the ledger's entries."""
    FENCED = 3
    """Another writer has taken over the ledger; only writes with the recovery flag are accepted."""
    CONFLICT = 4
    """The bookie has other bytes for these entries, or the block overlaps another block."""
    DELETED = 5
    """The ledger has a tombstone: it was deleted, and its id is never used again."""
    READ_ONLY = 6
    """The disk is full, or an operator drains the bookie: it accepts no new blocks (of this priority), but serves
    reads.

    As the response to a read with the fence flag: the fence cannot be stored now; the blocks are undamaged.
    """
    BAD_BLOCK = 7
    """The request contained an invalid block; nothing of the request was stored."""
    LIMBO = 8
    """The bookie may have lost blocks of this ledger, so it cannot prove that the entry is absent."""
    IO_ERROR = 9
    """The disk failed or returned damaged bytes; `detail` contains file and offset."""
    WRONG_BOOKIE = 10
    """The request was addressed to another identity or incarnation."""
    BAD_REQUEST = 11
    BUSY = 12
    """The request was not accepted, because a budget of the bookie is spent; try again later."""
    UNREACHABLE = 64
    """Set by the client, never sent: the connection was lost or the request timed out, so the outcome is unknown."""

    @property
    def is_unknown(self) -> bool:
        """True if a read's response does not show whether the entry exists."""
        return self not in (Status.OK, Status.NO_SUCH_ENTRY, Status.DELETED)


@dataclass(slots=True)
class AddRequest:
    """Request to store blocks of any ledgers: all that one iteration of the event loop cut for a bookie. At most 8 MiB.

    With `recovery`, the blocks are accepted in spite of fences. Blocks of high `priority` may use the reserve of a full
    disk. `is_sealed_here`: this process has cut the blocks, so their checksums need not be verified; the flag is not
    sent.
    """

    bookie: BookieId
    blocks: Sequence[Buffer]
    recovery: bool = False
    priority: bool = False
    is_sealed_here: bool = False


AddDone = Callable[[Sequence[Status]], None]
"""Callback, called exactly once on the event loop, with one status per block in the request's order."""


@dataclass(slots=True)
class ReadResponse:
    """Response to a read. `blocks` are whole blocks in order; the first contains the requested entry.

    There are no blocks unless `status` is OK. `lac` is the greatest last-add-confirmed of the ledger that the bookie
    knows from blocks and explicit writes; -1 if it knows none.
    """

    status: Status
    lac: int = -1
    blocks: Sequence[Buffer] = ()
    detail: str = ""


@dataclass(slots=True)
class SimpleResponse:
    """Response to `WriteLacRequest` and `DeleteRequest`; with `entry` to `FindTimeRequest` and `FindHoleRequest`.

    If there is no hole, `entry` is the first entry after the requested range.
    """

    status: Status
    entry: int = -1
    detail: str = ""


@dataclass(slots=True)
class LedgerInfo:
    """State of one ledger on a bookie. `flushed`: its last block is in the entry log."""

    status: Status
    last_entry: int = -1
    lac: int = -1
    fenced: bool = False
    flushed: bool = False
    bytes: int = 0


@dataclass(slots=True)
class LedgerList:
    """Ledgers with a record on a bookie, by id; `deleted` contains those with a tombstone.

    At most `LEDGERS_LISTED_MAX` are returned at once. If fewer are returned than this limit and than requested, the
    bookie has no further ledgers.
    """

    status: Status
    ledgers: Sequence[int] = ()
    deleted: Sequence[int] = ()


R = TypeVar("R")


class Request(Generic[R]):
    """Request to one bookie, with a response of type `R`."""

    __slots__ = ()

    bookie: BookieId
    response: ClassVar[type[Any]]
    """Class of `R`."""

    def refused(self, status: Status) -> R:
        """Build the response that contains only this status."""
        answer: R = self.response(status)
        return answer


@dataclass(slots=True)
class ReadRequest(Request[ReadResponse]):
    """Request for whole blocks, from the block that contains `first_entry` on, of `bytes_max` bytes at most.

    At least one block is returned if it exists, however large. With `fence`, the ledger is first fenced durably, and
    created (fenced) if the bookie has no record of it.
    """

    response = ReadResponse
    bookie: BookieId
    ledger_id: int
    first_entry: int
    bytes_max: int
    fence: bool = False


@dataclass(slots=True)
class WriteLacRequest(Request[SimpleResponse]):
    """Request to store the last-add-confirmed of an idle writer (explicit LAC), in the journal before the response."""

    response = SimpleResponse
    bookie: BookieId
    ledger_id: int
    lac: int


@dataclass(slots=True)
class DeleteRequest(Request[SimpleResponse]):
    """Request for a tombstone of a ledger, which also fences it.

    `version` is the version of the ledger's metadata record in the state DELETING.
    """

    response = SimpleResponse
    bookie: BookieId
    ledger_id: int
    version: int


@dataclass(slots=True)
class FindTimeRequest(Request[SimpleResponse]):
    """Request for an entry before which no block has a clock of `time_ms` or later."""

    response = SimpleResponse
    bookie: BookieId
    ledger_id: int
    time_ms: int


@dataclass(slots=True)
class FindHoleRequest(Request[SimpleResponse]):
    """Request for the first entry from `first_entry` to `last_entry` that the bookie lacks. No entries are read.

    LIMBO with an entry: the bookie lacks this entry, but may have lost it, so its absence proves nothing.
    """

    response = SimpleResponse
    bookie: BookieId
    ledger_id: int
    first_entry: int
    last_entry: int


@dataclass(slots=True)
class LedgerInfoRequest(Request[LedgerInfo]):
    response = LedgerInfo
    bookie: BookieId
    ledger_id: int


@dataclass(slots=True)
class ListLedgersRequest(Request[LedgerList]):
    """Request for the first `count_max` ledgers, from `first_ledger` on, with blocks, a fence or a tombstone."""

    response = LedgerList
    bookie: BookieId
    first_ledger: int
    count_max: int


class BookiePort(Protocol):
    """Client of one bookie, for ledger writers, readers and recoveries.

    Methods do not raise errors for failures of the bookie or the network: they return a status, which is `UNREACHABLE`
    if the outcome is unknown. Implemented by `ledger.bookie_client.BookieClient` over a connection, and by
    `bookie.storage.Storage` within a process.
    """

    def add(self, request: AddRequest, done: AddDone) -> None:
        """Queue the blocks in order. `done` is called when all are durable or refused, never before `add` returns."""
        ...

    async def ask(self, request: Request[R]) -> R:
        """Send a request of any other kind and return its response."""
        ...
