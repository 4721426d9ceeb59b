"""The console in a real browser, at a real broker."""

from __future__ import annotations

import pulsar

from quire.serving.broker import Broker
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import in_thread
from tests.serving.console.browser import Page

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
        page.answer("Make it", Name="made here", Partitions="3")

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
        page.see("Not up to date", "no broker answers", "Brokers")
        page.driver.delete_network_conditions()
        page.see("Not up to date", gone=True)

    await in_thread(look)
