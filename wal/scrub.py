"""Operators' commands for WALs: list, verify, delete unneeded objects, close, give up damaged objects.

`verify` reads all bytes of the objects that a WAL's record names. `strays` finds objects that no record names, which
remain after crashes or late uploads. `give_up` gives up the damaged objects of a closed WAL. The commands access the
stores directly, without a broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from quire.metadata import paths
from quire.metadata.records import WalRecord, WalState
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectInfo, ObjectStore
from quire.runtime.errors import (
    CorruptionError,
    Fenced,
    InUse,
    NotFound,
    Unavailable,
    Unreadable,
    WrongCluster,
)
from quire.wal import sweep, wal_object
from quire.wal.closing import UNREADABLE_TRIES, close_wal
from quire.wal.context import WalContext
from quire.wal.own_record import OwnRecord, all_records
from quire.wal.patience import until_answered
from quire.wal.proof import RecordOutdated, check_store
from quire.wal.run_index import RunIndex
from quire.wal.run_reader import RunReader, read_data_object
from quire.wal.set_objects import SetObjects
from quire.wal.view import LOOKS_MAX, View
from quire.wire.ledger_ids import is_label

Delete = Callable[[str], Awaitable[None]]

GRACE_MS: Final = 3_600_000
"""Age in ms below which an object is kept, because a record may be about to name it."""

FENCE_MS: Final = 90 * 86_400_000
"""Age in ms after which a fence is deleted: no paused writer's upload is expected after that time."""


async def records(metadata: MetadataStore) -> list[WalRecord]:
    """Return the records of all WALs, oldest first. Raises `Unavailable`."""
    found = await all_records(metadata)
    return sorted(found.values(), key=lambda record: (record.created_ms, record.uuid))


async def misplaced(context: WalContext, found: Sequence[WalRecord]) -> list[str]:
    """Return warnings about WALs in another object store, and about an object store that belongs to another cluster.

    Raises the stores' errors.
    """
    wrong = []
    try:
        await context.place.confirm()
    except (WrongCluster, CorruptionError) as error:
        wrong.append(str(error))
    for record in found:
        try:
            check_store(record, context.objects)
        except WrongCluster as error:
            wrong.append(str(error))
    return wrong


async def closer_of(objects: ObjectStore, record: WalRecord) -> str:
    """Return the broker that closed the WAL, from its fence; without a fence, the writer; "" for an unclosed WAL.

    Raises `WrongCluster`, `Unavailable`, and `CorruptionError` if the fence cannot be read.
    """
    check_store(record, objects)
    if record.state is not WalState.CLOSED:
        return ""
    name = wal_object.data_name(record.uuid, record.end_seq)
    try:
        return wal_object.closer_of(await objects.get_range(name, 0, wal_object.FENCE_BYTES))
    except NotFound:
        return record.broker


@dataclass
class Verified:
    """Result of `verify`: counts of the objects that were read, and descriptions of damage."""

    uuid: str
    sets: int = 0
    data_objects: int = 0
    ledgers: int = 0
    bytes: int = 0
    damage: list[str] = field(default_factory=list)


async def verify(context: WalContext, uuid: str) -> Verified:
    """Read every object that the WAL's record names. Damage is returned, not raised.

    An open WAL changes during the read, so a damaged or missing object is reported only if the record still names it.
    Raises `NotFound`, and `Unavailable` for a WAL that changes faster than it can be read.
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
                f"wal-{uuid} changes faster than it can be read: {sorted(wrong)[0]} was replaced during the read; try "
                "again when publishing is slower"
            )
    except CorruptionError as error:
        found.damage.append(str(error))
    return found


async def _read(context: WalContext, view: View, found: Verified) -> dict[str, str]:
    """Read and count the objects of the view. Return descriptions of damage by object name."""
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


@dataclass
class Strays:
    """Objects that no record names: the deletable ones, and the reasons why others are kept."""

    deletable: list[ObjectInfo] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Reasons why objects are kept, as sentences, by the UUID of their WAL."""
    unproven: str = ""
    """Reason why the metadata may be incomplete or outdated, so that all objects are kept; "" if they are verified."""


async def strays(context: WalContext, now_ms: int, delete: Delete | None = None) -> Strays:
    """Find objects below `wal/`, older than an hour, that no WAL needs. Call `delete`, if given, for each of them.

    | log | deletable |
    |---|---|
    | open | data objects below its trim point |
    | closed | objects that its record does not name; see `sweep` |
    | without a record (perhaps lost) | objects after its fence; after ninety days, a fence without other objects |

    Objects are deleted only if the absence of a record proves that the record was deleted (`identity.guard`).
    Immediately before each deletion both stores are verified, and the log's record is read again. Raises `WrongCluster`
    and the stores' errors.
    """
    await context.place.confirm()
    found, folders = Strays(), dict[str, list[ObjectInfo]]()
    for info in await context.objects.list(wal_object.FOLDER):
        folders.setdefault(info.name.split("/")[1], []).append(info)
    plan = list[tuple[str, _Protecting, list[ObjectInfo]]]()
    for uuid, infos in folders.items():
        old = [info for info in infos if info.modified_ms <= now_ms - GRACE_MS]
        try:
            own = await OwnRecord.read(context.metadata, uuid)
        except NotFound:
            protecting = None
            names, why = _without_record(infos, now_ms)
        else:
            protecting = own.record.state, own.record.end_seq
            names, why = await _with_record(context, own, old, is_dry=delete is None)
        chosen = [info for info in old if info.name in names]
        found.deletable += chosen
        plan.append((uuid, protecting, chosen))
        if why:
            found.kept[uuid] = why
    await _confirm(context, found, must=delete is not None)
    if delete is not None:
        for uuid, protecting, chosen in plan:
            await _delete(context, uuid, protecting, chosen, delete)
    return found


_Protecting = tuple[WalState, int] | None
"""Fields of a WAL's record that protect objects; None without a record.

The trim point is left out, because it only increases, so that fewer objects are protected.
"""


async def _confirm(context: WalContext, found: Strays, *, must: bool) -> None:
    """Verify that no WAL needs the objects; else set `found.unproven`, or raise `WrongCluster` if `must`."""
    try:
        await context.place.confirm_absence(
            f"{len(found.deletable)} objects of write-ahead logs" if found.deletable else ""
        )
    except WrongCluster as error:
        if must:
            raise
        found.unproven = str(error)


async def _delete(
    context: WalContext, uuid: str, before: _Protecting, chosen: Sequence[ObjectInfo], delete: Delete
) -> None:
    """Delete objects of a log, unless its record was changed or created after they were chosen."""
    for info in chosen:
        await context.place.confirm()
        if await _protecting(context, uuid) != before:
            return  # the next scrub checks again
        await delete(info.name)


async def _protecting(context: WalContext, uuid: str) -> _Protecting:
    try:
        record = (await OwnRecord.read(context.metadata, uuid)).record
    except NotFound:
        return None
    return record.state, record.end_seq


async def _with_record(
    context: WalContext, own: OwnRecord, old: Sequence[ObjectInfo], *, is_dry: bool
) -> tuple[Collection[str], str]:
    """Return the names of deletable objects of a log with a record, and the reason why others are kept."""
    record = own.record
    try:
        check_store(record, context.objects)
        if record.state is not WalState.CLOSED:
            seqs = {info.name: wal_object.seq_of(info.name) for info in old}
            return {name for name, seq in seqs.items() if seq is not None and seq < record.trim_seq}, ""
        sets = SetObjects(context.objects, record.uuid, RunIndex())
        await sets.load(record.catalogue, record.catalogue_crc)
        return await sweep.unnamed(context, own, sets, is_dry=is_dry), ""
    except (WrongCluster, RecordOutdated, CorruptionError, NotFound, Fenced) as error:
        return (), str(error)


def _without_record(infos: Sequence[ObjectInfo], now_ms: int) -> tuple[Collection[str], str]:
    """Return the names of deletable objects of a log without a record, and the reason why others are kept."""
    uuid = infos[0].name.split("/")[1]
    if uuid.startswith("probe-"):
        return [info.name for info in infos], ""
    fences = [info for info in infos if _is_fence(info)]
    fence_seq = max((wal_object.seq_of(info.name) or 0 for info in fences), default=-1)
    if len(infos) == len(fences):
        return [info.name for info in fences if info.modified_ms <= now_ms - FENCE_MS], ""
    behind = [info.name for info in infos if fences and (wal_object.seq_of(info.name) or -1) > fence_seq]
    left = len(infos) - len(behind) - len(fences)
    if not left:
        return behind, ""
    return behind, (
        f"{left} objects of wal-{uuid}, which has no record: if the record was lost, they contain acknowledged blocks; "
        "`quire rescue metadata` restores it"
    )


def _is_fence(info: ObjectInfo) -> bool:
    return wal_object.seq_of(info.name) is not None and info.bytes == wal_object.FENCE_BYTES


async def close(
    context: WalContext, uuid: str, *, accept_loss: bool = False, even_written: bool = False
) -> WalRecord:
    """Close a WAL on an operator's order. With `accept_loss`, give up damaged objects, also of a closed WAL.

    Raises `InUse` if its writer is alive, unless `even_written` is set; `WrongCluster` if the metadata may be outdated;
    and the errors of `close_wal`.
    """
    await context.place.confirm_absence()
    writer = await _writer_of(context.metadata, uuid)
    if writer and not even_written and not await _is_closed(context.metadata, uuid):
        raise InUse(
            f"wal-{uuid} is being written by broker {writer}, whose node {paths.wal_writer(uuid)} exists; stop that "
            "broker, or close the WAL anyway with --force; publishers then wait until the broker has begun another WAL"
        )
    record = await close_wal(context, uuid, accept_loss=accept_loss)
    return await give_up(context, uuid) if accept_loss else record


async def _writer_of(metadata: MetadataStore, uuid: str) -> str:
    """Return the broker whose session has the WAL's writer node; "" if there is none. Raises `Unavailable`."""
    try:
        return (await metadata.get(paths.wal_writer(uuid))).value.decode()
    except NotFound:
        return ""


async def _is_closed(metadata: MetadataStore, uuid: str) -> bool:
    return (await OwnRecord.read(metadata, uuid)).record.state is WalState.CLOSED


async def give_up(context: WalContext, uuid: str) -> WalRecord:
    """Give up the damaged, missing or unreadable data objects of a closed WAL, on an operator's order.

    Return the record, which lists them. Raises `NotFound`, `WrongCluster`, and the stores' errors.
    """
    own = await OwnRecord.read(context.metadata, uuid)
    check_store(own.record, context.objects)
    lost = set(own.record.lost)
    for seq in range(own.record.trim_seq, own.record.end_seq):
        read = partial(read_data_object, context.objects.blocking, uuid, seq)
        try:
            await until_answered(
                partial(context.objects.run, read), f"read of object {seq}", unreadable_tries=UNREADABLE_TRIES
            )
        except (CorruptionError, NotFound, Unreadable):
            lost.add(seq)
    if lost != set(own.record.lost):
        await context.place.confirm_absence()
        await own.change(lost=tuple(sorted(lost)))
    return own.record
