"""Garbage collector of WALs: closes the WALs of dead writers, and deletes unneeded objects of closed WALs.

| WAL | action |
|---|---|
| open, without a live writer | close it after `GRACE_S` |
| closed, with data objects | copy the blocks of existing ledgers into sets, then delete the data objects |
| closed, with new tombstones | copy them into the catalogue, then delete sets without an existing ledger |
| closed and empty | delete its objects except the fence; delete its record after `REMOVE_AFTER_S` |

The process that coordinates repair runs the collector; safety does not depend on there being only one (see `keeper`). A
writer is dead when its ephemeral node (`paths.wal_writer`) does not exist; no wall clocks are compared. A live writer
whose WAL is closed begins another one.

The fence stays, because a paused writer may still have an upload in flight. `quire wal scrub --delete` deletes fences
after ninety days.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

from quire.metadata import paths
from quire.metadata.records import WalRecord, WalState
from quire.runtime.errors import CorruptionError, NotFound, QuireError
from quire.runtime.limits import MIB
from quire.runtime.tasks import Tasks
from quire.wal import sweep, tombstones
from quire.wal.closing import close_wal
from quire.wal.context import WalContext
from quire.wal.keeper import Keeper
from quire.wal.own_record import OwnRecord, all_records
from quire.wal.patience import as_quire_error, until_answered
from quire.wal.proof import prove_missing
from quire.wal.run_reader import read_data_object
from quire.wal.trash import Trash
from quire.wal.view import View
from quire.wire.block import Buffer, peek
from quire.wire.bookie import BookieId

_log = logging.getLogger(__name__)

LOOK_S: Final = 15.0
GRACE_S: Final = 60.0
"""Seconds without a writer after which a WAL is closed. A process that needs a ledger of the WAL closes it at once."""

REMOVE_AFTER_S: Final = 3_600.0
"""Seconds for which an empty WAL keeps its record. A delayed upload may still arrive; without a record, its object
would look like part of a WAL whose record was lost.
"""

SWEEP_UPLOADS_S: Final = 3_600.0
UPLOAD_MS: Final = 86_400_000
"""Age in ms after which an unfinished upload is aborted; by then, its process has retried or ended."""

SET_BYTES: Final = 64 * MIB
"""Approximate number of bytes of data objects that are copied into one set."""


class Collector:
    """Collector of all WALs except this process's own (`own()`). It acts only while `may()` is true."""

    def __init__(
        self, context: WalContext, own: Callable[[], BookieId | None], may: Callable[[], bool]
    ) -> None:
        self._context = context
        self._own = own
        self._may = may
        self._tasks = Tasks("wal collector")
        self._missed_since: dict[str, float] = {}
        self._empty_since: dict[str, float] = {}
        """Time at which each closed WAL was first found empty, by UUID."""
        self._swept: set[str] = set()
        """Closed WALs whose folders contain only objects that their records name."""
        self._damaged: dict[str, str] = {}
        """Last change id of the record of each damaged WAL, which is skipped until its record changes."""
        self._uploads_swept_s: float | None = None

    def start(self) -> None:
        self._tasks.start_every(LOOK_S, self.look, "keep closed WALs in order")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def look(self) -> None:
        """Run one round."""
        if not self._may():
            self._missed_since.clear()
            return
        records = await all_records(self._context.metadata)
        gone = await self._gone(records)
        for uuid, record in records.items():
            if not self._may():
                return  # another process is the coordinator now
            try:
                if uuid in gone:
                    await close_wal(self._context, uuid)
                elif record.state is WalState.CLOSED:
                    await self._keep(record)
            except NotFound:
                continue  # another process has removed the record or the objects
            except Exception as error:
                why = as_quire_error(error, f"the collection of wal-{uuid}")
                _log.warning("cannot collect wal-%s now, trying again: %s", uuid, why)
        try:
            await self._sweep_uploads()
        except QuireError as error:
            _log.warning("cannot abort unfinished uploads now, trying again: %s", error)

    # -- WALs without a writer ---------------------------------------------------------------------------
    async def _gone(self, records: Mapping[str, WalRecord]) -> set[str]:
        """Return the UUIDs of unclosed WALs whose writers have been dead for `GRACE_S`."""
        now, own = self._context.clock.monotonic(), self._own()
        lives = await self._living(records)
        missed = {
            uuid
            for uuid, record in records.items()
            if record.state is not WalState.CLOSED
            and not lives(record)
            and (own is None or own.uuid != f"wal-{uuid}")
        }
        self._missed_since = {uuid: self._missed_since.get(uuid, now) for uuid in missed}
        return {uuid for uuid, since in self._missed_since.items() if now - since >= GRACE_S}

    async def _living(self, records: Mapping[str, WalRecord]) -> Callable[[WalRecord], bool]:
        """Return a predicate that is true for a WAL whose writer is alive.

        A writer is alive while its node exists. Writers of older versions have no such node: they count as alive while
        the broker's node exists, unless that broker has registered another WAL.
        """
        metadata = self._context.metadata
        registered = {*await metadata.children(paths.WAL_WRITERS)}
        brokers = {paths.decode(each) for each in await metadata.children(paths.BROKERS)}
        newer = {records[uuid].broker for uuid in registered if uuid in records}

        def lives(record: WalRecord) -> bool:
            if record.is_registered:
                return record.uuid in registered
            return record.broker in brokers and record.broker not in newer

        return lives

    # -- closed WALs -------------------------------------------------------------------------------------
    async def _keep(self, record: WalRecord) -> None:
        uuid, metadata = record.uuid, self._context.metadata
        laid = await tombstones.laid(metadata, uuid)
        if record.trim_seq >= record.end_seq and not laid and record.catalogue and uuid in self._swept:
            return
        if self._damaged.get(uuid) == record.change_id and not laid:
            return
        now = self._context.clock.monotonic()
        empty_s = now - self._empty_since.get(uuid, now)
        if uuid in self._empty_since and not laid and empty_s < REMOVE_AFTER_S:
            return
        # Read the record before the view: a compare-and-set with its version proves that the view is not outdated.
        own = await OwnRecord.read(metadata, uuid)
        view = View(self._context, uuid)
        await view.refresh()
        trash = Trash(self._context.objects, self._tasks)
        keeper = Keeper(own, view.sets, trash)
        deleted = {**view.deleted, **laid}
        is_whole = await self._make_sets(keeper, own, deleted, set(view.index.ledgers()))
        if deleted:
            left = () if is_whole else set(view.index.ledgers())
            await keeper.change([], keeper.trim_seq, deleted, left)
            await tombstones.take_away(metadata, uuid, list(laid))
        await trash.emptied()
        await self._sweep(own, view)
        if not is_whole:
            self._damaged[uuid] = own.record.change_id
        if own.record.catalogue or not is_whole:
            return
        self._empty_since.setdefault(uuid, now)
        if empty_s >= REMOVE_AFTER_S:
            await own.remove()
            del self._empty_since[uuid]
            _log.info("removed the empty wal-%s of broker %s", uuid, record.broker)

    async def _make_sets(
        self, keeper: Keeper, own: OwnRecord, deleted: Mapping[int, int], elsewhere: Collection[int]
    ) -> bool:
        """Copy all data objects into sets. Return False if one is damaged; all objects before it are in sets."""
        try:
            while keeper.trim_seq < own.record.end_seq:
                await self._make_set(keeper, own.record, deleted, elsewhere)
        except (NotFound, CorruptionError) as error:
            uuid = own.record.uuid
            damage = await prove_missing(self._context.place, error, uuid, own.version)
            if not isinstance(damage, CorruptionError):
                raise damage from error
            if uuid not in self._damaged:
                _log.error(
                    "cannot copy all of wal-%s into sets: %s; `quire wal close %s --accept-loss` gives up the blocks "
                    "of damaged objects",
                    uuid,
                    damage,
                    uuid,
                )
            return False
        return True

    async def _make_set(
        self, keeper: Keeper, record: WalRecord, deleted: Mapping[int, int], elsewhere: Collection[int]
    ) -> None:
        """Copy the next data objects into one set, up to the first damaged object."""
        ledgers: dict[int, dict[int, Buffer]] = {}
        seq, size = keeper.trim_seq, 0
        while seq < record.end_seq and size < SET_BYTES:
            try:
                blocks = await self._blocks(record.uuid, seq) if seq not in record.lost else []
            except (NotFound, CorruptionError):
                if seq == keeper.trim_seq:
                    raise
                break
            for block in blocks:
                header = peek(block)
                if header.ledger_id not in deleted:
                    ledgers.setdefault(header.ledger_id, {})[header.first_entry] = block
                    size += len(block)
            seq += 1
        runs = [
            (ledger_id, [blocks[entry] for entry in sorted(blocks)])
            for ledger_id, blocks in sorted(ledgers.items())
        ]
        sets = [await keeper.write_set(runs, seq - 1, self._context.clock.now_ms())] if runs else []
        await keeper.change(sets, seq, deleted, elsewhere)

    async def _blocks(self, uuid: str, seq: int) -> list[Buffer]:
        objects = self._context.objects
        read = partial(read_data_object, objects.blocking, uuid, seq)
        return await until_answered(lambda: objects.run(read), f"read of object {seq} of wal-{uuid}")

    async def _sweep(self, own: OwnRecord, view: View) -> None:
        names = await sweep.unnamed(self._context, own, view.sets)
        if not self._may():
            return
        for name in names:
            await self._context.objects.delete(name)
        self._swept.add(own.record.uuid)

    async def _sweep_uploads(self) -> None:
        """Abort uploads older than `UPLOAD_MS`, every `SWEEP_UPLOADS_S`; uploads in progress are younger."""
        now_s = self._context.clock.monotonic()
        if self._uploads_swept_s is not None and now_s - self._uploads_swept_s < SWEEP_UPLOADS_S:
            return
        self._uploads_swept_s = now_s
        await self._context.place.confirm()
        count = await self._context.objects.sweep(self._context.clock.now_ms() - UPLOAD_MS)
        if count:
            _log.info("aborted %d unfinished uploads to %s", count, self._context.objects.url)
