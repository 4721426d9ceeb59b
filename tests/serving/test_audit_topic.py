"""The audit log as messages of a topic, published by the broker's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from quire.metadata.records import Policies
from quire.process import audit_topic as publishing
from quire.process.audit_topic import AuditTopic, audit_topic
from quire.security.configuration import Audit, Credentials
from quire.serving.broker import Broker

from .conftest import QUIET, BrokerHouse, in_thread
from .security import audit, security, token

TOPIC = "persistent://public/default/audit"


async def begun(house: BrokerHouse, folder: Path, role: str) -> tuple[Broker, AuditTopic]:
    """A broker that presents `role` to itself."""
    house.security = security(
        folder,
        audit=Audit(str(folder / "audit.jsonl"), TOPIC),
        client=Credentials(method="token", token=token(role)),
    )
    broker = await house.start()
    made = audit_topic(house.security, broker.addresses)
    assert made is not None
    made.start()
    return broker, made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "AGAIN_S_FIRST", 0.05)
    monkeypatch.setattr(publishing, "AGAIN_S_MAX", 0.5)


@pytest.fixture
async def clients() -> AsyncIterator[list[pulsar.Client]]:
    made: list[pulsar.Client] = []
    yield made
    for one in made:
        await in_thread(one.close)


def as_role(clients: list[pulsar.Client], broker: Broker, role: str) -> pulsar.Client:
    shown = pulsar.AuthenticationToken(token(role))
    clients.append(pulsar.Client(broker.service_url, shown, logger=QUIET, operation_timeout_seconds=2))
    return clients[-1]


async def denied(client: pulsar.Client, count: int) -> None:
    for _ in range(count):
        with pytest.raises(pulsar.PulsarException):
            await in_thread(lambda: client.create_producer("persistent://public/default/orders"))


async def published(client: pulsar.Client, count: int) -> list[dict[str, str]]:
    def read() -> list[dict[str, str]]:
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        try:
            return [json.loads(reader.read_next(20_000).data()) for _ in range(count)]
        finally:
            reader.close()

    return await in_thread(read)


async def until_published(broker: Broker) -> None:
    guard = broker.registry.guard
    assert guard is not None
    async with asyncio.timeout(30):
        while guard.audit.unpublished:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_what_is_written_down_is_published(
    house: BrokerHouse, tmp_path: Path, clients: list[pulsar.Client]
) -> None:
    broker, topic = await begun(house, tmp_path, "admin")
    await denied(as_role(clients, broker, "app"), 3)
    await until_published(broker)
    found = await published(as_role(clients, broker, "admin"), 3)
    assert found == audit(tmp_path)
    assert {(line["event"], line["role"]) for line in found} == {("denied", "app")}
    assert all(line["request"].isdigit() for line in found)
    await topic.stop()
    assert audit(tmp_path) == found, "publishing itself is no line"


async def test_a_process_that_may_not_publish_waits_and_makes_no_circle(
    house: BrokerHouse, tmp_path: Path, clients: list[pulsar.Client]
) -> None:
    broker, topic = await begun(house, tmp_path, "nobody")
    guard: Any = broker.registry.guard
    client = as_role(clients, broker, "app")
    await denied(client, 1)
    async with asyncio.timeout(30):
        while not any(line["role"] == "nobody" for line in audit(tmp_path)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(2)
    took = asyncio.get_running_loop().time() - began
    own = sum(line["role"] == "nobody" for line in audit(tmp_path))
    assert own <= 4 * (took / 0.5 + 6), "it is refused now and then, not all the time"
    assert len(guard.audit.unpublished) == own + 1
    await denied(client, 1)  # and the broker goes on
    granted = Policies(permissions={"nobody": ("produce",)})
    await broker.namespaces.change("public", "default", lambda _: granted)
    await until_published(broker)
    found = await published(as_role(clients, broker, "admin"), len(audit(tmp_path)))
    assert {line["role"] for line in found} == {"app", "nobody"}
    await topic.stop()


def test_without_a_topic_nothing_is_published(tmp_path: Path) -> None:
    assert audit_topic(None, None) is None  # type: ignore[arg-type]
    assert audit_topic(security(tmp_path), None) is None  # type: ignore[arg-type]
