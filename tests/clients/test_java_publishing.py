"""The stock Java client publishes in every way it knows (`java/Publishing.java`). Skipped without Java or its jars."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from quire.serving.names import TopicName
from tests.clients import programs
from tests.serving.conftest import BrokerHouse, house

__all__ = ["house"]

PROGRAM = Path(__file__).parent / "java" / "Publishing.java"
SCENARIOS = ("modes", "fencing", "small", "chunks", "now")
PATIENCE_S = 120


async def test_java(house: BrokerHouse) -> None:
    """One process for all scenarios: starting Java takes longer than what it does then."""
    jars = (await asyncio.to_thread(programs.java))[3]
    broker = await house.start()
    await broker.registry.create(TopicName.parse("java-small"))
    await broker.admin.policies.change_topic(
        TopicName.parse("java-small"), lambda old: replace(old, message_bytes_max=1000)
    )
    await broker.registry.create(TopicName.parse("java-chunks"))
    await broker.admin.policies.change_topic(
        TopicName.parse("java-chunks"), lambda old: replace(old, deduplication=True)
    )
    process = await asyncio.create_subprocess_exec(
        "java", "-XX:TieredStopAtLevel=1", "-cp", jars, str(PROGRAM), broker.service_url, *SCENARIOS,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    told = output.decode()
    assert process.returncode == 0, told[-3000:]
    assert [line for line in told.splitlines() if line.startswith("done")] == [
        f"done: {one}" for one in SCENARIOS
    ]
