"""What a person asks of the WALs in a store: what they hold, whether it is whole, and what nobody names.

`verify` reads every byte that a WAL's record names. `strays` finds objects that no record names: from before a death,
or uploads that came late. Both ask the stores alone, no broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from quire.metadata.records import WalRecord, WalState
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectInfo, ObjectStore
from quire.runtime.errors import CorruptionError, NotFound, Unavailable
from quire.wal import wal_object
from quire.wal.context import WalContext
from quire.wal.own_record import OwnRecord, all_records
from quire.wal.run_index import RunIndex
from quire.wal.run_reader import RunReader, read_data_object
from quire.wal.set_objects import SetObjects
from quire.wal.view import LOOKS_MAX, View
from quire.wire.ledger_ids import is_label

GRACE_MS: Final = 3_600_000
"""An object that is younger may be about to be named."""

FENCE_MS: Final = 90 * 86_400_000
"""A fence bars a writer that stands still with an upload under way; one that stood for so long is not waited for."""


async def records(metadata: MetadataStore) -> list[WalRecord]:
    """Those of all WALs, the oldest first. Raises `Unavailable`."""
    found = await all_records(metadata)
    return sorted(found.values(), key=lambda record: (record.created_ms, record.uuid))


async def closer_of(objects: ObjectStore, record: WalRecord) -> str:
    """Who has closed the WAL, by its fence; its writer when there is none, "" while it is open.

    Raises `Unavailable`, `CorruptionError` when the fence cannot be read.
    """
    if record.state is not WalState.CLOSED:
        return ""
    name = wal_object.data_name(record.uuid, record.end_seq)
    try:
        return wal_object.closer_of(await objects.get_range(name, 0, wal_object.FENCE_BYTES))
    except NotFound:
        return record.broker


@dataclass
class Verified:
    """What was read of a WAL, and what is wrong with it."""

    uuid: str
    sets: int = 0
    data_objects: int = 0
    ledgers: int = 0
    bytes: int = 0
    damage: list[str] = field(default_factory=list)


async def verify(context: WalContext, uuid: str) -> Verified:
    """Read all that the WAL's record names. Raises `NotFound`, `Unavailable`; damage is told, not raised.

    A WAL that lives goes on meanwhile: what was damaged or not there is told when the record names it still. One that
    goes on faster than it is read is `Unavailable`: nobody has seen all of it.
    """
    await OwnRecord.read(context.metadata, uuid)
    found, view = Verified(uuid), View(context, uuid)
    try:
        await view.refresh()
        for _ in range(LOOKS_MAX):
            wrong = await _read(context, view, found)
            if not wrong:
                break
            await view.refresh()
            found.damage = [why for name, why in wrong.items() if name in view.index]
            if found.damage:
                break
        else:
            raise Unavailable(
                f"wal-{uuid} goes on faster than it is read: of what it named, {sorted(wrong)[0]} had gone already; "
                "try again when less is published"
            )
    except CorruptionError as error:
        found.damage.append(str(error))
    return found


async def _read(context: WalContext, view: View, found: Verified) -> dict[str, str]:
    """Read what the view has, and count it; what is wrong with which object."""
    damage = {}
    found.sets = found.data_objects = found.bytes = 0
    found.ledgers = sum(not is_label(each) for each in view.index.ledgers())
    reader, objects = RunReader(context.objects, view.index, context.cache), context.objects
    for name in list(view.index):
        seq = wal_object.seq_of(name)
        try:
            if seq is None:
                found.sets += 1
                for run in view.index.runs_of(name):
                    found.bytes += len(await objects.run(partial(reader.load, run)))
            else:
                found.data_objects += 1
                blocks = await objects.run(partial(read_data_object, objects.blocking, view.uuid, seq))
                found.bytes += sum(map(len, blocks))
        except (CorruptionError, NotFound) as error:
            damage[name] = str(error)
    return damage


async def strays(context: WalContext, now_ms: int) -> list[ObjectInfo]:
    """Objects below `wal/`, older than an hour, that no WAL needs. Raises what the stores do.

    The fence of a WAL that is gone is one after ninety days.
    """
    known = {record.uuid: record for record in await records(context.metadata)}
    named: dict[str, set[str]] = {}
    found = []
    for info in await context.objects.list(wal_object.FOLDER):
        uuid = info.name.split("/")[1]
        record = known.get(uuid)
        if info.modified_ms > now_ms - GRACE_MS:
            continue
        if record is None:
            is_fence = wal_object.seq_of(info.name) is not None and info.bytes == wal_object.FENCE_BYTES
            if not is_fence or info.modified_ms <= now_ms - FENCE_MS:
                found.append(info)
            continue
        if uuid not in named:
            named[uuid] = await _named(context, record)
        if not _is_needed(info, record, named[uuid]):
            found.append(info)
    return found


async def _named(context: WalContext, record: WalRecord) -> set[str]:
    sets = SetObjects(context.objects, record.uuid, RunIndex())
    await sets.load(record.catalogue, record.catalogue_crc)
    return sets.names


def _is_needed(info: ObjectInfo, record: WalRecord, named: set[str]) -> bool:
    seq = wal_object.seq_of(info.name)
    if seq is None:
        return info.name in named
    return seq >= record.trim_seq and (record.state is not WalState.CLOSED or seq <= record.end_seq)
