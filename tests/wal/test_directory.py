"""One WAL is open at a time; when it ends another begins, and what the old one has is read as anybody's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.ledger.directory import LocalDirectory
from quire.metadata.cluster import begin_cluster
from quire.metadata.records import WalState
from quire.objects.filesystem import FilesystemBlockingStore
from quire.objects.store import ObjectStore
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.wal import directory as directory_module
from quire.wal.directory import WalDirectory
from quire.wal.own_record import OwnRecord
from quire.wire.bookie import BookieId, LedgerInfoRequest, Status
from tests.wal.blocks import made
from tests.wal.context import wal_context
from tests.wal.node import Asked, eventually


class Cluster:
    def __init__(self) -> None:
        self.store = MemoryObjectStore()
        self.metadata = MemoryStore(session_timeout_ms=20)
        self.wals = WalDirectory(wal_context(self.store, self.metadata), LocalDirectory())

    def asked(self) -> Asked:
        """The WAL that is open now, asked through the directory whatever becomes of it."""
        own = self.wals.own_wal()
        assert own is not None
        return Asked(self.wals.port(own), own)


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(directory_module, "RETRY_S", 0.01)
    cluster = Cluster()
    yield cluster
    await cluster.wals.stop()


async def another(cluster: Cluster, than: BookieId) -> None:
    await eventually(lambda: cluster.wals.own_wal() not in (None, than))


async def test_a_wal_that_ended_is_followed_by_another_and_still_read(cluster: Cluster) -> None:
    await cluster.wals.start()
    first = cluster.asked()
    await first.add(made(1, 0))
    uuid = first.bookie_id.uuid.removeprefix("wal-")
    await (await OwnRecord.read(cluster.metadata, uuid)).change(state=WalState.CLOSING)
    await another(cluster, first.bookie_id)
    await cluster.asked().add(made(1, 1))
    old = Asked(cluster.wals.port(first.bookie_id), first.bookie_id)
    assert await old.read(1, 0) == [made(1, 0)]
    assert list(await old.queue(made(1, 1))) == [Status.UNREACHABLE]
    assert (await old.ask(1, 1, fence=True)).status is Status.NO_SUCH_ENTRY
    assert cluster.wals.why_not_ready == ""


async def test_the_end_of_the_session_ends_the_wal(cluster: Cluster) -> None:
    await cluster.wals.start()
    first = cluster.asked()
    cluster.metadata.expire()
    assert list(await first.queue(made(1, 0))) != [Status.OK]
    await another(cluster, first.bookie_id)


async def test_the_next_wal_of_a_process_waits_for_no_probe_of_the_store(cluster: Cluster) -> None:
    await cluster.wals.start()
    first = cluster.asked()
    cluster.store.faults.calls.clear()
    cluster.metadata.expire()
    await another(cluster, first.bookie_id)
    assert cluster.store.faults.calls == []


async def test_a_session_in_doubt_for_its_time_out_ends_the_wal(cluster: Cluster) -> None:
    await cluster.wals.start()
    first = cluster.asked()
    cluster.metadata.suspend()
    assert cluster.wals.own_wal() == first.bookie_id
    await eventually(lambda: cluster.wals.own_wal() is None)
    assert "metadata store" in cluster.wals.why_not_ready
    cluster.metadata.resume()
    await another(cluster, first.bookie_id)


async def test_a_session_that_is_resumed_in_time_changes_nothing(cluster: Cluster) -> None:
    await cluster.wals.start()
    first = cluster.asked()
    cluster.metadata.suspend()
    cluster.metadata.resume()
    await asyncio.sleep(0.05)
    assert cluster.wals.own_wal() == first.bookie_id


async def test_a_store_that_does_not_answer_at_start_is_waited_for(cluster: Cluster) -> None:
    is_away = True

    def refuse(call: str) -> None:
        if is_away:
            raise Unavailable("connection refused")

    cluster.store.faults.before = refuse
    await cluster.wals.start()
    assert cluster.wals.own_wal() is None and "connection refused" in cluster.wals.why_not_ready
    is_away = False
    await eventually(lambda: cluster.wals.own_wal() is not None)
    assert cluster.wals.why_not_ready == ""


async def test_a_store_that_is_unfit_is_refused_at_start(cluster: Cluster) -> None:
    def refuse(call: str) -> None:
        raise ConfigurationError("cannot write s3://bucket: NoSuchBucket")

    cluster.store.faults.before = refuse
    with pytest.raises(ConfigurationError, match="NoSuchBucket"):
        await cluster.wals.start()


async def test_one_that_is_barred_while_it_runs_says_why_and_goes_on_when_it_may(cluster: Cluster) -> None:
    await cluster.wals.start()
    first = cluster.asked()
    barred = "AccessDenied"

    def refuse(call: str) -> None:
        if barred:
            raise ConfigurationError(f"cannot write s3://bucket: {barred}")

    cluster.store.faults.before = refuse
    assert list(await first.queue(made(1, 0))) == [Status.UNREACHABLE]
    assert "AccessDenied" in cluster.wals.why_not_ready
    barred = "NoSuchBucket"
    await eventually(lambda: barred in cluster.wals.why_not_ready)
    barred = ""
    await another(cluster, first.bookie_id)


async def test_other_ids_lead_to_bookies(cluster: Cluster) -> None:
    bookie = BookieId("00000000-0000-4000-8000-000000000001", 1)
    answer = await cluster.wals.port(bookie).ask(LedgerInfoRequest(bookie, 1))
    assert answer.status is Status.UNREACHABLE, "nobody is there"


async def test_views_of_other_logs_are_dropped_when_nothing_is_asked_of_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.wals.start()
    first = cluster.asked()
    await first.add(made(1, 0))
    uuid = first.bookie_id.uuid.removeprefix("wal-")
    await (await OwnRecord.read(cluster.metadata, uuid)).change(state=WalState.CLOSING)
    await another(cluster, first.bookie_id)
    old = Asked(cluster.wals.port(first.bookie_id), first.bookie_id)
    assert (await old.ask(1, 0, fence=True)).status is Status.OK
    assert cluster.wals.metrics()["quire_wal_views_bytes"] > 0
    await cluster.wals._drop_idle()
    assert cluster.wals._others, "it is small, and was asked a moment ago"
    monkeypatch.setattr(directory_module, "WAL_VIEWS_BYTES_MAX", 0)
    asking = asyncio.ensure_future(old.ask(1, 0))
    await asyncio.sleep(0)
    await cluster.wals._drop_idle()
    assert cluster.wals._others or asking.done(), "what is under way goes on"
    await asking
    await asyncio.sleep(0.01)
    await cluster.wals._drop_idle()
    assert not cluster.wals._others and cluster.wals.metrics()["quire_wal_views_bytes"] == 0
    again = Asked(cluster.wals.port(first.bookie_id), first.bookie_id)
    assert await again.read(1, 0) == [made(1, 0)]


async def test_no_log_is_begun_below_a_mount_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "RETRY_S", 0.01)
    metadata = MemoryStore()
    store = ObjectStore(FilesystemBlockingStore(tmp_path / "bucket"), threads=0)
    place = Place(metadata, store, (await begin_cluster(metadata, 1)).uuid, StoreRole.LOGS)
    wals = WalDirectory(replace(wal_context(store, metadata), place=place), LocalDirectory())
    await wals.start()
    first = wals.own_wal()
    assert first is not None
    (tmp_path / "bucket").rename(tmp_path / "unmounted")
    uuid = first.uuid.removeprefix("wal-")
    await (await OwnRecord.read(metadata, uuid)).change(state=WalState.CLOSING)
    await eventually(lambda: "which this process has used, is missing" in wals.why_not_ready)
    assert wals.own_wal() is None and not (tmp_path / "bucket").exists()
    (tmp_path / "unmounted").rename(tmp_path / "bucket")
    await eventually(lambda: wals.own_wal() not in (None, first))
    await wals.stop()
