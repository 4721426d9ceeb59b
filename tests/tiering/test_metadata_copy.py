"""Copies of the metadata in the archive, and labels beside its segments: taken, read, and refused when damaged."""

from __future__ import annotations

import pytest

from quire.metadata import paths
from quire.metadata.cluster import begin_cluster
from quire.metadata.records import LedgerRecord, Policies, TopicRecord, encode
from quire.rescue.facts import take_apart
from quire.runtime.errors import ConfigurationError, CorruptionError
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.tiering import metadata_copy, segment_label
from quire.tiering.segment_label import SegmentLabel

from .segments import TOPIC, make_blocks, record_of


async def filled() -> MemoryStore:
    store = MemoryStore()
    await begin_cluster(store, 5)
    await store.create(paths.topic("t", "n", "x"), encode(TopicRecord(name=TOPIC, generation=7)))
    await store.create(paths.policies("t", "n", "x"), encode(Policies(message_ttl_ms=9)))
    await store.create(paths.ledger(0x1234), encode(LedgerRecord(ledger_id=0x1234)))
    await store.put(paths.ledger(0x1234), encode(LedgerRecord(ledger_id=0x1234, last_entry=3)), 0)
    await store.create(paths.bookie_available("b"), b"{}", ephemeral=True)
    return store


async def test_it_has_every_record_and_its_version() -> None:
    copy = await metadata_copy.take(await filled(), 1_000)
    assert metadata_copy.decode(metadata_copy.encode(copy), "it") == copy
    found = take_apart(copy)
    assert found.topics[TOPIC].record.generation == 7 and found.cluster == copy.cluster
    assert (found.ledgers[0x1234].record.last_entry, found.ledgers[0x1234].version) == (3, 1)
    assert [node.path for node in found.others] == [paths.policies("t", "n", "x")]
    assert not any("available" in node.path for node in copy.nodes)


async def test_the_newest_that_is_whole_is_read_and_few_are_kept() -> None:
    store, objects = await filled(), MemoryObjectStore()
    for taken_ms in range(1_000, 1_000 + metadata_copy.KEPT + 3):
        name = await metadata_copy.put(objects, await metadata_copy.take(store, taken_ms))
    assert len(await objects.list(metadata_copy.PREFIX)) == metadata_copy.KEPT
    found, damaged = await metadata_copy.newest(objects)
    assert found is not None and found.taken_ms == taken_ms and not damaged
    raw = bytes(await objects.get_range(name, 0, await objects.size(name)))
    await objects.delete(name)
    await objects.put_whole(name, [raw[:-1] + bytes([raw[-1] ^ 1])])
    found, damaged = await metadata_copy.newest(objects)
    assert found is not None and found.taken_ms == taken_ms - 1
    assert damaged == [f"object {name} does not match its checksum"]


async def test_another_cluster_over_the_same_archive_takes_no_copy_away() -> None:
    """Begun in haste after the loss, it would have deleted the last copies of the lost one within the hour."""
    lost, other, objects = await filled(), await filled(), MemoryObjectStore()
    copy = await metadata_copy.take(lost, 1_000)
    await metadata_copy.put(objects, copy)
    for taken_ms in range(2_000, 2_000 + 2 * metadata_copy.KEPT):
        await metadata_copy.put(objects, await metadata_copy.take(other, taken_ms))
    with pytest.raises(ConfigurationError, match="name one with --cluster"):
        await metadata_copy.newest(objects)
    assert await metadata_copy.newest(objects, copy.cluster) == (copy, [])


async def test_a_label_is_read_with_the_store_that_it_lies_in() -> None:
    objects, segment = MemoryObjectStore(), record_of(make_blocks(3, 50))
    label = SegmentLabel(topic=TOPIC, segment=segment)
    made = segment_label.make(label)
    assert made.startswith(b"QUIRE label 1 ")
    await objects.put_whole("segments/a.label", [made])
    assert await segment_label.read(objects, "segments/a.label") == label
    await objects.put_whole("segments/b.label", [made.replace(b"label 1", b"label 2")])
    with pytest.raises(CorruptionError, match="a label of version 2, not 1"):
        await segment_label.read(objects, "segments/b.label")
    await objects.put_whole("segments/c.label", [b"something else"])
    with pytest.raises(CorruptionError, match="is no label"):
        await segment_label.read(objects, "segments/c.label")
