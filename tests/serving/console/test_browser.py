"""The console in a real browser, at a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulsar
import pytest
from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.records import BookieIntent, BookieRecord, Policies, decode, encode
from quire.serving.broker import Broker
from quire.serving.console.pages import POLICY
from quire.serving.names import TopicName
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import BrokerHouse, in_thread
from tests.serving.console.browser import EVIL, NAME, Page
from tests.serving.security import PASSWORD, security, token

HOSTILE = "<img src=x onerror=alert(1)>"


async def test_the_cluster_at_a_glance(page: Page, broker: Broker) -> None:
    def look() -> None:
        page.open("")
        page.see("Cluster", "Brokers", "Bookies", "ready", "Repair")

    await in_thread(look)


async def test_topics_are_found_made_and_ordered(page: Page, rest: Rest, client: pulsar.Client) -> None:
    await rest.put(f"{TOPIC}", {})
    for number in range(60):
        await rest.put(f"/admin/v2/persistent/public/default/sensor-{number:02}", {})
    producer = await in_thread(lambda: client.create_producer("busy"))
    await in_thread(lambda: producer.send(b"once"))

    def look() -> None:
        page.open("topics")
        page.click("public/default")
        page.see("1–50 of 62", "orders", "sensor-40")
        page.click("Next")
        page.see("51–62 of 62", "sensor-59")
        page.see("orders", gone=True)
        page.fill("Name contains", "sensor-5")
        page.see("1–10 of 10")
        assert "contains=sensor-5" in page.driver.current_url
        page.fill("Name contains", "nothing like this")
        page.see("No topic's name contains")
        page.open("topics/public/default?sort=size")
        page.see("busy")
        page.click("New topic")
        page.answer("Create", Name="made here", Partitions="3")

    await in_thread(look)
    assert (await rest.get("/admin/v2/persistent/public/default/made%20here/partitions")).body[
        "partitions"
    ] == 3


async def test_names_of_others_are_text(page: Page, rest: Rest) -> None:
    await rest.put("/admin/v2/persistent/public/default/%3Cimg%20src=x%20onerror=alert(1)%3E", {})

    def look() -> None:
        page.open("topics/public/default")
        page.see(HOSTILE)
        assert page.driver.execute_script("return document.querySelectorAll('main img').length") == 0

    await in_thread(look)


async def test_a_broker_that_does_not_answer_is_told_and_waited_for(page: Page, broker: Broker) -> None:
    def look() -> None:
        page.expected = ("Failed to load resource",)
        page.open("cluster")
        page.see("Brokers")
        page.driver.set_network_conditions(offline=True, latency=0, throughput=0)
        page.see("Not up to date", "No broker responds", "Brokers")
        page.driver.delete_network_conditions()
        page.see("Not up to date", gone=True)

    await in_thread(look)


def use(client: pulsar.Client) -> list[Any]:
    """A topic with a consumer that takes nothing, and a message of which every part is hostile."""
    shared = pulsar.ConsumerType.Shared
    consumer = client.subscribe("orders", EVIL, shared, receiver_queue_size=1)
    producer = client.create_producer("orders", producer_name=EVIL)
    for number in range(5):
        producer.send(b'{"order": %d}' % number)
    producer.send(EVIL.encode(), {EVIL: EVIL}, partition_key=EVIL)
    return [consumer, producer]


async def test_each_part_of_a_topic_shows_what_others_wrote_as_text(
    page: Page, rest: Rest, client: pulsar.Client
) -> None:
    _used = await in_thread(lambda: use(client))

    def look() -> None:
        page.open(NAME)
        page.see("Messages in", "Producers", EVIL)
        page.click("Segments")
        page.see("Why segments are kept", "it is the active segment", "Spark read plan")
        page.click("Subscriptions")
        page.see(EVIL, "Not dispatching because", "no permits", "Pulsar-CPP")
        page.click("Messages")
        page.see(EVIL, '"order": 4', "key")
        page.click("Schemas", "main")
        page.see("The topic has no schema")
        page.click("Policies")
        page.see("retention", "namespace or broker")
        assert page.driver.title == "Quire"
        assert (
            page.driver.execute_script("return document.querySelectorAll('main img, main script').length")
            == 0
        )

    await in_thread(look)


async def test_what_is_done_to_a_topic_by_hand(page: Page, rest: Rest, client: pulsar.Client) -> None:
    used = await in_thread(lambda: use(client))
    where = "/admin/v2/persistent/public/default/orders"
    ledger = (await rest.get(f"{where}/internalStats")).body["ledgers"][0]["ledgerId"]

    def subscribe() -> None:
        page.open(f"{NAME}/subscriptions")
        page.see(EVIL)
        page.click("New subscription")
        page.answer("Create", Name="audit", Initial_position="Earliest")
        page.see("audit", "Exclusive")
        page.click_in_row("audit", "Skip")
        page.fill("Number of messages", "2")
        page.answer("Skip")
        page.see("4 messages")
        page.click_in_row("audit", "Seek")
        page.answer("Seek", To="Earliest")
        page.see("6 messages")
        page.click_in_row("audit", "Seek")
        page.fill("To", "Message ID")
        page.fill("Message ID (LEDGER:ENTRY)", "nowhere")
        page.click("Seek", "dialog")
        page.see("Enter a message ID as LEDGER:ENTRY")
        page.fill("Message ID (LEDGER:ENTRY)", f"{ledger}:3")
        page.answer("Seek")
        page.see("3 messages")
        page.click_in_row("audit", "Seek")
        page.fill("To", "Latest")
        page.keys("\ue00c")  # Escape
        page.wait_for("!document.querySelector('dialog')", "Escape leaves no dialog")

    await in_thread(subscribe)
    assert (await rest.get(f"{where}/subscriptions")).body == sorted(["audit", EVIL])

    def change() -> None:
        page.click("Messages")
        page.see('"order": 0')
        page.click("Seal")
        page.answer("Seal")
        page.click("Policies")
        page.see("retention")
        page.click_in_row("maxProducers", "Set")
        page.answer("Set", Maximum="3")
        page.see("this topic")
        page.click_in_row("maxProducers", "Remove")
        page.answer("Remove")
        page.see("this topic", gone=True)
        page.click("Unload")
        page.answer("Unload")
        page.click("Subscriptions")
        page.see("audit")
        page.click_in_row("audit", "Delete")
        page.answer("Delete", Type="audit")
        page.see("audit", gone=True)

    await in_thread(change)
    ledgers = (await rest.get(f"{where}/internalStats")).body["ledgers"]
    assert ledgers[0]["messages"] == 6 and ledgers[0]["state"] != "active"

    def delete() -> None:
        page.expected = ("/orders/stats",)  # which may be asked for while it is being deleted
        page.click("Delete")
        page.fill("Force deletion", "yes")
        page.answer("Delete", Type="orders")
        page.see("There are no topics yet")

    for one in used:
        await in_thread(one.close)  # or it would come back, and make the topic anew
    await in_thread(delete)
    assert (await rest.get(f"{where}/stats")).status == 404


async def test_a_subscription_without_a_consumer_is_no_trouble(
    page: Page, rest: Rest, client: pulsar.Client
) -> None:
    def use() -> Any:
        client.subscribe("orders", "idle").close()
        producer = client.create_producer("orders", producer_name="busy")
        for _ in range(20):
            producer.send(b"one")
        return producer

    producer = await in_thread(use)

    def look() -> None:
        page.open("topics/public/default")
        page.see("no consumer")
        assert page.driver.execute_script("return document.querySelectorAll('.pill.warn').length") == 0
        page.click("orders")
        page.see("busy", "Largest backlog")
        page.see("Needs attention", gone=True)
        for _ in range(20):
            producer.send(b"one more")
        page.wait_for(
            "/\\d\\/s/.test(document.querySelector('[aria-label=Producers] td.num').textContent)",
            "the producer has no rate",
        )
        page.click("Subscriptions")
        page.see("idle", "no consumer")
        page.open("topics")
        page.see("public/default", "40")
        page.open("connections")
        page.see("Pulsar-CPP", "orders")
        page.click("Close")
        page.answer("Close")

    await in_thread(look)


async def test_permissions_and_roles_are_forms(page: Page, rest: Rest) -> None:
    def work() -> None:
        page.open("topics/public/default/permissions")
        page.see("No permissions are granted")
        page.click("Grant")
        page.click("Grant", "dialog")
        page.answer("Grant", Role="app-*", produce="yes")
        page.see("app-*", "produce")
        page.click_in_row("app-*", "Change")
        page.answer("Grant", produce="no", consume="yes")
        page.see("consume")
        page.click_in_row("app-*", "Revoke")
        page.answer("Revoke")
        page.see("No permissions are granted")
        page.open("tenants")
        page.see("public")
        page.click_in_row("public", "Edit")
        page.answer("Save")
        page.click("New tenant")
        page.answer("Create", Name="shop")
        page.see("shop")
        page.click_in_row("shop", "Delete")
        page.answer("Delete", Type="shop")
        page.see("shop", gone=True)

    await in_thread(work)


async def test_a_topic_is_found_in_all_namespaces(page: Page, rest: Rest) -> None:
    await rest.put("/admin/v2/namespaces/public/other")
    for name in ("default/payments", "other/payments-eu", "other/sensors"):
        await rest.put(f"/admin/v2/persistent/public/{name}", {})

    def look() -> None:
        page.open("cluster")
        page.see("Brokers", "Traffic")
        page.keys("/")
        page.keys("sens")
        page.wait_for("document.querySelector('#go-topics option')", "nothing is offered")
        page.keys("\ue007")
        page.see("sensors", "Unload")
        page.keys("/")
        page.keys("pay", "\ue007")
        page.see("public/default/payments", "public/other/payments-eu")
        page.click("public/other/payments-eu")
        page.see("payments-eu", "Unload")
        page.keys("/")
        page.keys("nowhere", "\ue007")
        page.see("No persistent topic")

    await in_thread(look)


async def test_a_schema_is_added_and_deleted(page: Page, rest: Rest) -> None:
    await rest.put(TOPIC, {})
    where = "/admin/v2/schemas/public/default/orders/schema"

    def add() -> None:
        page.open(f"{NAME}/schemas")
        page.see("The topic has no schema")
        page.click("New version")
        page.answer("Add", Type="STRING")
        page.see("Version 0")

    await in_thread(add)
    assert (await rest.get(where)).body["type"] == "STRING"

    def delete() -> None:
        page.click("Delete", "div[@class='inside']")
        page.answer("Delete", Type="delete")
        page.see("The topic has no schema")

    await in_thread(delete)
    assert (await rest.get(where)).status == 404


async def test_the_archive_and_the_bookies_are_worked_on_by_hand(
    page: Page, rest: Rest, client: pulsar.Client
) -> None:
    _used = await in_thread(lambda: use(client))

    def work() -> None:
        page.open("archive")
        page.see("Segments of all topics")
        page.click("Archive now")
        page.fill("Seal and archive", "yes")
        page.answer("Archive")
        page.see("1 segment archived, 0 failed")
        page.click("Verify")
        page.answer("Verify")
        page.see("0 objects damaged")
        page.click("Repair")
        page.answer("Repair")
        page.see("0 segments repaired")
        page.click("Cluster")
        page.see("Bookies")

    await in_thread(work)


async def test_a_bookie_is_decommissioned_and_kept(page: Page, rest: Rest, house: BrokerHouse) -> None:
    cluster = house.cluster
    for each in cluster.bookies:
        record = replace(each.record(), address=f"host-{each.bookie.uuid[-1]}:3181", total_bytes=1 << 40)
        cluster.directory.join(record, each)
        await cluster.store.create(paths.bookie(record.uuid), encode(record))
    bookie = "host-0:3181"

    def work() -> None:
        page.open("cluster")
        page.see(bookie)
        page.click_in_row(bookie, "Decommission")
        page.answer("Decommission")
        page.see("draining")
        page.click_in_row(bookie, "Keep")
        page.answer("Keep")
        page.see("draining", gone=True)

    await in_thread(work)
    uuid = cluster.bookies[0].bookie.uuid
    cluster.directory.leave(uuid)

    def give_up() -> None:
        page.see("absent")
        page.click_in_row(bookie, "Recover")
        page.answer("Recover")
        page.see("given up")

    await in_thread(give_up)
    said = decode(BookieRecord, (await cluster.store.get(paths.bookie(uuid))).value, bookie)
    assert said.intent is BookieIntent.GIVE_UP


async def test_tenants_and_namespaces_are_made_and_deleted(page: Page, rest: Rest) -> None:
    def work() -> None:
        page.open("topics")
        page.click("New tenant")
        page.answer("Create", Name="shop")
        page.click("New namespace")
        page.answer("Create", Tenant="shop", Name="orders")
        page.see("shop/orders")
        page.click_in_row("shop/orders", "Delete")
        page.fill("Type", "shop/other")
        assert page.driver.execute_script("return document.querySelector('dialog [type=submit]').disabled")
        page.answer("Delete", Type="shop/orders")
        page.see("shop/orders", gone=True)

    await in_thread(work)
    assert (await rest.get("/admin/v2/namespaces/shop")).body == []


async def test_what_a_namespace_prescribes_is_set_and_removed(page: Page, rest: Rest) -> None:
    where = "/admin/v2/namespaces/public/default/messageTTL"

    def prescribe() -> None:
        page.expected = ("412 (Precondition Failed)",)
        page.open("topics/public/default")
        page.click("Policies")
        page.see("messageTTL", "broker")
        page.click_in_row("messageTTL", "Set")
        page.fill("Expire after", "-5")
        page.click("Set", "dialog")
        page.see("a number of seconds")
        page.answer("Set", Expire_after="60")
        page.see("this namespace", "1 min")
        page.click_in_row("backlogQuota destination_storage", "Set")
        page.answer("Set", Backlog_size="1000000", Action_when="consumer_backlog_eviction")
        page.see("1 MB", "consumer_backlog_eviction")
        page.click_in_row("retention", "Set")
        page.answer("Set", Retention_time="90", Retention_size="-1")
        page.see("1 h 30 min", "no limit")

    await in_thread(prescribe)
    assert (await rest.get(where)).body == 60
    quotas = (await rest.get("/admin/v2/namespaces/public/default/backlogQuotaMap")).body
    assert quotas["destination_storage"]["limitSize"] == 1_000_000
    retention = (await rest.get("/admin/v2/namespaces/public/default/retention")).body
    assert retention["retentionTimeInMinutes"] == 90 and retention["retentionSizeInMB"] == -1

    def remove() -> None:
        for policy in ("messageTTL", "backlogQuota destination_storage", "retention"):
            page.click_in_row(policy, "Remove")
            page.answer("Remove")
        page.see("this namespace", gone=True)
        page.click("Topics", "main")
        page.see("There are no topics yet")

    await in_thread(remove)
    assert (await rest.get(where)).status == 204


async def test_the_policy_stops_what_a_page_must_not_do(page: Page) -> None:
    def attempt() -> None:
        page.expected = ("Content Security Policy", "TrustedHTML", "violates the following")
        page.open("cluster")
        page.see("Brokers")
        for script in (
            "const one = document.createElement('script'); one.textContent = 'window.taken = 1';"
            " document.head.append(one)",
            "document.body.insertAdjacentHTML('beforeend', '<p>taken</p>')",
            "const one = document.createElement('div'); one.setAttribute('onclick', 'window.taken = 1');"
            " document.body.append(one); one.click()",
            "document.body.innerHTML = '<p>taken</p>'",
        ):
            page.driver.execute_script(f"try {{ {script} }} catch (error) {{}}")
        elsewhere = "return fetch('http://127.0.0.2:1/').then(() => 'asked', () => 'refused')"
        assert page.driver.execute_script(elsewhere) == "refused"
        assert page.driver.execute_script("return window.taken") is None
        assert "taken" not in page.text()
        assert any("Content Security Policy" in one["message"] for one in page.driver.get_log("browser"))

    assert "connect-src 'self'" in POLICY
    await in_thread(attempt)


LONG = "a-name-without-an-end-" * 10
PLACES = {
    "cluster": "Traffic",
    "topics": "public/default",
    "topics/public/default": LONG[:30],
    "topics/public/default/permissions": LONG[:30],
    "topics/public/default/policies": "backlogQuota message_age",
    f"topic/persistent/public/default/{LONG}": "Producers",
    f"{NAME}/segments": "Spark read plan",
    f"{NAME}/subscriptions": "No consumer",
    f"{NAME}/messages": LONG[:30],
    f"{NAME}/messages?key=nothing": "0 messages found",
    f"{NAME}/schemas": "Definition",
    f"{NAME}/permissions": LONG[:30],
    f"{NAME}/policies": "retention",
    "schemas": "orders",
    "connections": "No clients are connected",
    "archive": "Segments of all topics",
    "tenants": "public",
    "find?contains=a-name": LONG[:30],
}


async def test_it_is_used_by_keyboard_and_on_a_phone(page: Page, rest: Rest) -> None:
    await rest.put(TOPIC, {})
    await rest.put(f"/admin/v2/persistent/public/default/{LONG}", {})
    await rest.put(f"{TOPIC}/subscription/{LONG}")
    await rest.post(f"/admin/v2/namespaces/public/default/permissions/{LONG}", ["produce"])
    message = {"value": LONG, "key": LONG, "properties": {LONG: LONG}}
    await rest.post("/quire/v1/topics/persistent/public/default/orders/messages", message)
    definition = {"type": "record", "name": "A", "fields": [{"name": "a" * 200, "type": "int"}]}
    schema = {"type": "JSON", "schema": json.dumps(definition)}
    await rest.post("/admin/v2/schemas/public/default/orders/schema", schema)

    def look() -> None:
        page.open("cluster")
        page.see("Brokers")
        page.keys("/")
        page.keys("orders", "\ue007")  # Enter
        page.see("orders", "Unload")
        for width in (390, 1280):
            page.driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": width < 500},
            )
            for theme in ("light", "dark"):
                page.driver.execute_script(f"localStorage.setItem('quire.theme', '{theme}')")
                page.open("cluster")
                page.see("Brokers")
                for place, text in PLACES.items():
                    page.driver.execute_script(f"location.hash = {json.dumps('#/' + place)}")
                    page.see(text)
                    wide = page.driver.execute_script("return document.documentElement.scrollWidth")
                    assert wide <= width, f"{place} is {wide} wide"
                    assert not page.faint(), f"{place} in {theme} has texts that cannot be read"
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    await in_thread(look)


async def test_the_colours_are_the_systems_until_one_chooses(page: Page) -> None:
    def look() -> None:
        def back() -> str:
            return str(page.driver.execute_script("return getComputedStyle(document.body).backgroundColor"))

        page.open("cluster")
        page.see("Brokers")
        light = back()
        emulate = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", emulate)
        dark = back()
        assert dark != light
        page.click("◐")
        assert back() == light
        page.click("☀")
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        assert back() == dark
        page.open("topics")
        page.see("Namespaces")
        assert back() == dark, "it is remembered"

    await in_thread(look)


class TestSecured:
    @pytest.fixture
    async def broker(self, house: BrokerHouse, tmp_path: Path) -> Broker:
        house.security = security(tmp_path)
        broker = await house.start()
        reader = Policies(permissions={"reader": ("consume",)})
        await broker.namespaces.change("public", "default", lambda _: reader)
        await broker.registry.records.create(TopicName.parse("orders"))
        return broker

    async def test_who_is_asked_for_his_name_may_what_his_role_may(self, page: Page, broker: Broker) -> None:
        def look() -> None:
            page.expected = ("401 (Unauthorized)", "403 (Forbidden)")
            page.open("topics/public/default")
            page.see("Log in", "Token")
            page.fill("Token", "no token")
            page.click("Log in", "form")
            page.see("token")
            assert page.driver.execute_script("return sessionStorage.length") == 0
            page.fill("Token", token("reader"))
            page.click("Log in", "form")
            page.see("orders", "reader", "Log out")
            page.click("Cluster")
            page.see("Access denied", "only superusers may")
            page.click("Topics")
            page.see("public/default", "limited")
            page.click("public/default")
            page.click("orders")
            page.click("Unload")
            page.click("Unload", "dialog")
            page.see("reader may not administer")
            page.keys("\ue00c")
            page.click("Log out")
            page.see("Log in", "Token")
            assert page.driver.execute_script("return document.cookie") == ""
            page.fill("User", "admin")
            page.fill("Password", PASSWORD)
            page.click("Log in", "form")
            page.see("admin", "orders")
            page.click("Cluster")
            page.see("Brokers", "Bookies")

        await in_thread(look)
