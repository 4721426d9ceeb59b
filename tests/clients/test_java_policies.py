"""What a topic's policies mean for the stock Java client (`java/Policies.java`). Skipped without Java or its jars."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from quire.metadata.records import BacklogQuota
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.topic.lifecycle import upkeep
from tests.clients import programs
from tests.clients.test_java_publishing import PATIENCE_S
from tests.serving.conftest import BrokerHouse, house

__all__ = ["house"]

PROGRAM = Path(__file__).parent / "java" / "Policies.java"
SCENARIOS = ("delayed", "compacted", "ended", "index", "quota")
QUOTA = BacklogQuota(limit_bytes=1000, action="producer_exception")


async def do(broker: Broker, what: str) -> None:
    """What the program asks for."""
    if what == "compact":
        topic = await broker.registry.open(TopicName.parse("java-compacted"))
        await topic.log.compaction.start(topic.subscriptions)
    elif what == "terminate":
        await broker.admin.topics.terminate(TopicName.parse("java-ended"))
    else:
        if what == "catch up":
            await broker.admin.subscriptions.skip(TopicName.parse("java-quota"), "s", None)
        topic = await broker.registry.open(TopicName.parse("java-quota"))
        await upkeep.look(topic)


async def test_java(house: BrokerHouse) -> None:
    """One process for all scenarios: starting Java takes longer than what it does then."""
    jars = (await asyncio.to_thread(programs.java))[3]
    broker = await house.start(broker_entry_metadata=True)
    await broker.registry.create(TopicName.parse("java-quota"))
    await broker.admin.policies.change_topic(
        TopicName.parse("java-quota"), lambda old: replace(old, backlog_quota=QUOTA)
    )
    process = await asyncio.create_subprocess_exec(
        "java", "-XX:TieredStopAtLevel=1", "-cp", jars, str(PROGRAM), broker.service_url, *SCENARIOS,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    told: list[str] = []
    assert process.stdout is not None and process.stdin is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for line in process.stdout:
                told.append(line.decode().rstrip())
                if told[-1].startswith("please: "):
                    await do(broker, told[-1].removeprefix("please: "))
                    process.stdin.write(b"done\n")
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, "\n".join(told)[-3000:]
    assert [line for line in told if line.startswith("done")] == [f"done: {one}" for one in SCENARIOS]
