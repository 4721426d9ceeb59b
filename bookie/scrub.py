"""Scrub: reads and verifies every flushed block once a week, so that damage is found before a reader needs the block.

A damaged copy that is never read would be discovered only after the other copies are lost. So a bookie reads its
ledgers in order, run by run, without caches, at a rate at which one round takes most of the interval. For half a
terabyte and a week, this is 1 MiB per second, too little to disturb the disk or a reader. The position of the round is
stored in the entry-log directory, so a restarted bookie continues the round. BookKeeper's
[ScrubberService](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/server/service/ScrubberService.java)
does the same.

Damage is reported like damage that a reader finds (`Health.on_damage`): in the log, and in the metadata store
(`metadata.underreplicated`), so that repair creates another copy. Blocks in the journal and the memtable are not read,
because they will be in the entry log within a minute.

`check_run` verifies one run, and blocks; `Scrub` is the loop over all runs.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

import msgspec

from quire.bookie.entry_log import EntryLogs, LogFreed
from quire.bookie.index import Index
from quire.runtime.clock import Clock
from quire.runtime.disk import Disk
from quire.runtime.errors import CorruptionError, DiskError, QuireError
from quire.runtime.limits import KIB
from quire.runtime.tasks import Tasks
from quire.wire.block import HEADER_BYTES, BlockError, read_header, verify

log = logging.getLogger(__name__)

BYTES_PER_S_MIN: Final = 512 * KIB
"""Minimum rate in bytes per second, at which a round of a small node takes less than a week."""
_HASTE: Final = 1.25
"""Factor on the rate, so that a round ends within its interval although bytes are added meanwhile."""

_NOTE: Final = "scrub.json"
_NOTE_EVERY_S: Final = 60.0
"""Minimum time in seconds between writes of the position; after a restart, at most so much of a round is repeated."""
_REST_S: Final = 60.0
"""Delay in seconds before the next check whether a round is due."""


class Damage(NamedTuple):
    """Unreadable block: its ledger, the entry where reading failed, and the error."""

    ledger_id: int
    entry: int
    what: str


class Checked(NamedTuple):
    """Result for one run: the next entry (-1 at the end of the ledger), the bytes read, and the damage found."""

    next_entry: int
    size_bytes: int = 0
    damage: QuireError | None = None
    damaged_entry: int = -1


def check_run(index: Index, logs: EntryLogs, ledger_id: int, entry: int) -> Checked:
    """Read and verify the run that contains `entry`, or else the next run. Blocks."""
    rows = index.rows(ledger_id, entry, 1)
    if not rows:
        return Checked(-1)
    row, good = rows[0], rows[0].first_entry
    at = 0
    try:
        found = logs.salvage(row.log_id, row.offset, row.length)
    except LogFreed:
        return Checked(entry)  # compacted between lookup and read: the index has the new position
    except (CorruptionError, DiskError) as error:
        return Checked(row.last_entry + 1, row.length, error, good)
    try:
        while at < row.length:
            header = verify(found.run, at)
            at, good = at + header.length, header.last_entry + 1
    except BlockError as error:
        damage = found.error(str(error), logs.file_name(row.log_id), at, _end_of(found.run, at))
        return Checked(row.last_entry + 1, row.length, damage, good)
    return Checked(row.last_entry + 1, row.length)


def _end_of(run: memoryview, at: int) -> int:
    """Return the end of the damaged block at this offset; if its header is also damaged, the end of the header."""
    try:
        return at + read_header(run, at).length
    except BlockError:
        return at + HEADER_BYTES


class ScrubTarget(Protocol):
    """Interface of a storage node that is scrubbed."""

    def ledger_ids(self) -> list[int]: ...

    def live_bytes(self) -> int: ...

    async def check_run(self, ledger_id: int, entry: int) -> Checked: ...


class _Note(msgspec.Struct):
    """Position of the round that began at `begun_ms`: all ledgers with ids below `ledger_id` are verified.

    `ledger_id` is -1 after the end of the round.
    """

    begun_ms: int = 0
    ledger_id: int = -1


class Scrub:
    """Rounds over `target`, one per `interval_ms`, between `start` and `stop`. The position is stored on `disk`."""

    def __init__(self, target: ScrubTarget, disk: Disk, clock: Clock, interval_ms: int) -> None:
        assert interval_ms > 0
        self._target = target
        self._disk = disk
        self._clock = clock
        self._interval_ms = interval_ms
        self._tasks = Tasks("bookie scrub")
        self._note = _Note()
        self._noted = 0.0
        self.bytes_read = self.damaged = self.rounds = 0

    def start(self) -> None:
        self._note = self._load()
        self._tasks.start(self._run(), "scrub")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def run_once(self, bytes_per_s: float = float("inf")) -> None:
        """Complete the round in progress, or run a whole one."""
        if self._note.ledger_id < 0:
            self._note = _Note(self._clock.now_ms(), 0)
        for ledger_id in self._target.ledger_ids():
            if ledger_id >= self._note.ledger_id:
                await self._check(ledger_id, bytes_per_s)
                self._note.ledger_id = ledger_id + 1
                self._keep_at_times()
        self._note.ledger_id = -1
        self.rounds += 1
        self._keep()

    async def _run(self) -> None:
        while True:
            over_ms = self._clock.now_ms() - self._note.begun_ms
            # A start in the future was recorded while the clock was ahead: ignore it.
            if self._note.ledger_id < 0 and 0 <= over_ms < self._interval_ms:
                await asyncio.sleep(_REST_S)
                continue
            try:
                await self.run_once(self._bytes_per_s())
            except QuireError as error:
                log.warning("scrub failed, trying again: %s", error)
                await asyncio.sleep(_REST_S)

    def _bytes_per_s(self) -> float:
        return max(BYTES_PER_S_MIN, _HASTE * self._target.live_bytes() / (self._interval_ms / 1000))

    async def _check(self, ledger_id: int, bytes_per_s: float) -> None:
        entry = 0
        while entry >= 0:
            checked = await self._target.check_run(ledger_id, entry)
            self.bytes_read += checked.size_bytes
            self.damaged += checked.damage is not None
            entry = checked.next_entry
            await asyncio.sleep(checked.size_bytes / bytes_per_s)

    # -- the note ----------------------------------------------------------------------------------------
    def _load(self) -> _Note:
        if not self._disk.exists(_NOTE):
            return _Note()
        try:
            return msgspec.json.decode(self._disk.read_bytes(_NOTE), type=_Note)
        except (msgspec.DecodeError, QuireError):
            return _Note()

    def _keep_at_times(self) -> None:
        if self._clock.monotonic() - self._noted >= _NOTE_EVERY_S:
            self._keep()

    def _keep(self) -> None:
        self._noted = self._clock.monotonic()
        try:
            self._disk.write_bytes(_NOTE, msgspec.json.encode(self._note))
        except QuireError as error:
            log.info("cannot store the position of the scrub: %s", error)
