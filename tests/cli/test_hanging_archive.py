"""A process whose object store takes connections and never answers ends when it is told to."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("boto3")

END_S = 60.0
"""Half of what the S3 client waits in all for an answer."""


async def test_a_start_and_its_end_do_not_wait_for_a_store_that_hangs(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()  # until the process is gone
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0, limit=1 << 20)
    port = server.sockets[0].getsockname()[1]
    archive = f"s3://bucket/x?endpoint=http://127.0.0.1:{port}&region=here&access_key=a&secret_key=b"
    flags = (
        "--data",
        str(tmp_path),
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--archive",
        archive,
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire", "standalone", *flags, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(END_S):
        await asked.wait()
        process.terminate()
        _, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    assert "Traceback" not in told.decode()
    server.close()
