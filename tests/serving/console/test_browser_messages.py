"""Messages in a real browser: publishing, search, pages, the live tail and downloads."""

from __future__ import annotations

import json
from pathlib import Path

from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import in_thread
from tests.serving.console.browser import EVIL, NAME, Page


async def test_a_message_is_published_found_and_followed(page: Page, rest: Rest) -> None:
    await rest.put(TOPIC, {})

    def work() -> None:
        page.open(f"{NAME}/messages")
        page.see("There are no messages at this position")
        page.click("Publish")
        page.fill("Format", "JSON")
        page.fill("Value", "{")
        page.click("Publish", "dialog")
        page.see("The value is not valid JSON")
        page.answer("Publish", Value=f'{{"what": "{EVIL[:8]}"}}', Key=EVIL, Properties=f"{EVIL}\n")
        page.see("is stored", EVIL[:8], "key")
        page.click("Live")
        page.see("New messages appear here")
        for number in range(3):
            page.click("Publish")
            page.answer("Publish", Value=f"number {number}")
            page.see(f"number {number}")
        page.click("Live")
        page.click("Search and download")
        page.fill("Key", EVIL)
        page.click("Search", "main")
        page.see("1 message found", '"what"')
        page.see("number 1", gone=True)
        page.fill("Key", "")
        page.fill("Value contains", "number")
        page.click("Search", "main")
        page.see("3 messages found")
        page.fill("Published from", "yesterday")
        page.click("Search", "main")
        page.wait_for("document.querySelector('input:invalid')", "the time is accepted")
        page.fill("Published from", "2026-01-01 10:00")
        page.fill("Number of messages", "2")
        page.click("Show")
        page.see("number 2", "number 1")
        page.see("number 0", gone=True)
        page.click("Older")
        page.see("number 0", '"what"')
        page.click("Newer")
        page.see("number 2")
        assert page.driver.title == "Quire"

    await in_thread(work)
    looks = (await rest.get("/quire/v1/topics/persistent/public/default/orders/messages")).body
    assert looks[0]["key"] == EVIL and looks[0]["properties"] == dict([EVIL.split("=", 1)])
    assert [one["text"] for one in looks[1:]] == ["number 0", "number 1", "number 2"]


async def test_a_search_is_saved_as_lines_of_json(page: Page, rest: Rest, tmp_path: Path) -> None:
    await rest.put(TOPIC, {})
    where = "/quire/v1/topics/persistent/public/default/orders/messages"
    for value in ("x" * 10_000, '{"n": 12345678901234567890, "<b>": 1}', EVIL):
        await rest.post(where, {"value": value, "key": EVIL, "properties": {EVIL: EVIL}})

    def save() -> None:
        behaviour = {"behavior": "allow", "downloadPath": str(tmp_path)}
        page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
        page.open(f"{NAME}/messages")
        page.see(EVIL)
        page.click("Search and download")
        page.click("Download")
        page.see("3 messages saved")

    await in_thread(save)
    file = tmp_path / "orders.ndjson"
    await in_thread(lambda: page.wait(file.exists, "no file is saved"))
    lines = file.read_text().splitlines()
    assert "12345678901234567890" in lines[1], "a number keeps its digits"
    long, number, evil = map(json.loads, lines)
    assert long["value"] == "x" * 10_000 and number["value"]["<b>"] == 1 and evil["value"] == EVIL
    assert evil["key"] == EVIL and evil["properties"] == {EVIL: EVIL}


async def test_a_value_is_checked_by_the_topics_schema(page: Page, rest: Rest) -> None:
    await rest.put(TOPIC, {})
    where = "/admin/v2/schemas/public/default/orders/schema"
    fields = [{"name": "number", "type": "int"}]
    for more in ([], [{"name": EVIL[:12], "type": ["null", "string"], "default": None}]):
        definition = {"type": "record", "name": "Order", "fields": [*fields, *more]}
        await rest.post(where, {"type": "JSON", "schema": json.dumps(definition)})

    def work() -> None:
        page.expected = ("400 (Bad Request)",)
        page.open("schemas")
        page.see("1 topic", "public/default/orders", "JSON")
        page.click("public/default/orders")
        page.see("Changes since version 0", EVIL[:12], "Version 1")
        page.click("Publish")
        page.see("JSON, version 1")
        example = "document.querySelector('dialog textarea').value"
        page.wait_for(f"{example}.includes('\"number\": 0')", "there is no example")
        page.fill("Value", '{"number": "one"}')
        page.click("Publish", "dialog")
        page.see("number must be a whole number of type int")
        page.answer("Publish", Value='{"number": 1}')
        page.see("is stored")
        page.click("Show it")
        page.see('"number": 1', "schema 1")

    await in_thread(work)
