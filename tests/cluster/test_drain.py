"""A cluster that is scaled down by stopping a bookie: SIGTERM drains it, and nothing needs it any more."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest

from .local import POLL_S, Cluster, running
from .test_local import Producer, client_of, read_all

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


async def test_a_bookie_that_is_told_to_stop_is_drained_and_nothing_is_lost_without_its_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_DRAIN_ON_STOP_MS", "2min")
    monkeypatch.setenv("QUIRE_REPAIR_LOOK_MS", "500ms")
    monkeypatch.setenv("QUIRE_REPAIR_BYTES_PER_S", "200MiB")
    async with running(tmp_path / "cluster", brokers="1", bookies="4", session_timeout_ms="4s") as cluster:
        client = client_of(cluster)
        producer = await asyncio.to_thread(Producer, client)
        await asyncio.to_thread(producer.publish, 100)
        await cluster.rest("PUT", "/admin/v2/persistent/public/default/t/unload")
        await asyncio.to_thread(producer.publish, 100)

        leaving = await fullest(cluster)
        pid = cluster.pids()[leaving]
        cluster.signal(leaving, signal.SIGTERM)
        while Path(f"/proc/{pid}").exists():
            await asyncio.to_thread(producer.publish, 10)
            await asyncio.sleep(POLL_S)
        log = (cluster.data / "logs" / f"{leaving}.log").read_text()
        assert "is retired" in log and "keeps its data" not in log, log
        bookies = await cluster.rest("GET", "/quire/v1/bookies")
        assert [one["state"] for one in bookies] == ["up"] * 3

        first_journal = (cluster.data / leaving / "journal" / "identity.json").read_text()
        await cluster.restart_dead(leaving)
        assert len(await cluster.rest("GET", "/quire/v1/bookies")) == 4
        assert (cluster.data / leaving / "journal" / "identity.json").read_text() != first_journal
        cluster.signal(leaving, signal.SIGKILL)
        shutil.rmtree(cluster.data / leaving)
        assert await asyncio.to_thread(read_all, client) == list(range(producer.sent))
        await asyncio.to_thread(client.close)


async def fullest(cluster: Cluster) -> str:
    """The bookie with the most ledgers."""

    def ledgers(url: str) -> int:
        found = re.search(
            r"^quire_bookie_ledgers (\d+)", urlopen(url + "/metrics").read().decode(), re.MULTILINE
        )
        assert found is not None
        return int(found[1])

    counts = {
        one["name"]: await asyncio.to_thread(ledgers, one["urls"][1])
        for one in cluster.processes()
        if one["kind"] == "bookie"
    }
    name = max(counts, key=counts.__getitem__)
    assert counts[name] > 0
    return name
