"""Closes WALs whose writer is gone, and keeps closed ones in order, until nothing is left of them.

    open, its writer gone      it is closed, after a while
    closed, data objects       their living blocks become sets, and the data objects go
    tombstones laid            they go into the catalogue; sets without a living ledger go
    closed, nothing left       its objects go, all but the fence, and after a while its record

One process of a cluster does it, for there is one who coordinates repair; safety does not rest on that (see `keeper`).
A writer is gone when its broker is not registered, or has begun another WAL since. Who is closed by mistake begins
another one.

The fence stays: a writer that stands still may have an upload under way for as long as it likes. After ninety days
`quire wal scrub --delete` takes it away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

from quire.metadata import paths
from quire.metadata.records import WalRecord, WalState
from quire.runtime.errors import NotFound, QuireError
from quire.runtime.limits import MIB
from quire.runtime.tasks import Tasks
from quire.wal import tombstones, wal_object
from quire.wal.closing import close_wal
from quire.wal.context import WalContext
from quire.wal.keeper import Keeper
from quire.wal.own_record import OwnRecord, all_records
from quire.wal.patience import until_answered
from quire.wal.run_reader import read_data_object
from quire.wal.trash import Trash
from quire.wal.view import View
from quire.wire.block import Buffer, peek
from quire.wire.bookie import BookieId

_log = logging.getLogger(__name__)

LOOK_S: Final = 15.0
GRACE_S: Final = 60.0
"""A writer is missed for so long before its WAL is closed: whoever needs a ledger of it does not wait for that."""

REMOVE_AFTER_S: Final = 3_600.0
"""A WAL of which nothing is needed keeps its record for so long: an upload that its maker gave up may still come, and
what lies there without a record would be taken for a WAL whose record was lost."""

SET_BYTES: Final = 64 * MIB
"""About what goes from data objects into one set."""


class Collector:
    """`own` is the WAL that this process writes. It acts only while it `may`."""

    def __init__(
        self, context: WalContext, own: Callable[[], BookieId | None], may: Callable[[], bool]
    ) -> None:
        self._context = context
        self._own = own
        self._may = may
        self._tasks = Tasks("wal collector")
        self._missed_since: dict[str, float] = {}
        self._empty_since: dict[str, float] = {}
        """Closed WALs of which nothing is needed."""
        self._swept: set[str] = set()
        """Closed WALs in whose folders nothing lies that their records do not name."""

    def start(self) -> None:
        self._tasks.start_every(LOOK_S, self.look, "keep closed WALs in order")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def look(self) -> None:
        """Do what is to be done now."""
        if not self._may():
            self._missed_since.clear()
            return
        metadata = self._context.metadata
        records = await all_records(metadata)
        gone = self._gone(records, {paths.decode(each) for each in await metadata.children(paths.BROKERS)})
        for uuid, record in records.items():
            try:
                if uuid in gone:
                    await self._close(uuid)
                elif record.state is WalState.CLOSED:
                    await self._keep(record)
            except NotFound:
                continue  # somebody else was faster
            except QuireError as error:
                _log.warning("wal-%s cannot be kept in order now: %s", uuid, error)

    # -- whose writer is gone ----------------------------------------------------------------------------
    def _gone(self, records: Mapping[str, WalRecord], brokers: Collection[str]) -> set[str]:
        now = self._context.clock.monotonic()
        newest = {}
        for record in sorted(records.values(), key=lambda each: each.created_ms):
            newest[record.broker] = record.uuid
        own = self._own()
        missed = {
            uuid
            for uuid, record in records.items()
            if record.state is not WalState.CLOSED
            and (own is None or own.uuid != f"wal-{uuid}")
            and (record.broker not in brokers or newest[record.broker] != uuid)
        }
        self._missed_since = {uuid: self._missed_since.get(uuid, now) for uuid in missed}
        return {uuid for uuid, since in self._missed_since.items() if now - since >= GRACE_S}

    async def _close(self, uuid: str) -> None:
        context = self._context
        await close_wal(context.objects, context.metadata, context.clock, uuid, context.broker)

    # -- a closed one ------------------------------------------------------------------------------------
    async def _keep(self, record: WalRecord) -> None:
        uuid, metadata = record.uuid, self._context.metadata
        laid = await tombstones.laid(metadata, uuid)
        if record.trim_seq >= record.end_seq and not laid and record.catalogue and uuid in self._swept:
            return
        now = self._context.clock.monotonic()
        empty_s = now - self._empty_since.get(uuid, now)
        if uuid in self._empty_since and not laid and empty_s < REMOVE_AFTER_S:
            return
        # The record first: whoever changes it by that version knows that the view is as new.
        own = await OwnRecord.read(metadata, uuid)
        view = View(self._context, uuid)
        await view.refresh()
        trash = Trash(self._context.objects, self._tasks)
        keeper = Keeper(own, view.sets, trash)
        deleted = {**view.deleted, **laid}
        while keeper.trim_seq < own.record.end_seq:
            await self._make_set(keeper, own.record, deleted, set(view.index.ledgers()))
        if deleted:
            await keeper.change([], keeper.trim_seq, deleted, ())
            await tombstones.take_away(metadata, uuid, list(laid))
        await trash.emptied()
        await self._sweep(own, view)
        if own.record.catalogue:
            return
        self._empty_since.setdefault(uuid, now)
        if empty_s >= REMOVE_AFTER_S:
            await own.remove()
            del self._empty_since[uuid]
            _log.info("wal-%s of %s is gone: nothing of it is needed", uuid, record.broker)

    async def _make_set(
        self, keeper: Keeper, record: WalRecord, deleted: Mapping[int, int], elsewhere: Collection[int]
    ) -> None:
        """Bring what the next data objects hold into a set."""
        ledgers: dict[int, dict[int, Buffer]] = {}
        seq, size = keeper.trim_seq, 0
        while seq < record.end_seq and size < SET_BYTES:
            if seq not in record.lost:
                for block in await self._blocks(record.uuid, seq):
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
        """Delete what nobody names: from before a death, or by a writer that had stood still. Not the fence.

        Somebody else may have written a set that no record names yet. So the record gets another version between the
        look and the deletion: what he has written he can no longer record, or we cannot, and delete nothing.
        """
        there = await self._context.objects.list(wal_object.folder(own.record.uuid))
        await own.change()
        record, objects = own.record, self._context.objects
        named = {*view.sets.names, wal_object.data_name(record.uuid, record.end_seq)}
        await asyncio.gather(*(objects.delete(info.name) for info in there if info.name not in named))
        self._swept.add(record.uuid)
