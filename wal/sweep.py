"""Sweep of a closed WAL: finds objects that its record does not name, left by a crash or by a paused writer.

The collector and `quire wal scrub --delete` execute these steps:

    list → choose unnamed objects → write the record with a new version and equal values → verify both stores → delete

The new version excludes a race with a process that has written a set and is about to record it. Either that process
gets a version conflict, or this process gets one and deletes nothing.
"""

from __future__ import annotations

from quire.metadata.records import WalState
from quire.runtime.errors import CorruptionError, NotFound
from quire.wal import wal_object
from quire.wal.context import WalContext
from quire.wal.own_record import OwnRecord
from quire.wal.proof import RecordOutdated, check_store
from quire.wal.set_objects import SetObjects, newer_sets


async def unnamed(
    context: WalContext, own: OwnRecord, sets: SetObjects, *, is_dry: bool = False
) -> list[str]:
    """Return the names of objects that may be deleted now; the fence is not among them.

    `sets` contains the sets that the record `own` names. A dry run does not write the record. Raises `Fenced`,
    `RecordOutdated`, `WrongCluster`, and the stores' errors.
    """
    assert own.record.state is WalState.CLOSED
    check_store(own.record, context.objects)
    record = own.record
    listed = [info.name for info in await context.objects.list(wal_object.folder(record.uuid))]
    for name in newer_sets(record, listed):
        if (covered := await _last_covered(context, name)) >= record.trim_seq:
            raise RecordOutdated(
                record.uuid, f"{name}, which it does not name, covers objects up to {covered}"
            )
    names = [
        name
        for name in listed
        if name not in sets.names and not _is_data_to_keep(name, record.trim_seq, record.end_seq)
    ]
    if names and not is_dry:
        await own.change()
        await context.place.confirm()
    return names


def _is_data_to_keep(name: str, trim_seq: int, end_seq: int) -> bool:
    """Return whether `name` is a data object whose blocks are in no set yet, or the fence."""
    seq = wal_object.seq_of(name)
    return seq is not None and trim_seq <= seq <= end_seq


async def _last_covered(context: WalContext, name: str) -> int:
    try:
        content = await context.objects.get_range(name, 0, wal_object.HEADER_BYTES)
        return wal_object.read_header(content, name).trim_seq
    except (NotFound, CorruptionError):
        return -1
