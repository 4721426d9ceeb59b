"""What brokers and bookies say to each other: the requests, the answers, and the port they travel through.

A request names the bookie it is meant for by UUID *and* incarnation: an address can be inherited by another
bookie, an identity cannot. A request that reaches a bookie of another identity is answered `WRONG_BOOKIE`.

Absence must be proven, so every answer is one of three kinds: something found, an explicit "no such entry", or
*unknown* (`Status.is_unknown`): an error is never an absence.

`BookiePort` is the one interface for all this: a storage node in this process (`quire.bookie.storage`), one over TCP
(`quire.ledger.bookie_client`) and those of simulations, with one contract test for all. The bytes of the frames are
in `quire.wire.bookie_codec`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from quire.wire.block import Buffer


class BookieId(NamedTuple):
    """Who a bookie is: the UUID of its directories and how often it may have lost state."""

    uuid: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.uuid}:{self.incarnation}"

    @property
    def is_wal(self) -> bool:
        """It is a write-ahead log on object storage (`quire.wal`), no bookie on disks."""
        return self.uuid.startswith("wal-")

    @classmethod
    @lru_cache(maxsize=1024)
    def parse(cls, text: str) -> "BookieId":
        """The reverse of `str`; one object for equal texts, for every ledger names its bookies.

        Raises ValueError when `text` is not `uuid:incarnation`.
        """
        uuid, _, incarnation = text.rpartition(":")
        if not uuid:
            raise ValueError(f"{text!r} is not a bookie id")
        return cls(uuid, int(incarnation))


class Status(IntEnum):
    """The outcome of one request, or of one block of an add request."""

    OK = 0
    NO_SUCH_ENTRY = 1
    """Explicit: the ledger is known here (or was just created, fenced) and does not hold the entry."""
    NO_SUCH_LEDGER = 2
    """This incarnation has never heard of the ledger. Not an answer about any entry of it."""
    FENCED = 3
    """Another writer has taken the ledger over; only writes with the recovery flag pass."""
    CONFLICT = 4
    """Other bytes were given for a place that has some, or a block overlaps another one."""
    DELETED = 5
    """A tombstone is here: the ledger was deleted and never comes back."""
    READ_ONLY = 6
    """The disk is full or an operator said so: no new blocks (of this priority) here, reads go on. Of a read with the
    fence flag: the fence cannot be written down now; what is here is not damaged."""
    BAD_BLOCK = 7
    """What was sent is not a valid block; nothing of it was kept."""
    LIMBO = 8
    """The bookie may have lost blocks of this ledger and cannot say."""
    IO_ERROR = 9
    """The disk failed or gave damaged bytes; `detail` names file and offset."""
    WRONG_BOOKIE = 10
    """The request was meant for another identity or incarnation."""
    BAD_REQUEST = 11
    BUSY = 12
    """Not accepted because a budget is spent; try again later."""
    UNREACHABLE = 64
    """Never on the wire: the connection was lost or time ran out, the outcome is unknown."""

    @property
    def is_unknown(self) -> bool:
        """True when a read's answer says nothing about whether the entry exists."""
        return self not in (Status.OK, Status.NO_SUCH_ENTRY, Status.DELETED)


@dataclass(slots=True)
class AddRequest:
    """All blocks that one loop turn cut for one bookie, of whatever ledgers; 8 MiB at most.

    With `recovery` the blocks pass the ledgers' fences. Those of high `priority` may use the room that a full disk has
    in reserve. `is_sealed_here` says that this very process has sealed them and no wire or disk had them since, so that
    their checksums need no proof; it never leaves the process.
    """

    bookie: BookieId
    blocks: Sequence[Buffer]
    recovery: bool = False
    priority: bool = False
    is_sealed_here: bool = False


AddDone = Callable[[Sequence[Status]], None]
"""Called exactly once, on the loop's thread, with one status per block in the request's order."""


@dataclass(slots=True)
class ReadResponse:
    """`blocks`: whole blocks in order, the first contains the entry asked for; empty unless `status` is OK.

    `lac` is the greatest last-add-confirmed this bookie knows of the ledger (from blocks and explicit
    writes), -1 when it knows none.
    """

    status: Status
    lac: int = -1
    blocks: Sequence[Buffer] = ()
    detail: str = ""


@dataclass(slots=True)
class SimpleResponse:
    """The answer to `WriteLacRequest` and `DeleteRequest`; with `entry` to `FindTimeRequest` and `FindHoleRequest`.

    Where there is no hole `entry` is the one behind the last that was asked about.
    """

    status: Status
    entry: int = -1
    detail: str = ""


@dataclass(slots=True)
class LedgerInfo:
    """What a bookie knows of one ledger. `flushed`: the mark has passed its last block."""

    status: Status
    last_entry: int = -1
    lac: int = -1
    fenced: bool = False
    flushed: bool = False
    bytes: int = 0


@dataclass(slots=True)
class LedgerList:
    """Ledgers that a bookie has a record of, by id; `deleted` has those of them that have a tombstone.

    `LEDGERS_LISTED_MAX` at most come at once; fewer than that, and than were asked for, are the last ones.
    """

    status: Status
    ledgers: Sequence[int] = ()
    deleted: Sequence[int] = ()


R = TypeVar("R")


class Request(Generic[R]):
    """A question to one bookie, whose answer is an `R`."""

    __slots__ = ()

    bookie: BookieId
    response: ClassVar[type[Any]]
    """`R` itself."""

    def refused(self, status: Status) -> R:
        """The answer that is this status and no more."""
        answer: R = self.response(status)
        return answer


@dataclass(slots=True)
class ReadRequest(Request[ReadResponse]):
    """Whole blocks of `ledger_id` from the one that contains `first_entry`, up to `bytes_max`.

    At least one block is answered if it exists, however large. With `fence` the ledger is fenced first,
    durably, and created (fenced) where it was never seen.
    """

    response = ReadResponse
    bookie: BookieId
    ledger_id: int
    first_entry: int
    bytes_max: int
    fence: bool = False


@dataclass(slots=True)
class WriteLacRequest(Request[SimpleResponse]):
    """The writer is idle and tells its LAC explicitly; journalled before it is answered."""

    response = SimpleResponse
    bookie: BookieId
    ledger_id: int
    lac: int


@dataclass(slots=True)
class DeleteRequest(Request[SimpleResponse]):
    """Lay a tombstone, which fences too. `version` is that of the ledger's metadata record in DELETING."""

    response = SimpleResponse
    bookie: BookieId
    ledger_id: int
    version: int


@dataclass(slots=True)
class FindTimeRequest(Request[SimpleResponse]):
    """Where does reading begin so that no block whose clock is `time_ms` or later is missed?"""

    response = SimpleResponse
    bookie: BookieId
    ledger_id: int
    time_ms: int


@dataclass(slots=True)
class FindHoleRequest(Request[SimpleResponse]):
    """Which entry from `first_entry` to `last_entry` is the first that is not held here? Nothing is read for it.

    LIMBO with an entry: it is not held, and that proves nothing, for it may have been.
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
    """Which ledgers from `first_ledger` on have blocks, a fence or a tombstone there? The first `count_max` of them."""

    response = LedgerList
    bookie: BookieId
    first_ledger: int
    count_max: int


class BookiePort(Protocol):
    """One bookie, as ledger writers, readers and recoveries see it.

    No method raises for what the bookie or the network does: it answers with a status, `UNREACHABLE`
    when the outcome is unknown.
    """

    def add(self, request: AddRequest, done: AddDone) -> None:
        """Queue the blocks in order; `done` is called when each is durable or refused, never before `add` returns."""
        ...

    async def ask(self, request: Request[R]) -> R:
        """The answer to a request of any other kind."""
        ...
