"""A person sees what WALs hold, whether it is whole, and what nobody needs."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from quire.identity.copies import copy_name
from quire.identity.guard import accept_older
from quire.identity.marker import put_marker
from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster
from quire.metadata.open import open_store as open_metadata
from quire.metadata.records import TopicRecord, WalRecord, WalState, encode
from quire.objects.open import open_for_log
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError, Fenced, InUse, Unavailable, WrongCluster
from quire.testing.metadata import MemoryStore
from quire.wal import scrub, tombstones, wal_object
from quire.wal.closing import close_wal
from quire.wal.collector import Collector
from quire.wal.context import WalContext
from quire.wal.foreign import ForeignWal
from quire.wal.own_record import OwnRecord
from quire.wal.storage import WalStorage
from quire.wal.view import View
from tests.cli.running import quire
from tests.wal.blocks import made
from tests.wal.context import wal_context
from tests.wal.node import Asked, Node


async def test_every_rotten_byte_is_found_and_no_sound_one() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.wal.flush()
    await node.wal.trash.emptied()
    await node.add(made(1, 1))
    found = await scrub.verify(node.context, node.uuid)
    assert (found.ledgers, found.sets, found.data_objects, found.damage) == (2, 1, 1, [])
    assert found.bytes == 3 * len(made(1, 0))
    for name, (content, _) in list(node.store.faults.objects.items()):
        if "/set-" not in name and "/sets-" not in name:
            node.store.faults.flip(name, len(content) // 2)
            assert len((await scrub.verify(node.context, node.uuid)).damage) == 1
            node.store.faults.flip(name, len(content) // 2)
    (name,) = [name for name in node.store.faults.objects if "/set-" in name]
    node.store.faults.flip(name, 150)
    assert "set-" in (await scrub.verify(node.context, node.uuid)).damage[0]
    await node.wal.stop()


async def test_what_becomes_a_set_while_it_is_read_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    looked = View.refresh

    async def refresh(self: View) -> None:
        await looked(self)
        await node.wal.flush()  # as soon as somebody has looked at the record
        await node.wal.trash.emptied()

    monkeypatch.setattr(View, "refresh", refresh)
    found = await scrub.verify(node.context, node.uuid)
    assert (found.ledgers, found.sets, found.data_objects, found.damage) == (2, 1, 0, [])
    await node.wal.stop()


async def test_what_is_never_seen_whole_is_not_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    entries = iter(range(1, 9))
    looked = View.refresh

    async def refresh(self: View) -> None:
        await looked(self)
        await node.wal.flush()  # what was just seen goes, and something else comes
        await node.wal.trash.emptied()
        await node.add(made(1, next(entries)))

    monkeypatch.setattr(View, "refresh", refresh)
    with pytest.raises(Unavailable, match="changes faster than it can be read"):
        await scrub.verify(node.context, node.uuid)
    await node.wal.stop()


GONE = "0a0b0c0d-0000-4000-8000-000000000007"
"""A log without a record."""


def later_ms(past_ms: int = 2 * scrub.GRACE_MS) -> int:
    return SystemClock().now_ms() + past_ms


TOPIC = paths.topic("t", "n", "x")


async def strays(node: Node, now_ms: int, *, delete: bool = False) -> list[str]:
    found = await scrub.strays(node.context, now_ms, node.store.delete if delete else None)
    return sorted(info.name for info in found.deletable)


async def test_what_no_record_names_is_a_stray_when_it_is_old() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await node.wal.flush()
    await node.add(made(1, 1))
    await node.wal.trash.emptied()
    fence = wal_object.encode_fence(GONE, 3, 0, "another")
    await node.store.put_whole(wal_object.data_name(GONE, 3), (fence,))
    names = [wal_object.data_name(node.uuid, 0), wal_object.data_name(GONE, 4)]
    for name in names:
        await node.store.put_whole(name, (bytes(200),))
    assert await strays(node, later_ms(0)) == []
    assert await strays(node, later_ms()) == sorted(names)
    before = node.objects()
    assert await strays(node, later_ms(), delete=True) == sorted(names)
    assert len(node.objects()) == len(before) - 2
    assert await strays(node, later_ms()) == []
    assert await strays(node, later_ms(scrub.FENCE_MS + scrub.GRACE_MS)) == [wal_object.data_name(GONE, 3)]
    assert await node.read(1, 0) and await node.read(1, 1)
    await node.wal.stop()


async def test_a_log_whose_record_was_lost_is_kept_and_told() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await node.wal.flush()
    await node.add(made(1, 1))
    node.wal.journal.end(ConfigurationError("the writer is dead"))
    await node.wal.stop()
    await node.metadata.delete(paths.wal(node.uuid))
    before = node.objects()
    found = await scrub.strays(node.context, later_ms(scrub.FENCE_MS * 2), node.store.delete)
    assert node.objects() == before and not found.deletable
    assert "has no record" in found.kept[node.uuid] and "rescue" in found.kept[node.uuid]


async def test_a_set_that_its_writer_is_about_to_record_is_never_deleted() -> None:
    """It is hours old, for the metadata store was away; the writer records it while the scrub is under way."""
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    flush = asyncio.ensure_future(node.wal.flush())
    delete, recorded = node.store.delete, False

    async def record_first(name: str) -> None:
        nonlocal recorded
        if not recorded:
            recorded = True
            await flush
        await delete(name)

    written = wal_object.set_name(node.uuid, 7, "x")
    await node.store.put_whole(written, (b"of an open log: its keeper may be about to name it".ljust(200),))
    await scrub.strays(node.context, later_ms(), record_first)
    await flush
    assert written in node.store.faults.objects, "the collector sweeps it once the log is closed"
    assert await node.read(1, 0) and not node.ended, "a scrub ends no living log"
    await node.wal.stop()


async def test_of_a_closed_log_sets_go_after_the_record_has_another_version() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await node.wal.stop()
    stray = wal_object.set_name(node.uuid, 1, "x")
    await node.store.put_whole(stray, (b"rotten, and named by no record".ljust(200),))
    own = await OwnRecord.read(node.metadata, node.uuid)
    assert await strays(node, later_ms()) == [stray]
    assert (await OwnRecord.read(node.metadata, node.uuid)).version == own.version, (
        "a dry run changes nothing"
    )
    assert await strays(node, later_ms(), delete=True) == [stray]
    with pytest.raises(Fenced):
        await own.change(catalogue=stray)
    assert await Asked(ForeignWal(node.context, node.uuid), node.bookie_id).read(1, 0)


@pytest.mark.parametrize("wrong", ["metadata", "store"])
async def test_stores_that_are_not_the_cluster_s_lose_nothing(tmp_path: Path, wrong: str) -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await node.wal.stop()
    metadata = MemoryStore()
    cluster = (await begin_cluster(metadata, 1)).uuid
    if wrong == "metadata":
        await put_marker(node.store, GONE)
    else:
        await node.metadata.create(paths.CLUSTER, (await metadata.get(paths.CLUSTER)).value)
        metadata = node.metadata
    place = Place(metadata, node.store, cluster, StoreRole.LOGS)
    before = node.objects()
    with pytest.raises(WrongCluster):
        await scrub.strays(replace(node.context, place=place), later_ms(), node.store.delete)
    assert node.objects() == before


async def in_a_cluster(node: Node) -> WalContext:
    """Return the node's context with stores that have to prove their cluster."""
    cluster = (await begin_cluster(node.metadata, 1)).uuid
    await put_marker(node.store, cluster)
    await node.metadata.create(TOPIC, encode(TopicRecord(name="x")))
    return replace(node.context, place=Place(node.metadata, node.store, cluster, StoreRole.LOGS))


async def put_newer_copy(node: Node, context: WalContext) -> None:
    """Put a copy of the metadata that is newer than these: an older backup was restored."""
    await node.store.put_whole(copy_name(context.place.cluster, 5, 7, uuid4().hex), (b"copy",))


@pytest.mark.parametrize("why", ["older than copy 5 of them", "has no topic of cluster"])
async def test_metadata_that_do_not_prove_absence_cost_no_object(why: str) -> None:
    node = await Node().start()
    context = await in_a_cluster(node)
    fence = wal_object.encode_fence(GONE, 3, 0, "another")
    await node.store.put_whole(wal_object.data_name(GONE, 3), (fence,))
    await node.store.put_whole(wal_object.data_name(GONE, 4), (bytes(200),))
    assert not (await scrub.strays(context, later_ms())).unproven
    if "copy" in why:
        await put_newer_copy(node, context)
    else:
        await node.metadata.delete(TOPIC)
    before = node.objects()
    found = await scrub.strays(context, later_ms())
    assert len(found.deletable) == 1 and why in found.unproven
    with pytest.raises(WrongCluster, match=why):
        await scrub.strays(context, later_ms(), node.store.delete)
    assert node.objects() == before
    await node.wal.stop()


async def test_by_an_older_copy_of_the_metadata_no_operator_closes_or_gives_up_a_log() -> None:
    node = await Node().start()
    context = await in_a_cluster(node)
    await node.add(made(1, 0))
    await node.add(made(1, 1))
    node.wal.journal.end(ConfigurationError("the writer is dead"))
    await node.wal.stop()
    await put_newer_copy(node, context)
    with pytest.raises(WrongCluster, match="older than copy 5 of them"):
        await scrub.close(context, node.uuid, accept_loss=True)
    assert (await node.record()).state is WalState.OPEN
    await close_wal(context, node.uuid)
    node.store.faults.flip(wal_object.data_name(node.uuid, 1), wal_object.HEADER_BYTES + 20)
    with pytest.raises(WrongCluster, match="older than copy 5 of them"):
        await scrub.give_up(context, node.uuid)
    assert (await node.record()).lost == ()
    await accept_older(node.metadata, context.place.cluster, node.store)
    assert (await scrub.close(context, node.uuid, accept_loss=True)).lost == (1,)


async def test_a_log_whose_writer_is_alive_is_closed_only_by_force() -> None:
    node = await Node().start()
    context = await in_a_cluster(node)
    await node.add(made(1, 0))
    node_path = paths.wal_writer(node.uuid)
    for accept_loss in (False, True):
        with pytest.raises(InUse, match=rf"written by broker broker, whose node {node_path} exists"):
            await scrub.close(context, node.uuid, accept_loss=accept_loss)
    assert (await node.record()).state is WalState.OPEN and not node.ended
    closed = await scrub.close(context, node.uuid, even_written=True)
    assert closed.state is WalState.CLOSED
    assert (await scrub.close(context, node.uuid)).end_seq == closed.end_seq, "it is closed already"
    await node.wal.stop()


@pytest.mark.parametrize("meanwhile", ["the metadata are lost", "the log's record is back"])
async def test_what_a_scrub_rests_on_is_read_again_before_each_deletion(meanwhile: str) -> None:
    node = await Node().start()
    context = await in_a_cluster(node)
    fence = wal_object.encode_fence(GONE, 3, 0, "another")
    await node.store.put_whole(wal_object.data_name(GONE, 3), (fence,))
    strays = [wal_object.data_name(GONE, number) for number in (4, 5)]
    for name in strays:
        await node.store.put_whole(name, (bytes(200),))

    async def delete(name: str) -> None:
        await node.store.delete(name)
        if meanwhile == "the metadata are lost":
            await node.metadata.delete(paths.CLUSTER)
        else:
            await node.metadata.create(paths.wal(GONE), encode(WalRecord(GONE, "b", node.store.url)))

    with pytest.raises(WrongCluster) if "lost" in meanwhile else nullcontext():
        await scrub.strays(context, later_ms(), delete)
    assert len(node.store.faults.objects.keys() & set(strays)) == 1
    await node.wal.stop()


async def test_nothing_is_given_up_in_a_store_that_does_not_prove_to_be_the_cluster_s() -> None:
    """An empty directory in the place of a mount has none of a log's objects."""
    node = await Node().start()
    context = await in_a_cluster(node)
    await node.add(made(1, 0))
    await close_wal(context, node.uuid)
    await node.wal.stop()
    node.store.faults.objects.clear()
    with pytest.raises(WrongCluster):
        await scrub.give_up(context, node.uuid)
    assert (await node.record()).lost == ()


async def test_a_damaged_object_of_a_closed_log_is_told_once_and_given_up_on_an_operator_s_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = await Node().start()
    for entry in range(4):
        await node.add(made(1, entry), made(2, entry))
    await close_wal(node.context, node.uuid)
    await node.wal.stop()
    node.store.faults.flip(wal_object.data_name(node.uuid, 2), wal_object.HEADER_BYTES + 20)
    other = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    await other.delete(2)
    collector = Collector(node.context, lambda: None, lambda: True)
    for _ in range(3):
        await collector.look()
    assert sum("cannot copy all of wal-" in each.message for each in caplog.records) == 1
    assert (await node.record()).trim_seq == 2, "what lies before it is in a set"
    assert node.objects()[:3] == ["2", "3", "4"], "and nothing behind it is deleted"
    assert await tombstones.laid(node.metadata, node.uuid) == {}, "tombstones are taken over nevertheless"
    assert await Asked(ForeignWal(node.context, node.uuid), node.bookie_id).read(1, 3) == [made(1, 3)]
    assert (await scrub.give_up(node.context, node.uuid)).lost == (2,)
    await collector.look()
    assert (await node.record()).trim_seq == 4
    again = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    assert await again.read(1, 3) == [made(1, 3)] and await again.read(1, 0) == [made(1, 0), made(1, 1)]


def test_the_commands(tmp_path: Path) -> None:
    stores = ("--metadata", f"sqlite://{tmp_path}/metadata.db", "--wal", f"file://{tmp_path}/bucket")

    async def write() -> str:
        metadata = await open_metadata(stores[1])
        objects = open_for_log(stores[3], 4)
        await put_marker(objects, (await begin_cluster(metadata, 1)).uuid)
        await metadata.create(TOPIC, encode(TopicRecord(name="x")))
        context = wal_context(objects, metadata)
        wal = WalStorage(context, await OwnRecord.begin(context), lambda _, why: pytest.fail(str(why)))
        wal.start()
        await Asked(wal, wal.bookie_id).add(made(1, 0))
        await wal.stop()
        await objects.close()
        await metadata.close()
        return wal.bookie_id.uuid.removeprefix("wal-")

    uuid = asyncio.run(write())
    listed = quire("wal", "list", *stores, "--json")
    assert [row["uuid"] for row in listed.json] == [uuid] and not listed.err
    shown = quire("wal", "show", uuid[:8], *stores, "--json").json
    assert (shown["end_seq"], shown["closed_by"]) == (1, shown["broker"]), "its writer stopped as it should"
    assert quire("wal", "verify", *stores, "--json").json[0]["ledgers"] == 1
    assert quire("wal", "scrub", *stores, "--json").json == []
    assert "ends before object 1" in quire("wal", "close", uuid, *stores).out
    typo = (*stores[:3], f"file://{tmp_path}/buckets")
    listed = quire("wal", "list", *typo)
    assert listed.code == 0 and uuid in listed.out, listed.err
    assert "buckets has no marker of cluster" in listed.err
    assert f"wal-{uuid} is in {stores[3]}, but this process uses {typo[3]}" in listed.err
    for verb in (("close", uuid, "--accept-loss"), ("scrub", "--delete"), ("verify",)):
        assert quire("wal", *verb, *typo).code == 2, verb
    empty = ("--metadata", f"sqlite://{tmp_path}/empty.db", *stores[2:])
    before = sorted(tmp_path.glob("bucket/**/*"))
    assert quire("wal", "scrub", "--delete", *empty).code == 2
    assert sorted(tmp_path.glob("bucket/**/*")) == before and not (tmp_path / "buckets").exists()
    (name,) = tmp_path.glob("bucket/wal/*/set-*")
    name.chmod(0o600)
    content = bytearray(name.read_bytes())
    content[130] ^= 1
    name.write_bytes(content)
    ran = quire("wal", "verify", *stores)
    assert ran.code == 4 and "set-" in ran.out
    assert quire("wal", "show", "ffff", *stores).code == 3


def test_the_command_close_names_a_writer_that_is_alive(tmp_path: Path) -> None:
    stores = ("--metadata", f"sqlite://{tmp_path}/metadata.db", "--wal", f"file://{tmp_path}/bucket")

    async def begin() -> str:
        metadata = await open_metadata(stores[1])
        objects = open_for_log(stores[3], 4)
        await put_marker(objects, (await begin_cluster(metadata, 1)).uuid)
        own = await OwnRecord.begin(wal_context(objects, metadata))
        await own.unregister()
        await metadata.create(paths.wal_writer(own.record.uuid), b"broker-7:6650")  # of a session elsewhere
        await objects.close()
        await metadata.close()
        return own.record.uuid

    uuid = asyncio.run(begin())
    refused = quire("wal", "close", uuid, *stores)
    assert (
        refused.code == 2
        and "is being written by broker broker-7:6650" in refused.err
        and "--force" in refused.err
    )
    assert quire("wal", "show", uuid, *stores, "--json").json.get("state", "open") == "open"
    assert quire("wal", "close", uuid, *stores, "--force").code == 0
    assert quire("wal", "show", uuid, *stores, "--json").json["state"] == "closed"
