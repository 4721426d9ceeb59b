"""A request to ZooKeeper that takes long is named by its path."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from quire.metadata.open import open_store
from quire.runtime import slow
from tests.cluster.zookeeper import own_zookeeper


async def test_a_server_that_stands_for_a_moment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_zookeeper(tmp_path) as server:
        store = await open_store(f"{server.url}/quire?session_timeout=20s")
        await store.create("/quick", b"")
        monkeypatch.setattr(slow.BOUND, "s", 0.5)
        server.pause()
        making = asyncio.ensure_future(store.create("/late", b""))
        await asyncio.sleep(0.8)
        with caplog.at_level(logging.WARNING, "quire.slow"):
            server.resume()
            await making
        await store.close()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "quire.slow"]
    assert line.startswith("slow metadata: a change of /late took ")
