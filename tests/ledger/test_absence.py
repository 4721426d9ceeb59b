"""A record that is missing proves nothing while the metadata store cannot prove that it holds this very cluster."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from msgspec.structs import replace

from quire.identity.copies import copy_name
from quire.identity.guard import accept_older, confirm_absence
from quire.identity.marker import put_marker
from quire.ledger.bookies import Bookies
from quire.ledger.ledgers import Ledgers
from quire.ledger.orphans import GRACE_MS
from quire.ledger.parts import Home
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster
from quire.metadata.records import ClusterRecord, LedgerState, StateLogRecord, TopicRecord, encode
from quire.metadata.store import ANY_VERSION, MetadataStore
from quire.objects.store import ObjectStore
from quire.runtime.errors import InUse, NotFound, Unavailable, WrongCluster
from quire.testing.cluster import QUICK, Listener, MemoryCluster, write
from quire.testing.objects import MemoryObjectStore

WRONG = ["empty", "another's", "being rebuilt"]


async def spoil(store: MetadataStore, record: ClusterRecord, how: str) -> None:
    if how == "being rebuilt":
        await store.put(paths.CLUSTER, encode(replace(record, rescue_begun_ms=1)), ANY_VERSION)
        return
    await store.delete(paths.CLUSTER)
    if how == "another's":
        await begin_cluster(store, 1)


async def make(cluster: MemoryCluster, objects: ObjectStore | None = None) -> tuple[Ledgers, ClusterRecord]:
    """`objects` is the archive, with the copies of the metadata."""
    record = await begin_cluster(cluster.store, 1)
    home = Home(cluster=record.uuid, guard=partial(confirm_absence, cluster.store, record.uuid, objects))
    store = cluster.store.join()
    made = Ledgers(store, cluster.directory, cluster.clock, Random(1), QUICK, home=home, quarantine_s=0)
    return made, record


@pytest.mark.parametrize("how", WRONG)
async def test_a_silent_bookie_without_a_record_is_not_retired(how: str) -> None:
    cluster = MemoryCluster(3)
    ledgers, record = await make(cluster)
    writer = await ledgers.create("topic:persistent://t/n/x", listener := Listener())
    await listener.until(write(writer, 3))
    await writer.close()
    cluster.bookies[0].unreachable = True
    await spoil(cluster.store, record, how)
    with pytest.raises(WrongCluster):
        await ledgers.delete(writer.ledger_id)
    assert (await ledgers.info(writer.ledger_id)).state is LedgerState.DELETING
    with pytest.raises(WrongCluster):
        other = await ledgers.create("topic:persistent://t/n/x", Listener())
        await ledgers.give_up(other.ledger_id)


async def test_in_the_right_store_it_is() -> None:
    cluster = MemoryCluster(3)
    ledgers, _ = await make(cluster)
    writer = await ledgers.create("topic:persistent://t/n/x", listener := Listener())
    await listener.until(write(writer, 3))
    await writer.close()
    cluster.bookies[0].unreachable = True
    await cluster.store.create(paths.bookie("bookie-0"), encode(cluster.bookies[0].record()))
    with pytest.raises(Unavailable):
        await ledgers.delete(writer.ledger_id)
    await cluster.store.delete(paths.bookie("bookie-0"))
    await ledgers.delete(writer.ledger_id)
    with pytest.raises(NotFound):
        await ledgers.info(writer.ledger_id)


@pytest.mark.parametrize("how", WRONG)
async def test_nothing_is_an_orphan_in_a_store_that_proves_nothing(how: str) -> None:
    cluster = MemoryCluster(3)
    ledgers, record = await make(cluster)
    writer = await ledgers.create("state:t/n/b", listener := Listener())
    await listener.until(write(writer, 3))
    cluster.clock.advance_ms(GRACE_MS)
    bookies = Bookies(ledgers)
    [orphan] = await bookies.orphans()
    await spoil(cluster.store, record, how)
    with pytest.raises(WrongCluster):
        await bookies.orphans()
    with pytest.raises(WrongCluster):
        await bookies.delete_orphan(orphan)
    assert cluster.bookies[0].holds(writer.ledger_id, 2)


async def test_an_orphan_that_was_listed_meanwhile_stays() -> None:
    cluster = MemoryCluster(3)
    ledgers, _ = await make(cluster)
    writer = await ledgers.create("state:t/n/b", Listener())
    cluster.clock.advance_ms(GRACE_MS)
    bookies = Bookies(ledgers)
    [orphan] = await bookies.orphans()
    listed = StateLogRecord(ledgers=(writer.ledger_id,))
    await cluster.store.create(paths.state_log("t", "n", "b"), encode(listed))
    with pytest.raises(InUse, match="is in use now"):
        await bookies.delete_orphan(orphan)
    assert (await ledgers.info(writer.ledger_id)).state is LedgerState.OPEN


async def test_orphans_are_not_proven_by_a_store_without_topics() -> None:
    cluster = MemoryCluster(3)
    ledgers, record = await make(cluster)
    await ledgers.create("topic:persistent://t/n/x", Listener())
    cluster.clock.advance_ms(GRACE_MS)
    bookies = Bookies(ledgers)
    found = await bookies.orphans()
    with pytest.raises(WrongCluster, match=rf"no topic of cluster {record.uuid}, but there are 1 ledgers"):
        await bookies.confirm_orphans(found)
    await bookies.confirm_orphans([])
    await cluster.store.create(paths.topic("t", "n", "x"), encode(TopicRecord(name="x")))
    await bookies.confirm_orphans(found)


@pytest.mark.parametrize("is_closed", [True, False])
async def test_nothing_is_given_up_by_metadata_that_are_older_than_a_copy_of_them(is_closed: bool) -> None:
    cluster, objects = MemoryCluster(3), MemoryObjectStore()
    ledgers, record = await make(cluster, objects)
    await put_marker(objects, record.uuid)
    writer = await ledgers.create("topic:persistent://t/n/x", listener := Listener())
    await listener.until(write(writer, 5))
    if is_closed:
        await writer.close()
    for bookie in cluster.bookies:
        bookie.flip(writer.ledger_id, 2)
    await objects.put_whole(copy_name(record.uuid, 5, 7, "0" * 32), [b"copy"])
    before = await ledgers.info(writer.ledger_id)
    with pytest.raises(WrongCluster, match="older than copy 5 of them"):
        await ledgers.give_up(writer.ledger_id)
    assert await ledgers.info(writer.ledger_id) == before
    await accept_older(cluster.store, record.uuid, objects)
    await ledgers.give_up(writer.ledger_id)
    given_up = await ledgers.info(writer.ledger_id)
    assert given_up.state is LedgerState.CLOSED and [hole.first_entry for hole in given_up.holes] == [2]
