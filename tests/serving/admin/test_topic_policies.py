"""Policies of one topic over REST: over the namespace's, over the broker's defaults, applied to what is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from quire.metadata import paths
from quire.serving.admin import policies
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import BrokerHouse

NAMESPACE = "/admin/v2/namespaces/public/default"
NAME = TopicName.parse("orders")
RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 5}
QUOTA = {"limit": 10, "limitSize": 10, "limitTime": -1, "policy": "producer_exception"}


def dispatch_rate(messages: int, byte_count: int, period_s: int) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": byte_count,
        "ratePeriodInSecond": period_s,
        "relativeToPublishRate": False,
    }


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until watches have told and their tasks have acted."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


@pytest.mark.parametrize(
    ("word", "body"),
    [
        ("deduplicationEnabled", True),
        ("messageTTL", 3600),
        ("retention", RETENTION),
        ("maxMessageSize", 1000),
        ("maxProducers", 5),
        ("maxConsumers", 5),
        ("maxConsumersPerSubscription", 5),
        ("maxSubscriptionsPerTopic", 5),
        ("maxUnackedMessagesOnConsumer", 5),
        ("maxUnackedMessagesOnSubscription", 5),
        ("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}),
        ("subscribeRate", {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 10}),
        ("deduplicationSnapshotInterval", 120),
        ("publishRate", {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": -1}),
        ("compactionThreshold", 1 << 20),
        ("dispatchRate", dispatch_rate(100, -1, 10)),
        ("subscriptionDispatchRate", dispatch_rate(-1, 1 << 20, 1)),
        ("iceberg", {"catalog": "/lake", "warehouse": "", "namespace": "shop", "table": "orders"}),
        ("delayedDelivery", {"active": False, "tickTime": 50, "maxDeliveryDelayInMillis": 1000}),
        (
            "inactiveTopicPolicies",
            {
                "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
                "maxInactiveDurationSeconds": 30,
                "deleteWhileInactive": True,
            },
        ),
        (
            "persistence",
            {
                "bookkeeperEnsemble": 3,
                "bookkeeperWriteQuorum": 3,
                "bookkeeperAckQuorum": 2,
                "managedLedgerMaxMarkDeleteRate": 0.0,
            },
        ),
        (
            "persistence",
            {
                "bookkeeperEnsemble": 0,
                "bookkeeperWriteQuorum": 0,
                "bookkeeperAckQuorum": 0,
                "managedLedgerMaxMarkDeleteRate": 0.0,
                "storage": "objects",
            },
        ),
    ],
)
async def test_a_topic_s_policy_is_set_shown_and_removed(rest: Rest, word: str, body: Any) -> None:
    assert (await rest.put(TOPIC)).status == 204
    path = f"{TOPIC}/{word}"
    assert (await rest.get(path)).body is None
    default = (await rest.get(f"{path}?applied=true")).body
    assert (await rest.post(path, body)).status == 204
    assert (await rest.get(path)).body == body
    assert (await rest.get(f"{path}?applied=true")).body == body
    assert (await rest.delete(path)).status == 204
    assert (await rest.get(path)).body is None
    assert (await rest.get(f"{path}?applied=true")).body == default


async def test_the_two_quotas_are_told_apart_by_the_query(rest: Rest) -> None:
    for parent in (TOPIC, NAMESPACE):
        await rest.put(TOPIC)
        aged = {**QUOTA, "limit": -1, "limitSize": -1, "limitTime": 60}
        assert (await rest.post(f"{parent}/backlogQuota", QUOTA)).status == 204
        assert (await rest.post(f"{parent}/backlogQuota?backlogQuotaType=message_age", aged)).status == 204
        both = {"destination_storage": QUOTA, "message_age": aged}
        assert (await rest.get(f"{parent}/backlogQuotaMap")).body == both
        assert (
            await rest.delete(f"{parent}/backlogQuota?backlogQuotaType=destination_storage")
        ).status == 204
        assert (await rest.get(f"{parent}/backlogQuotaMap")).body == {"message_age": aged}
        assert (await rest.post(f"{parent}/backlogQuota?backlogQuotaType=guess", QUOTA)).status == 400
        assert (await rest.post(f"{parent}/backlogQuota", {"policy": "producer_exception"})).status == 400


@pytest.mark.parametrize(
    ("word", "body"),
    [
        ("retention", '{"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}'),
        ("retention", '{"retentionTimeInMinutes": 99999999999999999, "retentionSizeInMB": -1}'),
        ("inactiveTopicPolicies", '{"inactiveTopicDeleteMode": "at_whim"}'),
        ("inactiveTopicPolicies", '{"maxInactiveDurationSeconds": 0}'),
        ("delayedDelivery", '{"tickTime": 0}'),
        ("maxMessageSize", "-1"),
        ("compactionThreshold", "true"),
        ("messageTTL?messageTTL=soon", ""),
    ],
)
async def test_a_topic_s_policy_that_is_none_is_refused(rest: Rest, word: str, body: str) -> None:
    await rest.put(TOPIC)
    answer = await rest.post(f"{TOPIC}/{word}", data=body)
    assert answer.status == (412 if body.lstrip("-").isdigit() else 400) and answer.body["reason"]
    assert (await rest.get(f"{TOPIC}/{word.split('?')[0]}")).body is None


async def test_a_number_may_come_in_the_query_as_pulsar_s_tools_send_it(rest: Rest) -> None:
    await rest.put(TOPIC)
    assert (await rest.post(f"{TOPIC}/messageTTL?messageTTL=120")).status == 204
    assert (await rest.get(f"{TOPIC}/messageTTL")).body == 120


async def test_no_topic_no_policy(rest: Rest) -> None:
    assert (await rest.post(f"{TOPIC}/messageTTL", 5)).status == 404
    assert (await rest.get(f"{TOPIC}/messageTTL")).status == 404


async def test_the_topic_s_word_counts_before_the_namespace_s_and_that_before_the_broker_s(
    rest: Rest, broker: Broker
) -> None:
    """And a loaded topic has it at once, whichever broker was told: the store's watch tells."""
    await rest.put(TOPIC)
    topic = await broker.registry.open(NAME)
    assert topic.applied.policies.message_ttl_ms == 0
    await rest.post(f"{NAMESPACE}/messageTTL", 60)
    await until(lambda: topic.applied.policies.message_ttl_ms == 60_000)
    await rest.post(f"{TOPIC}/messageTTL", 5)
    await until(lambda: topic.applied.policies.message_ttl_ms == 5_000)
    await broker.services.store.put(
        paths.policies("public", "default", "orders"), b'{"message_ttl_ms":7}', -1
    )
    await until(lambda: topic.applied.policies.message_ttl_ms == 7)
    await rest.delete(f"{TOPIC}/messageTTL")
    await until(lambda: topic.applied.policies.message_ttl_ms == 60_000)
    await rest.delete(f"{NAMESPACE}/messageTTL")
    await until(lambda: topic.applied.policies.message_ttl_ms == 0)


async def test_which_topics_have_a_table(rest: Rest) -> None:
    """Of all namespaces, by their own policy or the namespace's; a partitioned topic is one."""
    iceberg = {"catalog": "https://catalog", "warehouse": "lake", "namespace": "", "table": ""}
    assert (await rest.get("/quire/v1/iceberg")).body == []
    await rest.put(f"{TOPIC}/partitions", 2)
    await rest.put("/admin/v2/persistent/public/default/plain")
    await rest.put("/admin/v2/namespaces/public/shop")
    await rest.put("/admin/v2/persistent/public/shop/bills")
    await rest.post(f"{TOPIC}/iceberg", iceberg)
    await rest.post("/admin/v2/namespaces/public/shop/iceberg", {"catalog": "/lake"})
    found = (await rest.get("/quire/v1/iceberg")).body
    assert sorted(found, key=lambda one: str(one["topic"])) == [
        {"topic": "persistent://public/default/orders", **iceberg},
        {"topic": "persistent://public/shop/bills", **dict.fromkeys(iceberg, ""), "catalog": "/lake"},
    ]
    await rest.delete(f"{TOPIC}/iceberg")
    await rest.post("/admin/v2/persistent/public/shop/bills/iceberg", {})
    assert (await rest.get("/quire/v1/iceberg")).body == [], "a topic may do without its namespace's"
    await rest.delete("/admin/v2/persistent/public/shop/bills/iceberg")
    assert len((await rest.get("/quire/v1/iceberg")).body) == 1
    await rest.delete("/admin/v2/namespaces/public/shop/iceberg")
    assert (await rest.get("/quire/v1/iceberg")).body == []


async def test_partitions_have_their_parent_s_policies(rest: Rest, broker: Broker) -> None:
    await rest.put(f"{TOPIC}/partitions", 2)
    await rest.post(f"{TOPIC}/messageTTL", 5)
    topic = await broker.registry.open(NAME.of_partition(1))
    assert topic.applied.policies.message_ttl_ms == 5_000
    await rest.delete(f"{TOPIC}/partitions")
    await rest.put(f"{TOPIC}/partitions", 2)
    assert (await rest.get(f"{TOPIC}/messageTTL")).body is None, "a later topic of the name begins anew"


async def test_policies_survive_a_restart_and_go_with_the_topic(
    rest: Rest, house: BrokerHouse, broker: Broker
) -> None:
    await rest.put(TOPIC)
    await rest.post(f"{TOPIC}/messageTTL", 5)
    await house.stop(broker)
    again = await house.start()
    assert (await again.registry.open(NAME)).applied.policies.message_ttl_ms == 5_000
    await again.admin.topics.delete(NAME)
    await again.registry.create(NAME)
    assert (await again.registry.open(NAME)).applied.policies.message_ttl_ms == 0


async def test_deduplication_that_is_turned_on_loads_the_topic_anew(rest: Rest, broker: Broker) -> None:
    await rest.put(TOPIC)
    topic = await broker.registry.open(NAME)
    await rest.post(f"{TOPIC}/deduplicationEnabled", True)
    assert topic.is_closed, "who comes right behind the answer gets the new one"
    assert (await broker.registry.open(NAME)).log.dedup is not None


async def test_a_policy_holds_when_it_is_answered(rest: Rest, broker: Broker) -> None:
    await rest.put(TOPIC)
    topic = await broker.registry.open(NAME)
    await rest.post(f"{NAMESPACE}/messageTTL", 5)
    assert topic.applied.policies.message_ttl_ms == 5_000
    await rest.post(f"{TOPIC}/messageTTL", 6)
    assert topic.applied.policies.message_ttl_ms == 6_000
    await rest.delete(f"{TOPIC}/messageTTL")
    await rest.delete(f"{NAMESPACE}/messageTTL")
    assert topic.applied.policies.message_ttl_ms == 0


@pytest.mark.parametrize("path", [f"{TOPIC}/deduplicationEnabled", f"{NAMESPACE}/deduplication"])
async def test_a_topic_that_is_being_loaded_when_a_policy_is_set_heeds_it(
    rest: Rest, broker: Broker, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """It has read its policies and begun to load by them."""
    await rest.put(TOPIC)
    reserve, reached, may_go_on = broker.services.ledgers.reserve, asyncio.Event(), asyncio.Event()

    async def held(above: int) -> int:
        reached.set()
        await may_go_on.wait()
        return await reserve(above)

    monkeypatch.setattr(broker.services.ledgers, "reserve", held)
    opening = asyncio.ensure_future(broker.registry.open(NAME))
    await reached.wait()
    assert (await rest.post(path, True)).status == 204
    may_go_on.set()
    topic = await opening
    assert topic.log.dedup is not None and topic.applied.policies.deduplication
    assert broker.registry.find(NAME) is topic


@pytest.mark.parametrize(
    "body", [{}, {"publishThrottlingRateInMsg": "many"}, {"publishThrottlingRateInMsg": -5}, 5]
)
async def test_a_publish_rate_that_is_none_is_refused(rest: Rest, body: Any) -> None:
    assert (await rest.post(f"{NAMESPACE}/publishRate", body)).status == 400
    assert (await rest.get(f"{NAMESPACE}/publishRate")).body is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        5,
        {"dispatchThrottlingRateInMsg": "many"},
        {"ratePeriodInSecond": 5},
        dispatch_rate(10, -1, 0),
        dispatch_rate(-5, -1, 1),
        dispatch_rate(1 << 70, -1, 1),
        {**dispatch_rate(10, -1, 1), "relativeToPublishRate": True},
    ],
)
async def test_a_dispatch_rate_that_is_none_is_refused(rest: Rest, body: Any) -> None:
    for word in ("dispatchRate", "subscriptionDispatchRate"):
        answer = await rest.post(f"{NAMESPACE}/{word}", body)
        assert answer.status == 400 and answer.body["reason"]
        assert (await rest.get(f"{NAMESPACE}/{word}")).body is None


async def test_a_subscription_has_a_dispatch_rate_of_its_own(rest: Rest, broker: Broker) -> None:
    own, of_all, name = dispatch_rate(5, -1, 1), dispatch_rate(50, -1, 1), "my%252Fsub"
    path = f"{TOPIC}/{name}/dispatchRate"
    assert (await rest.post(path, own)).status == 404
    await rest.put(TOPIC)
    assert await rest.get(path) == (204, None)
    assert (await rest.get(f"{path}?applied=true")).body == dispatch_rate(-1, -1, 1)
    await rest.post(f"{NAMESPACE}/subscriptionDispatchRate", of_all)
    assert (await rest.get(f"{path}?applied=true")).body == of_all
    topic = await broker.registry.open(NAME)
    assert (await rest.post(path, own)).status == 204
    assert (await rest.get(path)).body == (await rest.get(f"{path}?applied=true")).body == own
    assert topic.log.dispatch_limits is not None
    assert topic.log.dispatch_limits.own["my/sub"].messages == 5
    assert await rest.get(f"{TOPIC}/other/dispatchRate") == (204, None)
    assert (await rest.post(path, {"dispatchThrottlingRateInMsg": "many"})).status == 400
    assert (await rest.post(f"{path}?isGlobal=true", own)).status == 501
    assert (await rest.delete(path)).status == 204
    assert await rest.get(path) == (204, None)
    await rest.delete(f"{NAMESPACE}/subscriptionDispatchRate")
    assert topic.log.dispatch_limits is None


async def test_a_subscription_may_be_called_as_the_policy_is(rest: Rest) -> None:
    await rest.put(TOPIC)
    assert (await rest.put(f"{TOPIC}/subscription/dispatchRate")).status == 204
    assert (await rest.delete(f"{TOPIC}/subscription/dispatchRate")).status == 204
    assert (await rest.get(f"{TOPIC}/subscriptions")).body == []


async def test_dispatch_rates_of_subscriptions_are_bounded(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "SUBSCRIPTION_RATES_MAX", 1)
    await rest.put(TOPIC)
    for _ in range(2):
        assert (await rest.post(f"{TOPIC}/a/dispatchRate", dispatch_rate(5, -1, 1))).status == 204
    refused = await rest.post(f"{TOPIC}/b/dispatchRate", dispatch_rate(5, -1, 1))
    assert refused.status == 413 and "subscriptionDispatchRate" in refused.body["reason"]


async def test_the_subscription_types_of_a_topic(rest: Rest) -> None:
    """Not set, a topic's own are an empty list, as in Pulsar, and an empty list unsets them."""
    await rest.put(TOPIC)
    path, every = f"{TOPIC}/subscriptionTypesEnabled", ["Exclusive", "Shared", "Failover", "Key_Shared"]
    assert await rest.get(path) == (200, [])
    assert (await rest.get(f"{path}?applied=true")).body == every
    assert (await rest.post(f"{NAMESPACE}/subscriptionTypesEnabled", ["Shared"])).status == 204
    assert (await rest.get(f"{path}?applied=true")).body == ["Shared"]
    assert (await rest.post(path, ["Key_Shared", "Exclusive"])).status == 204
    assert (await rest.get(path)).body == ["Exclusive", "Key_Shared"]
    assert (await rest.post(path, [])).status == 204
    assert await rest.get(path) == (200, [])
    assert (await rest.post(path, ["Odd"])).status == 400


async def test_a_dispatch_rate_reaches_the_subscriptions_of_a_loaded_topic(
    rest: Rest, broker: Broker
) -> None:
    await rest.put(TOPIC)
    topic = await broker.registry.open(NAME)
    assert topic.log.dispatch_limits is None
    assert (await rest.post(f"{NAMESPACE}/dispatchRate", dispatch_rate(7, -1, 1))).status == 204
    await until(lambda: topic.log.dispatch_limits is not None)
    limited = topic.log.dispatch_limits
    await rest.post(f"{NAMESPACE}/messageTTL", 5)
    await until(lambda: topic.applied.policies.message_ttl_ms == 5000)
    assert topic.log.dispatch_limits is limited, "another policy does not forgive a debt"
    assert (await rest.delete(f"{NAMESPACE}/dispatchRate")).status == 204
    await until(lambda: topic.log.dispatch_limits is None)


async def test_another_publish_rate_lets_who_waits_ask_anew(rest: Rest, broker: Broker) -> None:
    await rest.put(TOPIC)
    topic = await broker.registry.open(NAME)
    assert topic.applied.publish_limiter is None
    assert (await rest.post(f"{TOPIC}/publishRate", {"publishThrottlingRateInMsg": 1})).status == 204
    await until(lambda: topic.applied.publish_limiter is not None)
    limiter = topic.applied.publish_limiter
    assert limiter is not None
    limiter.passed(1000, 0)
    told: list[bool] = []
    limiter.wait(lambda: told.append(topic.applied.publish_limiter is None))
    await rest.post(f"{TOPIC}/messageTTL", 5)
    await until(lambda: topic.applied.policies.message_ttl_ms == 5000)
    assert topic.applied.publish_limiter is limiter and not told, "another policy does not forgive a debt"
    assert (await rest.delete(f"{TOPIC}/publishRate")).status == 204
    await until(lambda: bool(told))
    assert told == [True], "by then the other policies hold"


async def test_topics_without_policies_of_their_own_share_one_object(rest: Rest, broker: Broker) -> None:
    """A hundred thousand of them are to be cheap."""
    await rest.put(TOPIC)
    await rest.put(f"{TOPIC}2")
    first = await broker.registry.open(NAME)
    second = await broker.registry.open(TopicName.parse("orders2"))
    mine, other = first.applied, second.applied
    assert mine.policies is other.policies
    await rest.post(f"{NAMESPACE}/messageTTL", 60)
    await until(lambda: mine.policies is other.policies and other.policies.message_ttl_ms == 60_000)


async def test_a_policy_of_all_clusters_is_refused_and_never_set(rest: Rest) -> None:
    assert (await rest.put(TOPIC)).status == 204
    for word, body in (("messageTTL", 60), ("backlogQuota", {"limitTime": 60})):
        path = f"{TOPIC}/{word}?isGlobal="
        for ask in (rest.post, rest.put):
            refused = await ask(f"{path}true", body)
            assert refused.status == 501 and "isGlobal" in refused.body["reason"]
        assert (await rest.post(f"{path}false", body)).status == 204
        assert await rest.get(f"{path}true") == (204, None)
        assert (await rest.get(f"{path}false")).status == 200
        assert (await rest.delete(f"{path}true")).status == 501
        assert (await rest.delete(f"{path}false")).status == 204
