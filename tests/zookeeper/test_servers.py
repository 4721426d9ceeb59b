"""Each server of a ZooKeeper is asked by itself: one that is gone, hangs, or has lost the others is told of."""

from __future__ import annotations

import asyncio
from pathlib import Path

from quire.metadata.zookeeper_servers import look
from tests.cluster.zookeeper import ZooKeeper, own_zookeeper

NOT_SERVING = b"This ZooKeeper instance is not currently serving requests\n"


async def test_a_server_that_is_well(zookeeper: ZooKeeper) -> None:
    (state,) = await look(f"{zookeeper.url}/any")
    assert state.problem == "" and state.mode == "standalone" and state.latency_ms < 100


async def test_servers_that_are_not(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(NOT_SERVING)
        writer.close()

    alone = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = alone.sockets[0].getsockname()[1]
    with own_zookeeper(tmp_path) as server:
        server.pause()
        hangs, lost = await look(f"{server.url},127.0.0.1:{port}")
        assert hangs.problem == "it does not answer"
        assert "does not serve" in lost.problem
        server.kill()
        gone, _ = await look(f"{server.url},127.0.0.1:{port}/chroot?session_timeout=4s")
        assert "cannot be reached" in gone.problem
    alone.close()
