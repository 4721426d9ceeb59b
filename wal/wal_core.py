"""The writing of a WAL as a state machine: what is queued and what uploads answer in; uploads and confirmations out.

    open group     takes what is queued, until it is full, or has gathered long enough while an upload may begin
    line           groups that are closed, with their sequence numbers, and wait for an upload
    under way      uploads of the numbers from `durable_seq` + 1 on, at most `uploads_max` of them

- A sequence number is taken in the step that closes a group, and groups are uploaded in that order (law W3). A group
  never spans a `seal`: the memtable changes there.
- A lone block after a silence waits for 10 ms, those of a stream for a batch: what is gathered first is due a batch
  after what was due before it. While no upload may begin, the open group goes on gathering.
- A group is durable when its object is there; it is told when all before it are, a whole prefix at once (W4).
- The window is one of numbers, not of uploads: an object `uploads_max` behind another knows that one to be durable.
  So if an object is lost that was acknowledged, those behind it say so (W8).
- That the name of an object is taken means that an answer was lost, if it is ours; if a fence lies there, somebody has
  closed the WAL, and from there on nothing is durable any more (W12). An answer that does not come is tried again, for
  ever, by whoever uploads; no event here stands for it (W13).

Once ended, all that waits has an unknown outcome: its object may be there, before the fence or not.
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
"""What comes after a silence waits for so long: others that come with it share its upload."""

EARLY_S: Final = 0.001
"""A timer that comes so little early is in time: clocks have a grain, and two of them run apart."""


@dataclass(slots=True, eq=False)
class Group:
    """What one object makes durable, and who waits for that."""

    blocks: list[Buffer] = field(default_factory=list)
    tombstones: list[Tombstone] = field(default_factory=list)
    bytes: int = 0
    waiters: list[tuple[AddDone, Sequence[Status]]] = field(default_factory=list)
    seq: int = -1
    """Once it is closed."""
    is_durable: bool = False


class WalEffects(Protocol):
    """What a WAL's writer asks of the world."""

    def arm(self, delay_s: float) -> None:
        """Call `core.due` after so long."""
        ...

    def upload(self, group: Group, confirmed_seq: int) -> None:
        """Make its object, by a conditional upload that is tried until it has an answer: `core.uploaded`, `core.taken`
        or `core.end`, not within the call."""
        ...

    def durable(self, groups: Sequence[Group]) -> None:
        """Tell those who wait for them, in this order."""
        ...

    def ended(self, why: QuireError, groups: Sequence[Group]) -> None:
        """Nothing is durable any more. The groups' outcome is unknown."""
        ...


class WalCore:
    """`batch_s`: how long a stream's blocks are gathered; `batch_bytes`: a group of this size waits no longer."""

    def __init__(self, effects: WalEffects, *, batch_s: float, batch_bytes: int, uploads_max: int) -> None:
        self.durable_seq = -1
        """Up to it all objects are there."""
        self.failure: QuireError | None = None
        self._effects = effects
        self._batch_s = batch_s
        self._batch_bytes = batch_bytes
        self._uploads_max = uploads_max
        self._next_seq = 0
        self._open: Group | None = None
        self._is_due = False
        """The open group has gathered long enough."""
        self._due_at_s = float("-inf")
        """When the open group is due, or the last one was."""
        self._line: deque[Group] = deque()
        self._under_way: deque[Group] = deque()

    # -- events: what is queued --------------------------------------------------------------------------
    def queued(
        self,
        blocks: Sequence[Buffer],
        size_bytes: int,
        waiter: tuple[AddDone, Sequence[Status]],
        now_s: float,
    ) -> None:
        """Blocks that belong together, in one object and behind all that was queued before."""
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
        """A tombstone rides with the blocks of its time."""
        group = self._open or self._begin(now_s)
        group.tombstones.append(tombstone)
        group.waiters.append(waiter)

    def barrier(self, waiter: tuple[AddDone, Sequence[Status]]) -> bool:
        """Let someone wait for everything queued so far. False when there is nothing to wait for."""
        for groups in ((self._open,) if self._open else (), self._line, self._under_way):
            if groups:
                groups[-1].waiters.append(waiter)
                return True
        return False

    def seal(self) -> int:
        """What is queued next begins another group; what was queued waits no longer. The last number taken, or -1."""
        if self._open is not None:
            self._close()
            self._begin_uploads()
        return self._next_seq - 1

    def due(self, now_s: float) -> None:
        """The time for which `arm` asked has passed, for the group that was open then, or for another."""
        if self._open is None or self.failure is not None:
            return
        if self._due_at_s - now_s > EARLY_S:
            self._effects.arm(self._due_at_s - now_s)
            return
        self._is_due = True
        self._begin_uploads()

    # -- events: what becomes of an upload -----------------------------------------------------------------
    def uploaded(self, seq: int) -> None:
        """Its object is there."""
        if self.failure is not None:
            return
        self._under_way[seq - self.durable_seq - 1].is_durable = True
        prefix = []
        while self._under_way and self._under_way[0].is_durable:
            prefix.append(self._under_way.popleft())
        if prefix:
            self.durable_seq = prefix[-1].seq
            self._begin_uploads()  # the store works while we answer
            self._effects.durable(prefix)

    def taken(self, seq: int, ours: Header, found: Header) -> None:
        """Its name is taken, by an object with the header `found`. `ours` is the one that was sent."""
        if found == ours:
            self.uploaded(seq)
        elif (found.kind, found.wal, found.seq) == (Kind.FENCE, ours.wal, seq):
            self.end(Fenced(f"somebody has closed WAL {ours.wal} before object {seq}"))
        else:
            self.end(
                CorruptionError(f"object {seq} of WAL {ours.wal} is not the one that its only writer made")
            )

    def end(self, why: QuireError) -> None:
        """Nothing is durable any more: the store bars us, or others may have taken over."""
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
        assert self.failure is None, "whoever queues looks first"
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

    def _begin_uploads(self) -> None:
        """As many as the window allows; then the open group, too, if it is due and nothing waits before it."""
        while len(self._under_way) < self._uploads_max:
            if not self._line and self._open is not None and self._is_due:
                self._close()
            if not self._line:
                return
            group = self._line.popleft()
            assert group.seq == self.durable_seq + 1 + len(self._under_way)
            self._under_way.append(group)
            self._effects.upload(group, self.durable_seq)
