"""Which directories may join which cluster, and when those of a drained bookie begin anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.bookie.disks import real_disks
from quire.bookie.identity import COOKIE, LAYOUT
from quire.bookie.ledger_storage import DIRECTORIES
from quire.bookie.membership import enter_cluster, enter_standalone
from quire.bookie.registration import Registration
from quire.bookie.settings import BookieSettings
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster, find_cluster
from quire.metadata.records import ClusterRecord, encode
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError, DiskError
from quire.runtime.limits import MIB
from quire.testing.metadata import MemoryStore
from quire.testing.node import SMALL_SETTINGS, SimulatedNode
from quire.wire.bookie import BookieId

from .node import OK, Node, one, retire

URL = "zk://somewhere/quire"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(session_timeout_ms=100)


async def enter(store: MemoryStore, machine: SimulatedNode, *, new_cluster: bool = False) -> str:
    return await enter_cluster(
        store, URL, machine.disks(), SystemClock(), new_cluster=new_cluster, rng=machine.rng
    )


async def run_once(
    store: MemoryStore, machine: SimulatedNode, *, new_cluster: bool = False, leaving: bool = False
) -> BookieId:
    """A life of a bookie: it enters, is registered, takes a block, perhaps begins to leave, and ends."""
    cluster = await enter(store, machine, new_cluster=new_cluster)
    node = await Node.on(machine)
    registration = Registration(store, node.storage, "127.0.0.1:3181", cluster=cluster)
    await registration.start()
    if not leaving:
        assert await node.add(one(1, 0)) == [OK]
        await node.storage.flush()
    else:
        registration.leave()
    await registration.stop()
    await node.storage.stop()
    return node.id


async def test_a_cluster_is_begun_on_purpose_only_and_once(store: MemoryStore) -> None:
    machines = [SimulatedNode(seed) for seed in range(3)]
    with pytest.raises(
        ConfigurationError, match=f"there is no cluster at {URL}: use .* or begin a new cluster"
    ):
        await enter(store, machines[0])
    clusters = {await enter(store, machine, new_cluster=True) for machine in machines[:2]}
    assert clusters == {await enter(store, machines[2])}


@pytest.mark.parametrize("new_cluster", [False, True])
async def test_a_bookie_of_a_cluster_begins_no_other_and_joins_no_other(
    store: MemoryStore, new_cluster: bool
) -> None:
    machine = SimulatedNode(1)
    await run_once(store, machine, new_cluster=True)
    wrong = MemoryStore(session_timeout_ms=100)
    with pytest.raises(ConfigurationError, match="there is no cluster at"):
        await enter(wrong, machine, new_cluster=new_cluster)
    assert not await wrong.children(paths.ROOT)
    await enter(wrong, SimulatedNode(2), new_cluster=True)
    with pytest.raises(ConfigurationError, match=r"bookie .* belongs to cluster .*, but .* has cluster .*:"):
        await enter(wrong, machine, new_cluster=new_cluster)
    await run_once(store, machine)


async def test_a_bookie_that_the_store_refused_has_not_joined(store: MemoryStore) -> None:
    """A former standalone's directories, say: they may still go where they belong."""
    machine = SimulatedNode(1)
    node = await Node.on(machine)
    await node.add(one(1, 0))
    await node.storage.stop()
    with pytest.raises(ConfigurationError, match="this metadata store has no record of it"):
        await run_once(store, machine, new_cluster=True)
    assert b'"cluster": ""' in machine.journal.read_bytes(COOKIE)


async def test_a_leaving_bookie_that_the_store_still_knows_comes_back_with_its_data(
    store: MemoryStore,
) -> None:
    machine = SimulatedNode(1)
    bookie = await run_once(store, machine, new_cluster=True)
    assert await run_once(store, machine, leaving=True) == bookie
    await enter(store, machine)
    node = await Node.on(machine)
    assert node.id == bookie and await node.holds(1, 0) == one(1, 0)
    await node.storage.stop()


async def test_a_leaving_bookie_that_was_retired_begins_anew_wherever_that_is_interrupted(
    store: MemoryStore,
) -> None:
    for steps in range(100):
        machine = SimulatedNode(1)
        bookie = await run_once(store, machine, new_cluster=True)
        await run_once(store, machine, leaving=True)
        await retire(store, bookie.uuid)
        machine.power.fail_after(steps)
        try:
            await enter(store, machine)
            interrupted = False
        except DiskError:
            interrupted = True
        machine.crash()
        await enter(store, machine)
        node = await Node.on(machine)
        assert node.id.uuid != bookie.uuid and node.storage.ledger_ids() == []
        assert await node.holds(1, 0) is not OK
        await node.storage.stop()
        if not interrupted:
            return
    pytest.fail("it never came to an end")


@pytest.mark.parametrize("is_rescue", [False, True])
async def test_a_leaving_bookie_that_the_store_lost_keeps_its_data(
    store: MemoryStore, is_rescue: bool
) -> None:
    """The store was put back from a copy, or is being rebuilt: its silence is no word that all was copied."""
    machine = SimulatedNode(1)
    bookie = await run_once(store, machine, new_cluster=True)
    await run_once(store, machine, leaving=True)
    cluster = (await find_cluster(store, URL)).uuid
    new = MemoryStore(session_timeout_ms=100)
    await new.create(paths.CLUSTER, encode(ClusterRecord(uuid=cluster, rescue_begun_ms=int(is_rescue))))
    if is_rescue:
        await new.create(paths.retired(bookie.uuid), b"")
        assert await run_once(new, machine, leaving=True) == bookie
    else:
        with pytest.raises(ConfigurationError, match="or of its retirement"):
            await run_once(new, machine)
    machine.crash()
    node = await Node.on(machine)
    assert node.id == bookie and await node.holds(1, 0) == one(1, 0)
    await node.storage.stop()


async def test_a_standalone_refuses_a_metadata_store_that_lacks_its_ledgers(store: MemoryStore) -> None:
    """metadata.db was lost, or is another's; of a version that remembered no cluster as well."""
    machine = SimulatedNode(1)
    node = await Node.on(machine)
    cluster = await enter_standalone(store, URL, node.storage, SystemClock())
    await store.create(paths.LEDGER_IDS, b"")
    assert await enter_standalone(store, URL, node.storage, SystemClock()) == cluster
    assert await node.add(one(1, 0)) == [OK]
    empty = MemoryStore()
    with pytest.raises(ConfigurationError, match="has no metadata of them: restore the metadata store"):
        await enter_standalone(empty, URL, node.storage, SystemClock())
    assert not await empty.children(paths.ROOT)
    other = MemoryStore()
    await begin_cluster(other, 1)
    with pytest.raises(ConfigurationError, match=f"contain data of cluster {cluster}, but .* has cluster"):
        await enter_standalone(other, URL, node.storage, SystemClock())
    node.storage.identity.join("")
    with pytest.raises(ConfigurationError, match="has no metadata of them"):
        await enter_standalone(empty, URL, node.storage, SystemClock())
    assert await enter_standalone(store, URL, node.storage, SystemClock()) == cluster
    await node.storage.stop()


async def test_a_retired_bookie_that_was_not_leaving_is_refused(store: MemoryStore) -> None:
    machine = SimulatedNode(1)
    bookie = await run_once(store, machine, new_cluster=True)
    await retire(store, bookie.uuid)
    with pytest.raises(ConfigurationError, match="was retired while it was down"):
        await run_once(store, machine)
    machine.crash()
    node = await Node.on(machine)
    assert node.id == bookie and await node.holds(1, 0) == one(1, 0)
    await node.storage.stop()


async def test_all_files_of_a_real_bookie_go(store: MemoryStore, tmp_path: Path) -> None:
    settings = BookieSettings(
        journal=str(tmp_path / "journal"),
        entry_log=str(tmp_path / "entries"),
        memtable_bytes=16 * MIB,
        journal_segment_bytes=16 * MIB,
        journal_group_bytes_max=8 * MIB,
        entry_log_bytes=32 * MIB,
        disk_reserve_bytes=1 * MIB,
    )
    clock = SystemClock()
    cluster = await enter_cluster(store, URL, real_disks(settings), clock, new_cluster=True)
    node = await Node.start(settings)
    await node.add(one(1, 0))
    await node.storage.flush()
    node.storage.identity.join(cluster)
    node.storage.identity.leave(True)
    await node.storage.stop()
    await store.create(paths.retired(node.id.uuid), b"")
    before = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert len(before) > 4, before
    assert await enter_cluster(store, URL, real_disks(settings), clock, new_cluster=True) == cluster
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {"journal/lock", f"journal/{COOKIE}", "entries/lock"}
    assert {name for name in DIRECTORIES if (tmp_path / "entries" / name).is_dir()} == set(DIRECTORIES)


async def test_a_newer_layout_is_refused_in_one_sentence(store: MemoryStore) -> None:
    machine = SimulatedNode(1)
    await run_once(store, machine, new_cluster=True)
    raw = machine.entries.read_bytes(COOKIE)
    newer = raw.replace(b'"layout": %d' % LAYOUT, b'"layout": %d' % (LAYOUT + 1))
    assert newer != raw
    machine.entries.write_bytes(COOKIE, newer)
    with pytest.raises(
        ConfigurationError, match=r"entries was written by a newer Quire .layout 2, this version supports 1"
    ):
        await enter(store, machine)
    with pytest.raises(ConfigurationError, match="written by a newer Quire"):
        await Node.on(machine, SMALL_SETTINGS)


async def test_where_the_metadata_is_rebuilt_its_bookies_alone_come(store: MemoryStore) -> None:
    machine = SimulatedNode(1)
    await run_once(store, machine, new_cluster=True)
    cluster = await enter(store, machine)
    empty = MemoryStore(session_timeout_ms=100)
    with pytest.raises(
        ConfigurationError, match=f"this bookie belongs to cluster {cluster}: if its metadata are lost"
    ):
        await enter(empty, machine)
    await empty.create(paths.CLUSTER, encode(ClusterRecord(uuid=cluster, rescue_begun_ms=5)))
    assert await enter(empty, machine) == cluster
    with pytest.raises(
        ConfigurationError, match="are being rebuilt: start this process after `quire rescue metadata`"
    ):
        await find_cluster(empty, URL)
