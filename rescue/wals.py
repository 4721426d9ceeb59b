"""Rescue of write-ahead logs: rebuild their records from the bucket, close the logs, and read their ledgers.

Logs are closed as in a takeover (`wal.closing`), which fences a writer that is still alive. A dry run creates records
in a separate store, and reads an open log up to its first gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from uuid import uuid4

from quire.metadata import paths
from quire.metadata.records import WalRecord, encode
from quire.objects.store import ObjectInfo
from quire.rescue.facts import AGAIN_S, ATTEMPTS, Show, in_turns, read_label
from quire.rescue.ledger_plan import BookieFacts
from quire.rescue.wal_plan import WalFacts, of_all_sets, plan_wal
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    CorruptionError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from quire.wal import tombstones, wal_object
from quire.wal.closing import close_wal
from quire.wal.closing_core import WalDamaged
from quire.wal.directory import WalDirectory
from quire.wal.foreign import ForeignWal
from quire.wal.patience import until_answered
from quire.wal.view import View
from quire.wal.wal_object import SetEntry
from quire.wire import ledger_ids
from quire.wire.bookie import BookieId


class Wals:
    """Write-ahead logs of the cluster. `lost` and `doubtful` contain sentences about damage of the logs."""

    def __init__(
        self, directory: WalDirectory, show: Show, *, accept_loss: bool = False, is_dry: bool = False
    ) -> None:
        self._directory = directory
        self._objects = directory.context.objects
        self._metadata = directory.context.metadata
        self._show = show
        self._accept_loss = accept_loss
        self._is_dry = is_dry
        self.lost: list[str] = []
        self.doubtful: list[str] = []

    async def ask(self, copied: Mapping[str, WalRecord], known: Collection[int]) -> list[BookieFacts]:
        """Close all logs and return facts about their ledgers. `known` are ledgers whose labels need not be read.

        Raises the stores' errors, and `ConfigurationError` for a bucket without logs if the copy names logs.
        """
        listed: dict[str, dict[str, int]] = {uuid: {} for uuid in copied}
        for info in await self._list():
            listed.setdefault(info.name.split("/")[1], {})[info.name] = info.bytes
        if any(record.catalogue or record.trim_seq for record in copied.values()) and not any(
            listed.values()
        ):
            raise ConfigurationError(
                f"{self._objects.url} has no write-ahead log, but the copy of the metadata lists {len(copied)}: "
                "use the same --wal as the brokers"
            )

        async def ask(uuid: str) -> BookieFacts | None:
            return await self._ask(WalFacts(uuid, listed[uuid]), copied.get(uuid), known)

        found = await in_turns(ask, sorted(listed), self._show, "write-ahead logs closed")
        return [facts for facts in found if facts is not None]

    async def _list(self) -> list[ObjectInfo]:
        return await until_answered(partial(self._objects.list, wal_object.FOLDER), "listing of the logs")

    async def _ask(
        self, facts: WalFacts, copied: WalRecord | None, known: Collection[int]
    ) -> BookieFacts | None:
        """Restore the record of one WAL, close the WAL, and return its facts; None if it needs no record."""
        await self._learn(facts)
        store = self._objects.url.partition("?")[0]
        plan = plan_wal(facts, copied, store)
        self.lost += plan.damage
        if plan.damage:
            if not self._accept_loss or self._is_dry:
                return BookieFacts(_id(facts.uuid), is_whole=False)
            await self._write_catalogue(facts)
            plan = plan_wal(facts, copied, store)
        self.doubtful += plan.doubtful
        if plan.record is None:
            return None
        try:
            await self._metadata.create(paths.wal(facts.uuid), encode(plan.record))
        except AlreadyExists:
            pass  # an interrupted run created the record, and may have closed the log
        is_closed = await self._close(facts.uuid)
        return await self._hold(facts, known, is_closed)

    # -- its record --------------------------------------------------------------------------------------
    async def _learn(self, facts: WalFacts) -> None:
        """Read the log's catalogues, and the header of its last data object."""
        for name in facts.sizes:
            if name.rpartition("/")[2].startswith("sets-"):
                content = await self._read(name, 0, facts.sizes[name])
                try:
                    crc = wal_object.catalogue_crc(content) if len(content) >= 16 else 0
                    facts.catalogues[name] = wal_object.decode_catalogue(content, crc, name), crc
                except CorruptionError as error:
                    facts.unreadable.append(str(error))
        data = [seq for seq in facts.numbers if not facts.is_fence(seq)]
        if data:
            name = wal_object.data_name(facts.uuid, data[-1])
            try:
                content = await self._read(name, 0, wal_object.HEADER_BYTES)
                facts.last = wal_object.header_of(content, facts.uuid, data[-1])
            except CorruptionError:
                pass  # closing the log reports the damage

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        read = partial(self._objects.get_range, name, offset, size)
        return bytes(await until_answered(read, f"read of {name}"))

    async def _write_catalogue(self, facts: WalFacts) -> None:
        """Write a catalogue that replaces the damaged ones, and make it the only one in `facts`."""
        sets = []
        for name, size in facts.sizes.items():
            if name.rpartition("/")[2].startswith("set-"):
                try:
                    header = wal_object.read_header(await self._read(name, 0, wal_object.HEADER_BYTES), name)
                except CorruptionError as error:
                    self.lost.append(str(error))
                    continue
                crc = wal_object.footer_crc(await self._read(name, size - 4, 4))
                sets.append(SetEntry(name, size, crc, header.seq, header.trim_seq))
        catalogue = of_all_sets(facts, sets)
        content = wal_object.encode_catalogue(catalogue)
        name = wal_object.catalogue_name(facts.uuid, 0, uuid4().hex[:16])
        put = partial(self._objects.put_whole, name, (content,))
        await until_answered(put, f"write of {name}")
        facts.catalogues = {name: (catalogue, wal_object.catalogue_crc(content))}
        facts.unreadable.clear()

    async def _close(self, uuid: str) -> bool:
        """Close the log. Return False if it is damaged; in a dry run do nothing, and return True."""
        if self._is_dry:
            return True
        context = self._directory.context
        try:
            await close_wal(context, uuid, accept_loss=self._accept_loss)
        except WalDamaged as error:
            self.lost.append(str(error))
            return False
        return True

    # -- its ledgers -------------------------------------------------------------------------------------
    async def _hold(self, facts: WalFacts, known: Collection[int], is_whole: bool) -> BookieFacts:
        log = _id(facts.uuid)
        found = BookieFacts(log, is_whole=is_whole)
        port = self._directory.port(log)
        assert isinstance(port, ForeignWal), "no log of this process"
        view = port.view
        if why := await self._why_unread(view):
            self.lost.append(f"cannot read {log.uuid}: {why}")
            found.is_whole = False
            return found
        there = {each for each in view.index.ledgers() if not view.is_deleted(each)}
        found.ledgers = {each for each in there if not ledger_ids.is_label(each)}
        for each in found.ledgers:
            found.spans[each] = view.index.rows(each, 0, 1)[0].first_entry, view.index.last_entry(each)
        dead = {*view.deleted, *view.sets.catalogue.tombstones, *facts.tombstones}
        found.deleted = {each for each in dead if not ledger_ids.is_label(each)}

        async def learn(label: int) -> None:
            try:
                told = await read_label(self._directory, log, label)
            except (CorruptionError, NotFound) as error:
                found.unreadable.append(f"{log.uuid}: {error}")
            else:
                if told is not None:
                    found.labels[told.record.ledger_id] = told

        wanted = [each for each in there - found.ledgers if ledger_ids.labelled(each) not in known]
        await in_turns(learn, sorted(wanted), self._show, f"labels of log {facts.uuid[:8]}")
        return found

    async def _why_unread(self, view: View) -> str:
        """Read the view, with retries if the store is unavailable. Return the error, or "" on success."""
        for _ in range(ATTEMPTS):
            try:
                await view.refresh()
            except CorruptionError as error:
                return str(error)
            except (Unavailable, OutcomeUnknown) as error:
                why = str(error)
                await asyncio.sleep(AGAIN_S)
            else:
                return ""
        return why

    async def bury(self, logs: Sequence[BookieFacts], deleted: Collection[int]) -> None:
        """Write the tombstones of `deleted` ledgers that are still in a log.

        They were in another log, or were pending in the lost metadata store.
        """
        for log in logs:
            uuid = log.bookie.uuid.removeprefix("wal-")
            for ledger_id in sorted(log.ledgers.intersection(deleted)):
                for each in (ledger_id, ledger_ids.label_id(ledger_id)):
                    await tombstones.lay(self._metadata, uuid, each, 0)


def _id(uuid: str) -> BookieId:
    return BookieId(f"wal-{uuid}", 1)
