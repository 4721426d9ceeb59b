"""Writer of a WAL as a state machine. Input: blocks and results of uploads. Output: uploads and confirmations.

A *group* is the content of one data object: blocks, tombstones and the callbacks that wait for them.

    open group     receives queued blocks until it is full, or until it is due and an upload may begin
    line           closed groups, with their sequence numbers, that wait for an upload
    under way      groups that are being uploaded: numbers from `durable_seq` + 1 on, at most `uploads_max` of them

- A group gets its sequence number when it is closed, and groups are uploaded in that order (law W3). A `seal` always
  closes the open group, because the memtable is frozen at that point.
- A single block after a pause waits for 10 ms; blocks of a stream are batched. A group is due one batch time after the
  previous group was due. While no upload may begin, the open group continues to grow.
- A group is durable when its object exists. Its callbacks run when all earlier groups are durable, too (W4).
- The upload window limits the range of sequence numbers. So the existence of an object proves that the object
  `uploads_max` numbers before it was durable. If an acknowledged object is lost, later objects prove the loss (W8).
- If an object's name is taken by this writer's own object, an earlier upload succeeded and its response was lost. If it
  is taken by a fence, another process has closed the WAL, and no later object is part of it (W12). A missing response
  is not an event: the shell repeats the upload without a limit (W13).

After the WAL's end, the outcome of all waiting blocks is unknown: their object may exist, before the fence or after it.

Numbers such as W4 refer to the laws in `docs/decisions/wal.md`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from quire.runtime.errors import CorruptionError, Fenced, QuireError
from quire.wal.wal_object import Header, Kind, Tombstone
from quire.wire.block import Buffer
from quire.wire.bookie import AddDone, Status

LONE_S: Final = 0.01
"""Seconds that a block after a pause waits, so that blocks that arrive together share one upload."""

EARLY_S: Final = 0.001
"""Seconds by which a timer may fire early and still count as due, because the loop's and the caller's clock differ."""


@dataclass(slots=True, eq=False)
class Group:
    """Blocks and tombstones of one object, and their callbacks."""

    blocks: list[Buffer] = field(default_factory=list)
    tombstones: list[Tombstone] = field(default_factory=list)
    bytes: int = 0
    waiters: list[tuple[AddDone, Sequence[Status]]] = field(default_factory=list)
    seq: int = -1
    """Sequence number, assigned when the group is closed."""
    is_durable: bool = False


class WalEffects(Protocol):
    """Effects of a WAL's writer, performed by its shell."""

    def arm(self, delay_s: float) -> None:
        """Call `core.due` after this delay, in seconds."""
        ...

    def upload(self, group: Group, confirmed_seq: int) -> None:
        """Start to create the object by a conditional upload, repeated until the store answers."""
        ...

    def durable(self, groups: Sequence[Group]) -> None:
        """Run the callbacks of the groups, in this order."""
        ...

    def ended(self, why: QuireError, groups: Sequence[Group]) -> None:
        """Handle the end of the WAL: fail the callbacks of `groups`, whose outcome is unknown."""
        ...


class WalCore:
    """Writer of one WAL. A group is closed `batch_s` after the previous one, or when it has `batch_bytes`."""

    def __init__(self, effects: WalEffects, *, batch_s: float, batch_bytes: int, uploads_max: int) -> None:
        self.durable_seq = -1
        """All objects up to this sequence number are durable; -1 before the first."""
        self.failure: QuireError | None = None
        self._effects = effects
        self._batch_s = batch_s
        self._batch_bytes = batch_bytes
        self._uploads_max = uploads_max
        self._next_seq = 0
        self._open: Group | None = None
        self._is_due = False
        """Set when the open group has waited long enough."""
        self._due_at_s = float("-inf")
        """Time when the open group is due; without an open group, when the last one was due."""
        self._line: deque[Group] = deque()
        self._under_way: deque[Group] = deque()

    # -- events: queued blocks and tombstones ------------------------------------------------------------
    def queued(
        self,
        blocks: Sequence[Buffer],
        size_bytes: int,
        waiter: tuple[AddDone, Sequence[Status]],
        now_s: float,
    ) -> None:
        """Add blocks to one group, after all earlier blocks; close the open group first if it has no space for them."""
        group = self._open
        if group is not None and group.bytes + size_bytes > self._batch_bytes:
            self._close()
            self._begin_uploads()
            group = None
        group = group or self._begin(now_s)
        group.blocks += blocks
        group.bytes += size_bytes
        group.waiters.append(waiter)
        if group.bytes >= self._batch_bytes:
            self._close()
            self._begin_uploads()

    def deleted(self, tombstone: Tombstone, waiter: tuple[AddDone, Sequence[Status]], now_s: float) -> None:
        """Add a tombstone to the open group."""
        group = self._open or self._begin(now_s)
        group.tombstones.append(tombstone)
        group.waiters.append(waiter)

    def barrier(self, waiter: tuple[AddDone, Sequence[Status]]) -> bool:
        """Add a callback after everything queued so far. Return False if nothing is queued or being uploaded."""
        for groups in ((self._open,) if self._open else (), self._line, self._under_way):
            if groups:
                groups[-1].waiters.append(waiter)
                return True
        return False

    def seal(self) -> int:
        """Close the open group now. Return the last assigned sequence number, or -1."""
        if self._open is not None:
            self._close()
            self._begin_uploads()
        return self._next_seq - 1

    def due(self, now_s: float) -> None:
        """Handle the timer that `arm` set, for the open group or for an earlier one."""
        if self._open is None or self.failure is not None:
            return
        if self._due_at_s - now_s > EARLY_S:
            self._effects.arm(self._due_at_s - now_s)
            return
        self._is_due = True
        self._begin_uploads()

    # -- events: results of uploads ------------------------------------------------------------------------
    def uploaded(self, seq: int) -> None:
        """Record that object `seq` exists; run the callbacks of all groups that are now durable without a gap."""
        if self.failure is not None:
            return
        assert self.durable_seq < seq <= self.durable_seq + len(self._under_way)
        self._under_way[seq - self.durable_seq - 1].is_durable = True
        prefix = []
        while self._under_way and self._under_way[0].is_durable:
            prefix.append(self._under_way.popleft())
        if prefix:
            self.durable_seq = prefix[-1].seq
            self._begin_uploads()  # first, so that the store writes during the callbacks
            self._effects.durable(prefix)

    def taken(self, seq: int, ours: Header, found: Header) -> None:
        """Handle an upload whose name is taken: compare the existing object's header with the one that was sent."""
        if found == ours:
            self.uploaded(seq)
        elif (found.kind, found.wal, found.seq) == (Kind.FENCE, ours.wal, seq):
            self.end(Fenced(f"another process has closed WAL {ours.wal} before object {seq}"))
        else:
            self.end(CorruptionError(f"object {seq} of WAL {ours.wal} was not written by its only writer"))

    def end(self, why: QuireError) -> None:
        """End the WAL, because the store denies access or another process may have taken over."""
        if self.failure is not None:
            return
        self.failure = why
        groups = [*self._under_way, *self._line, *((self._open,) if self._open else ())]
        self._under_way.clear()
        self._line.clear()
        self._open = None
        self._effects.ended(why, groups)

    # -- inside --------------------------------------------------------------------------------------------
    def _begin(self, now_s: float) -> Group:
        assert self.failure is None, "the caller checks `failure` first"
        self._open = Group()
        self._is_due = False
        delay_s = min(max(self._due_at_s + self._batch_s - now_s, LONE_S), self._batch_s)
        self._due_at_s = now_s + delay_s
        self._effects.arm(delay_s)
        return self._open

    def _close(self) -> None:
        group = self._open
        assert group is not None
        group.seq = self._next_seq
        self._next_seq += 1
        self._open = None
        self._line.append(group)
        assert self._next_seq == self.durable_seq + 1 + len(self._under_way) + len(self._line)

    def _begin_uploads(self) -> None:
        """Begin as many uploads as the window allows; close the open group if it is due and no other group waits."""
        while len(self._under_way) < self._uploads_max:
            if not self._line and self._open is not None and self._is_due:
                self._close()
            if not self._line:
                return
            group = self._line.popleft()
            assert group.seq == self.durable_seq + 1 + len(self._under_way)
            self._under_way.append(group)
            self._effects.upload(group, self.durable_seq)
