"""Tables for people: pages of topics, what is in use among them, and who sees which namespace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pulsar
import pytest

from quire.metadata.records import Policies, TenantRecord
from quire.serving.broker import Broker
from quire.serving.operations.history import POINTS, SAMPLES_MAX, SERIES, STEP_S, History, Series, added
from quire.serving.subscription.dispatch import blocked
from tests.serving.admin.conftest import Rest
from tests.serving.conftest import AdvancedClock, BrokerHouse, in_thread
from tests.serving.security import security, token

PAGE = "/quire/v1/namespaces/public/default/topics"


def names(body: dict[str, list[dict[str, str]]]) -> list[str]:
    return [row["topic"].rpartition("/")[2] for row in body["topics"]]


async def test_pages_are_cut_by_name_and_a_topic_with_partitions_is_one_row(
    rest: Rest, client: pulsar.Client
) -> None:
    for name in ("a", "b", "c", "other"):
        await rest.put(f"/admin/v2/persistent/public/default/{name}", {})
    await rest.put("/admin/v2/persistent/public/default/many/partitions", 3)

    def use() -> list[pulsar.Producer]:
        client.subscribe("many", "s")
        producers = [client.create_producer(name) for name in ("many", "b")]
        for _ in range(6):
            producers[0].send(b"to all partitions in turn")
        return producers

    _producers = await in_thread(use)
    every = (await rest.get(PAGE)).body
    assert every["total"] == 5 and names(every) == ["a", "b", "c", "many", "other"]
    rows = dict(zip(names(every), every["topics"], strict=True))
    assert rows["many"]["partitions"] == 3 and rows["many"]["isLoaded"]
    assert rows["many"]["backlog"] == 6 and rows["many"]["producers"] == 3
    assert rows["many"]["consumers"] == 3 and rows["many"]["subscriptions"] == 1
    assert rows["b"]["producers"] == 1 and rows["b"]["storageSize"] == 0
    second = (await rest.get(f"{PAGE}?offset=3&limit=1")).body
    assert second["total"] == 5 and second["topics"] == [rows["many"]]
    assert names((await rest.get(f"{PAGE}?contains=AN")).body) == ["many"]
    assert (await rest.get(f"{PAGE}?offset=9")).body["topics"] == []


async def test_by_activity_only_what_is_in_use_is_looked_at(rest: Rest, client: pulsar.Client) -> None:
    await rest.put("/admin/v2/persistent/public/default/many/partitions", 2)

    def use() -> list[pulsar.Producer]:
        producers = [client.create_producer(name) for name in ("small", "large")]
        for producer, size in zip(producers, (10, 10_000), strict=True):
            producer.send(b"x" * size)
        return producers

    _producers = await in_thread(use)
    largest = (await rest.get(f"{PAGE}?sort=size")).body
    assert names(largest) == ["large", "small"] and largest["total"] == 2
    assert names((await rest.get(f"{PAGE}?sort=size&limit=1&offset=1")).body) == ["small"]


async def test_namespaces_have_sums_over_their_topics(rest: Rest, client: pulsar.Client) -> None:
    await rest.put("/admin/v2/namespaces/public/other")
    await rest.put("/admin/v2/persistent/public/other/idle", {})
    await rest.put("/admin/v2/persistent/public/default/many/partitions", 2)

    def use() -> None:
        client.subscribe("many", "s").close()
        producer = client.create_producer("many")
        for _ in range(4):
            producer.send(b"x" * 100)

    await in_thread(use)
    rows = {row["namespace"]: row for row in (await rest.get("/quire/v1/namespaces")).body}
    used, idle = rows["public/default"], rows["public/other"]
    assert used["topics"] == 1 and used["numbers"]["topicsLoaded"] == 2
    assert used["numbers"]["backlog"] == 4 and used["numbers"]["storageSize"] > 400
    assert idle["topics"] == 1 and idle["numbers"]["backlog"] == 0


async def test_topics_of_all_namespaces_are_found_by_a_part_of_their_name(rest: Rest) -> None:
    await rest.put("/admin/v2/namespaces/public/other")
    for name in ("default/orders", "other/Orders-eu", "other/a%2Forders", "default/payments"):
        await rest.put(f"/admin/v2/persistent/public/{name}", {})
    await rest.put("/admin/v2/persistent/public/default/orders-parted/partitions", 3)

    async def found(query: str) -> list[str]:
        names = (await rest.get(f"/quire/v1/topics?{query}")).body
        return [name.removeprefix("persistent://public/") for name in names]

    assert await found("contains=ORDERS") == [
        "default/orders",
        "default/orders-parted",
        "other/Orders-eu",
        "other/a/orders",
    ]
    assert await found("contains=orders&limit=2") == ["default/orders", "default/orders-parted"]
    assert await found("contains=public/other/orders") == ["other/Orders-eu", "other/a/orders"]
    assert await found("contains=persistent://public/default/pay") == ["default/payments"]
    assert await found("contains=none/of/them") == []


async def test_a_subscription_without_consumers_hides_no_stuck_one(rest: Rest, client: pulsar.Client) -> None:
    def use() -> list[Any]:
        client.subscribe("orders", "a-idle").close()
        stuck = client.subscribe("orders", "stuck", pulsar.ConsumerType.Shared, receiver_queue_size=1)
        producer = client.create_producer("orders")
        for _ in range(5):
            producer.send(b"one")
        return [stuck, producer]

    _used = await in_thread(use)
    (row,) = (await rest.get(PAGE)).body["topics"]
    assert row["blockedReason"].startswith("no permits")
    await in_thread(_used[0].close)
    (row,) = (await rest.get(PAGE)).body["topics"]
    assert row["blockedReason"] == blocked.NO_CONSUMER


async def test_the_rates_of_the_last_minutes(rest: Rest, broker: Broker, client: pulsar.Client) -> None:
    history = "/quire/v1/overview/history"
    assert (await rest.get(history)).body["rates"]["messagesIn"] == []
    clock = AdvancedClock()
    broker.admin.metrics.history = made = History(broker.registry, replace(broker.services, clock=clock))
    await made.sample()
    producer = await in_thread(lambda: client.create_producer("orders"))
    for _ in range(3):
        await in_thread(lambda: producer.send(b"12345"))
        clock.ahead_s += STEP_S
        await made.sample()
    clock.ahead_s += 2 * STEP_S  # as after a pause of the process
    await made.sample()
    series = made.series(60)
    assert len(series.rates["messagesIn"]) == 5 and series.step_s == STEP_S
    assert all(0 < one <= 1 / STEP_S for one in series.rates["messagesIn"][:3])
    assert series.rates["messagesIn"][3:] == [0, 0] and sum(series.rates["bytesIn"]) > 0
    late = Series(series.end_ms - 1000 * STEP_S, STEP_S, {name: [1.0] * 7 for name in series.rates})
    total = added([series, late], 60)
    assert total.end_ms == series.end_ms and len(total.rates["bytesOut"]) == 8
    assert total.rates["bytesOut"] == [1.0] * 7 + [0.0]
    assert (await rest.get(f"{history}?minutes=481")).status == 400


@pytest.mark.parametrize("end_ms", [0, 1000 * STEP_S])
def test_graphs_have_a_bounded_number_of_points(end_ms: int) -> None:
    """A broker that has just started has no samples, and the clock of another one may be years late."""
    now_ms = 1_800_000_000_000
    newest = Series(now_ms, STEP_S, {name: [1.0] * 3 for name in SERIES})
    other = Series(end_ms, STEP_S, {name: [2.0] * (end_ms > 0) for name in SERIES})
    for some in ([newest, other], [other, newest]):
        total = added(some, 1)
        assert total.end_ms == now_ms
        assert total.rates["messagesIn"] == [1.0] * 3 if not end_ms else [0.0] * 3 + [1.0] * 3
    assert added([Series(0, STEP_S, {name: [] for name in SERIES})] * 2, 1).rates["bytesIn"] == []


async def test_samples_take_a_bounded_amount_of_memory(broker: Broker) -> None:
    clock = AdvancedClock()
    made = History(broker.registry, replace(broker.services, clock=clock))
    for _ in range(3):
        clock.ahead_s += 2 * SAMPLES_MAX * STEP_S
        await made.sample()
    assert {len(one) for one in made._rates.values()} == {SAMPLES_MAX}
    assert len(made.series(480).rates["messagesIn"]) <= POINTS + 1


async def test_connections_are_listed_and_closed(rest: Rest, client: pulsar.Client) -> None:
    where = "/quire/v1/connections"
    producer = await in_thread(lambda: client.create_producer("orders"))
    page = (await rest.get(f"{where}?contains=orders")).body
    (row,) = page["connections"]
    assert page["total"] == 1 and row["producers"] == 1 and row["consumers"] == 0
    assert row["topics"] == ["persistent://public/default/orders"] and "Pulsar" in row["clientVersion"]
    assert (await rest.get(f"{where}?contains=nothing-like-this")).body["connections"] == []
    names = f"broker={quote(row['broker'], safe='')}&name={quote(row['name'], safe='')}"
    left = await rest.delete(f"{where}?broker=10.0.0.9:8080&name={quote(row['name'], safe='')}")
    assert left.status == 404 and "no broker" in left.body["reason"]
    assert (await rest.get(f"{where}?contains=orders")).body["connections"] == [row]
    assert (await rest.delete(f"{where}?{names}")).status == 204
    await in_thread(lambda: producer.send(b"over the next connection"))
    assert (await rest.delete(f"{where}?{names}")).status == 404
    (again,) = (await rest.get(f"{where}?contains=orders")).body["connections"]
    assert again["name"] != row["name"]


async def test_topics_that_keep_nothing_are_a_table_of_their_own(rest: Rest, client: pulsar.Client) -> None:
    name = "non-persistent://public/default/passing"
    _producer = await in_thread(lambda: client.create_producer(name))
    assert (await rest.get(PAGE)).body["topics"] == []
    (row,) = (await rest.get(f"{PAGE}?domain=non-persistent")).body["topics"]
    assert row["topic"] == name and row["producers"] == 1


@pytest.mark.parametrize("query", ["sort=best", "limit=501", "offset=-1", "limit=x", "domain=other"])
async def test_what_makes_no_sense_is_refused(rest: Rest, query: str) -> None:
    assert (await rest.get(f"{PAGE}?{query}")).status == 400


async def test_an_unknown_namespace_is_not_an_empty_one(rest: Rest) -> None:
    assert (await rest.get("/quire/v1/namespaces/public/none/topics")).status == 404


async def test_without_log_in_everybody_may_everything(rest: Rest) -> None:
    who = (await rest.get("/quire/v1/whoami")).body
    assert who["asksWho"] is False and who["isSuperuser"] is True
    (row,) = (await rest.get("/quire/v1/namespaces")).body
    assert row["namespace"] == "public/default" and row["mayAdminister"] is True and row["topics"] == 0
    overview = (await rest.get("/quire/v1/overview")).body
    (broker,) = overview["brokers"]
    assert broker["now"]["whyNotReady"] == [] and len(overview["bookies"]) == 3 and not overview["silent"]


class TestSecured:
    @pytest.fixture
    async def broker(self, house: BrokerHouse, tmp_path: Path) -> Broker:
        house.security = security(tmp_path)
        broker = await house.start()
        await broker.namespaces.create_tenant("other", TenantRecord(name="other", admin_roles=("boss",)))
        await broker.namespaces.create("other", "own")
        reader = Policies(permissions={"reader": ("consume",)})
        await broker.namespaces.change("public", "default", lambda _: reader)
        return broker

    async def test_one_sees_the_namespaces_whose_topics_one_may_list(self, rest: Rest) -> None:
        expected = {
            "admin": {"public/default": True, "other/own": True},
            "reader": {"public/default": False},
            "boss": {"other/own": True},
            "nobody": {},
        }
        for role, wanted in expected.items():
            headers = {"Authorization": f"Bearer {token(role)}"}
            rows = (await rest.get("/quire/v1/namespaces", headers=headers)).body
            assert {row["namespace"]: row["mayAdminister"] for row in rows} == wanted
            who = (await rest.get("/quire/v1/whoami", headers=headers)).body
            assert who["role"] == role and who["asksWho"] and who["isSuperuser"] is (role == "admin")

    async def test_the_console_is_there_for_who_is_to_log_in(self, rest: Rest) -> None:
        assert (await rest.get("/console/")).status == 200
        assert (await rest.get("/console/js/app.js")).status == 200
        assert (await rest.get("/quire/v1/whoami")).status == 401
