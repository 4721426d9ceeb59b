"""`/admin/v2/brokers/configuration`: settings that change while brokers run, on all of them, and stay changed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from quire.metadata import paths
from quire.metadata.records import SettingRecord, encode
from quire.process.broker import BrokerProcessSettings
from quire.process.dynamic_settings import follow_log, follow_moves
from quire.process.settings import LogSettings
from quire.runtime import slow
from quire.runtime.errors import ConfigurationError, CorruptionError, NotFound, Unavailable
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.operations import dynamic_settings, policy_admin
from quire.serving.operations.dynamic_settings import OF_BROKERS, SettingsGroup
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import BrokerHouse
from tests.serving.ownership.cluster import Brokers

CONFIGURATION = "/admin/v2/brokers/configuration"
ORDERS = TopicName.parse("persistent://public/default/orders")

NEW: dict[str, tuple[str, Any]] = {
    "archive_delay_ms": ("7s", 7_000),
    "archive_lag_ms": ("2h", 7_200_000),
    "auto_topic_creation": ("false", False),
    "deduplication": ("true", True),
    "delayed_delivery": ("false", False),
    "delayed_delivery_tick_ms": ("50", 50),
    "message_ttl_ms": ("7d", 604_800_000),
    "metrics_topics_max": ("3", 3),
    "publish_bytes_per_s": ("1MiB", 1 << 20),
    "publish_messages_per_s": ("1000", 1_000),
    "retention_bytes": ("64MiB", 64 << 20),
    "retention_ms": ("1h", 3_600_000),
    "segment_age_ms_max": ("1m", 60_000),
    "topic_idle_ms_max": ("0", 0),
}
"""A text for each setting, and its value."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def post(rest: Rest, name: str, value: str) -> int:
    return (await rest.post(f"{CONFIGURATION}/{name}/{value}")).status


async def test_settings_that_can_change_are_listed_with_changes_and_values(rest: Rest) -> None:
    assert (await rest.get(CONFIGURATION)).body == sorted(OF_BROKERS) == sorted(NEW)
    assert (await rest.get(f"{CONFIGURATION}/values")).body == {}
    assert (await rest.get(f"{CONFIGURATION}/runtime")).body["retention_ms"] == "-1"
    for name, (text, _) in NEW.items():
        assert await post(rest, name, text) == 204, name
    assert (await rest.get(f"{CONFIGURATION}/values")).body == {name: text for name, (text, _) in NEW.items()}
    running = (await rest.get(f"{CONFIGURATION}/runtime")).body
    assert {name: running[name] for name in NEW} == {name: str(value) for name, (_, value) in NEW.items()}
    assert running["cluster"] == "standalone", "all settings of a broker"
    for name in NEW:
        assert (await rest.delete(f"{CONFIGURATION}/{name}")).status == 204, name
    assert (await rest.get(f"{CONFIGURATION}/values")).body == {}
    assert (await rest.get(f"{CONFIGURATION}/runtime")).body["retention_ms"] == "-1"
    assert (await rest.delete(f"{CONFIGURATION}/retention_ms")).status == 204, "again"


@pytest.mark.parametrize("value", ["soon", "-2", "1.5x", "true"])
async def test_an_invalid_value_changes_nothing(rest: Rest, broker: Broker, value: str) -> None:
    assert await post(rest, "retention_ms", "1h") == 204
    refused = await rest.post(f"{CONFIGURATION}/retention_ms/{value}")
    assert refused.status == 412 and "retention_ms" in refused.body["reason"]
    assert (await rest.get(f"{CONFIGURATION}/values")).body == {"retention_ms": "1h"}
    assert broker.services.settings.retention_ms == 3_600_000
    assert await post(rest, "retention_ms", "9" * 101) == 412


async def test_a_setting_that_cannot_change_is_refused_with_those_that_can(rest: Rest) -> None:
    for ask, path in ((rest.post, "listen/127.0.0.1:1"), (rest.delete, "listen"), (rest.post, "none/1")):
        refused = await ask(f"{CONFIGURATION}/{path}")
        assert refused.status == 412
        assert all(name in refused.body["reason"] for name in OF_BROKERS)


async def test_defaults_of_policies_reach_topics_that_are_loaded(rest: Rest, broker: Broker) -> None:
    await rest.put(TOPIC)
    own = TOPIC.replace("orders", "own")
    await rest.put(own)
    await rest.post(f"{own}/messageTTL", 60)
    topic = await broker.registry.open(ORDERS)
    assert topic.straight is not None, "no publish rate limits it"
    for name, (text, _) in NEW.items():
        if name != "deduplication":
            await post(rest, name, text)
    policies = topic.applied.policies
    assert policies.message_ttl_ms == 604_800_000
    assert (policies.retention.retention_ms, policies.retention.retention_bytes) == (3_600_000, 64 << 20)
    assert (policies.delayed_delivery.active, policies.delayed_delivery.tick_ms) == (False, 50)
    assert (policies.publish_rate.messages_per_s, policies.publish_rate.bytes_per_s) == (1_000, 1 << 20)
    assert topic.applied.publish_limiter is not None and topic.straight is None
    other = await broker.registry.open(ORDERS._replace(local="own"))
    assert other.applied.policies.message_ttl_ms == 60_000, "a topic's own policy has precedence"
    for name in NEW:
        await rest.delete(f"{CONFIGURATION}/{name}")
    assert topic.applied.policies.message_ttl_ms == 0 and topic.straight is not None


async def test_deduplication_begins_and_ends_while_topics_are_loaded(rest: Rest, broker: Broker) -> None:
    await rest.put(TOPIC)
    assert (await broker.registry.open_persistent(ORDERS)).log.dedup is None
    await post(rest, "deduplication", "true")
    assert (await broker.registry.open_persistent(ORDERS)).log.dedup is not None
    await rest.delete(f"{CONFIGURATION}/deduplication")
    assert (await broker.registry.open_persistent(ORDERS)).log.dedup is None


async def test_a_change_of_a_default_waits_neither_for_reloads_nor_for_other_namespaces(
    rest: Rest, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, other = broker.registry, ORDERS._replace(namespace="other")
    await rest.put("/admin/v2/namespaces/public/other")
    for name in (ORDERS, other):
        await registry.create(name)
        await registry.open(name)
    unload, policies_of = registry.unload, registry.policies.of
    goes_on = asyncio.Event()

    async def unload_later(name: TopicName) -> None:
        await goes_on.wait()
        await unload(name)

    async def of(name: TopicName) -> Any:
        if name == other and not goes_on.is_set():
            raise Unavailable("the metadata store does not answer")
        return await policies_of(name)

    monkeypatch.setattr(policy_admin, "APPLY_S", 0)
    monkeypatch.setattr(policy_admin, "RETRY_S", 0.01)
    monkeypatch.setattr(registry, "unload", unload_later)
    monkeypatch.setattr(registry.policies, "of", of)
    async with asyncio.timeout(60):
        assert await post(rest, "message_ttl_ms", "7d") == 204
    topic = await registry.open(ORDERS)
    await until(lambda: topic.applied.policies.message_ttl_ms == 604_800_000)
    async with asyncio.timeout(60):
        assert await post(rest, "deduplication", "true") == 204
    assert broker.services.settings.deduplication
    goes_on.set()
    await until(lambda: registry.find(ORDERS) is None and registry.find(other) is None)
    for name in (ORDERS, other):
        assert (await registry.open_persistent(name)).log.dedup is not None


async def test_a_change_that_fails_is_applied_again_and_keeps_no_other_from_being_applied(
    rest: Rest, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[str] = []
    is_broken = True

    async def apply(settings: LogSettings) -> None:
        applied.append(settings.log_level)
        if is_broken:
            raise OSError("the disk is full")

    monkeypatch.setattr(dynamic_settings, "RETRY_S", 0.01)
    settings = broker.admin.settings
    settings._groups.insert(0, SettingsGroup(LogSettings(), ("log_level",), apply))
    level = settings.current()["log_level"]
    assert await post(rest, "log_level", "debug") == 500
    assert settings.current()["log_level"] == level and settings.changed() == {"log_level": "debug"}
    await post(rest, "retention_ms", "1h")
    assert broker.services.settings.retention_ms == 3_600_000
    assert (await rest.delete(f"{CONFIGURATION}/log_level")).status == 500
    assert applied[-1] == level, "a part of the change that failed may be in effect"
    assert await post(rest, "log_level", "debug") == 500
    is_broken = False
    await until(lambda: settings.current()["log_level"] == "debug")
    assert applied[-1] == "debug"


async def test_what_parts_of_a_broker_do_changes_at_once(rest: Rest, broker: Broker) -> None:
    assert broker.offloading is not None
    await post(rest, "archive_lag_ms", "2h")
    await post(rest, "archive_delay_ms", "7s")
    assert (broker.offloading.offloader.lag_ms, broker.offloading.offloader.delay_ms) == (7_200_000, 7_000)
    await post(rest, "auto_topic_creation", "false")
    with pytest.raises(NotFound):
        await broker.registry.open(ORDERS, create=True)
    await rest.delete(f"{CONFIGURATION}/auto_topic_creation")
    await broker.registry.open(ORDERS, create=True)
    assert "quire_topic_messages_in_total" in await broker.admin.metrics.collect()
    await post(rest, "metrics_topics_max", "0")
    assert "quire_topic_messages_in_total" not in await broker.admin.metrics.collect()


async def test_a_change_holds_over_a_brokers_own_settings_and_after_its_restart(
    rest: Rest, house: BrokerHouse, broker: Broker
) -> None:
    await post(rest, "retention_ms", "1h")
    await house.kill(broker)
    other = await house.start(retention_ms=5_000, retention_bytes=1 << 30)
    assert (other.services.settings.retention_ms, other.services.settings.retention_bytes) == (
        3_600_000,
        1 << 30,
    )
    await other.admin.settings.unset("retention_ms")
    assert other.services.settings.retention_ms == 5_000, "the value of its start"


@pytest.mark.parametrize(
    ("value", "error", "told"),
    [
        (encode(SettingRecord(value="never")), ConfigurationError, "setting retention_ms"),
        (b"{", CorruptionError, paths.setting("retention_ms")),
    ],
)
async def test_a_broker_does_not_start_without_a_change_that_it_cannot_read(
    house: BrokerHouse, value: bytes, error: type[Exception], told: str
) -> None:
    """Its file's retention might delete what the change keeps."""
    await house.cluster.store.create(paths.setting("retention_ms"), value)
    with pytest.raises(error, match=told):
        await house.start()


async def test_a_running_broker_keeps_its_values_when_a_record_becomes_invalid(
    rest: Rest, house: BrokerHouse, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await post(rest, "retention_ms", "1h")
    invalid = encode(SettingRecord(value="never"))
    await house.cluster.store.put(paths.setting("retention_ms"), invalid, -1)
    await until(lambda: "cannot apply changed settings" in caplog.text)
    assert broker.services.settings.retention_ms == 3_600_000
    assert await post(rest, "retention_ms", "2h") == 204
    assert broker.services.settings.retention_ms == 7_200_000


async def test_settings_of_newer_versions_are_ignored(house: BrokerHouse) -> None:
    await house.cluster.store.create(paths.setting("of_the_future"), encode(SettingRecord(value="1")))
    broker = await house.start()
    assert broker.admin.settings.changed() == {}


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    yield made
    await made.close()


async def test_every_broker_applies_a_change(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start(retention_ms=5_000)
    url = f"{one.broker.addresses.http_url}{CONFIGURATION}"
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/retention_ms/1h") as answer:
            assert answer.status == 204
        settings = two.broker.services
        await until(lambda: settings.settings.retention_ms == 3_600_000)
        late = await brokers.start(retention_ms=9_000)
        assert late.broker.services.settings.retention_ms == 3_600_000
        async with session.delete(f"{url}/retention_ms") as answer:
            assert answer.status == 204
        await until(lambda: settings.settings.retention_ms == 5_000)
        await until(lambda: late.broker.services.settings.retention_ms == 9_000)


async def test_the_limit_of_moved_bundles_changes(brokers: Brokers) -> None:
    member = await brokers.start()
    shedding, settings = member.ownership.shedding, member.broker.admin.settings
    own = BrokerProcessSettings(metadata="zk://127.0.0.1:2181/quire")
    follow_moves(member.broker, own, shedding.limit_moves)
    await settings.set("balance_moves_per_minute_max", "3")
    assert shedding._balancer.moves_per_minute_max == 3
    with pytest.raises(ConfigurationError, match="must not be negative"):
        await settings.set("balance_moves_per_minute_max", "-1")
    await settings.unset("balance_moves_per_minute_max")
    assert shedding._balancer.moves_per_minute_max == own.balance_moves_per_minute_max


async def test_other_parts_of_a_process_add_their_settings(broker: Broker, rest: Rest) -> None:
    root, bound = logging.getLogger(), slow.BOUND.s
    level = root.level
    follow_log(broker, LogSettings())
    try:
        assert await post(rest, "log_level", "debug") == 204
        assert root.level == logging.DEBUG
        assert await post(rest, "log_slow_ms", "0") == 204
        assert slow.BOUND.s == math.inf
        assert await post(rest, "log_level", "loud") == 412
        assert (await rest.get(f"{CONFIGURATION}/runtime")).body["log_level"] == "debug"
        assert (await rest.delete(f"{CONFIGURATION}/log_level")).status == 204
        assert root.level == logging.INFO
    finally:
        root.setLevel(level)
        slow.BOUND.s = bound


async def test_the_places_of_the_metadata_are_shown(broker: Broker, rest: Rest) -> None:
    broker.admin.metadata_url = "zk://one:2181,two:2181/chroot"
    found = (await rest.get("/admin/v2/brokers/internal-configuration")).body
    assert found["zookeeperServers"] == found["configurationStoreServers"] == "one:2181,two:2181/chroot"
    assert (
        found["metadataStoreUrl"] == found["bookkeeperMetadataServiceUri"] == "zk://one:2181,two:2181/chroot"
    )
    assert found["ledgersRootPath"] == "/chroot/quire/ledgers" and found["stateStorageServiceUrl"] is None
    broker.admin.metadata_url = "sqlite:///data/metadata.db"
    found = (await rest.get("/admin/v2/brokers/internal-configuration")).body
    assert found["zookeeperServers"] == "" and found["metadataStoreUrl"] == "sqlite:///data/metadata.db"
