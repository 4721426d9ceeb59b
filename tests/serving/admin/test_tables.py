"""Tables for people: pages of topics, what is in use among them, and who sees which namespace."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from quire.metadata.records import Policies, TenantRecord
from quire.serving.broker import Broker
from tests.serving.admin.conftest import Rest
from tests.serving.conftest import BrokerHouse, in_thread
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
    assert (await rest.get("/quire/v1/namespaces")).body == [
        {"namespace": "public/default", "mayAdminister": True}
    ]
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
