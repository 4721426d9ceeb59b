"""A ledger of three bookies goes to the archive; its reader and the archive's give the same answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.metadata.records import SegmentRecord
from quire.objects.filesystem import FilesystemStore
from quire.runtime.clock import ManualClock
from quire.runtime.errors import CorruptionError, NotFound
from quire.testing.cluster import Listener, MemoryCluster, write
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive, SegmentReader
from quire.wire import block

from .segments import TOPIC, but_labels, offload


async def closed_ledger(cluster: MemoryCluster) -> SegmentRecord:
    writer = await cluster.ledgers.create("test", Listener())
    last = write(writer, blocks=500, count=3)
    await writer.close()
    return SegmentRecord(ledger_id=writer.ledger_id, sealed_ms=1, last_entry=last, messages=last + 1)


async def everything(reader: SegmentReader, bytes_max: int) -> list[bytes]:
    found: list[bytes] = []
    entry = 0
    while blocks := await reader.read(entry, bytes_max):
        found += map(bytes, blocks)
        entry = block.read_header(blocks[-1]).last_entry + 1
    return found


async def test_both_readers_answer_the_same(tmp_path: Path) -> None:
    cluster = MemoryCluster(3)
    archive = Archive(TrustedPlace(FilesystemStore(tmp_path)), ManualClock())
    segment = await closed_ledger(cluster)
    bookies = await cluster.ledgers.open(segment.ledger_id)
    pointer = await offload(archive, segment, bookies)
    archived = archive.open(pointer)
    assert await everything(archived, 5000) == await everything(bookies, 5000)
    for entry in (0, 1, 2, 3, 700, segment.last_entry):
        assert bytes((await archived.read(entry, 1))[0]) == bytes((await bookies.read(entry, 1))[0])
    assert (
        await archived.read(segment.last_entry + 1, 1) == await bookies.read(segment.last_entry + 1, 1) == []
    )
    await cluster.ledgers.delete(segment.ledger_id)
    with pytest.raises(NotFound):
        await cluster.ledgers.open(segment.ledger_id)
    assert len(await everything(archived, 1 << 20)) == 500
    await archive.close()


async def test_one_damaged_replica_does_not_reach_the_archive_and_three_stop_it(tmp_path: Path) -> None:
    cluster = MemoryCluster(3)
    archive = Archive(TrustedPlace(FilesystemStore(tmp_path)), ManualClock())
    segment = await closed_ledger(cluster)
    cluster.bookies[0].flip(segment.ledger_id, 30)
    pointer = await offload(archive, segment, await cluster.ledgers.open(segment.ledger_id))
    await archive.verify(pointer)
    for bookie in cluster.bookies[1:]:
        bookie.flip(segment.ledger_id, 30)
    with pytest.raises(CorruptionError):
        await archive.offload(TOPIC, segment, await cluster.ledgers.open(segment.ledger_id))
    assert [info.name for info in await but_labels(archive.store)] == [pointer.name]
    await archive.close()
