"""What Pulsar does not have: the archive, raw blocks for Spark, ledgers, metrics and health."""

from __future__ import annotations

import re
from itertools import pairwise

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire.serving.broker import Broker
from quire.wire import block
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import in_thread

NAME = "persistent://public/default/orders"
RAW = "/quire/v1/topics/persistent/public/default/orders"
DAY_MS = 24 * 3_600_000
METRIC = re.compile(
    r"quire_(build|serving|namespace|topic|subscription|tiering|metadata|ledger)_[a-z]+(_[a-z]+)*"
)


async def publish(client: pulsar.Client, count: int) -> list[pulsar.MessageId]:
    def work() -> list[pulsar.MessageId]:
        producer = client.create_producer(NAME)
        sent = [producer.send(b"%d" % i) for i in range(count)]
        producer.close()
        return sent

    return await in_thread(work)


async def test_sealed_segments_move_to_the_archive_and_are_verified(
    rest: Rest, client: pulsar.Client
) -> None:
    await publish(client, 3)
    before = (await rest.get("/quire/v1/archive/status")).body
    assert before["segments"]["active"]["segments"] == 1 and before["archived"] == 0
    report = (await rest.post("/quire/v1/archive/run?seal=true")).body
    assert report["archived"] == 1 and report["archived_bytes"] > 0 and report["errors"] == []
    after = (await rest.get("/quire/v1/archive/status")).body
    assert after["segments"]["archived"]["segments"] + after["segments"]["released"]["segments"] == 1
    assert after["archived"] == 1 and after["failing"] == []
    (ledger,) = [one for one in (await rest.get(f"{TOPIC}/internalStats")).body["ledgers"] if one["entries"]]
    assert ledger["offloaded"] and ledger["archive"]["bytes"] > 0
    assert (await rest.get(f"{TOPIC}/stats")).body["offloadedStorageSize"] == ledger["size"]
    verified = (await rest.post("/quire/v1/archive/verify")).body
    assert verified["damaged"] == [] and verified["orphans"] == []


async def test_segments_and_blocks_hold_what_was_published(rest: Rest, client: pulsar.Client) -> None:
    sent = await publish(client, 3)
    plan = (await rest.get(f"{RAW}/segments")).body
    assert plan["end"] == {"ledger": sent[-1].ledger_id(), "entry": 2} and plan["partitions"] == 0
    (segment,) = plan["segments"]
    assert segment["messages"] == 3 and segment["last_entry"] == 2 and segment["first_index"] == 0
    assert plan["generation"] > 0 and {"publish_min_ms", "publish_max_ms"} <= segment.keys()
    assert "end_entry" not in segment
    published_ms = segment["first_clock_ms"]
    for query, expected in (
        ("start_ms=1", (0, 3)),
        (f"start_ms={published_ms + DAY_MS}", (3, 3)),
        (f"end_ms={published_ms - DAY_MS}", (0, 0)),
        (f"start_ms={published_ms - DAY_MS}&end_ms={published_ms + DAY_MS}", (0, 3)),
    ):
        (found,) = (await rest.get(f"{RAW}/segments?{query}")).body["segments"]
        assert (found["first_entry"], found["end_entry"]) == expected
    url = f"{rest.url}{RAW}/blocks?ledger={segment['ledger_id']}&entry=1&bytes=1000000"
    async with rest.session.get(url) as answer:
        assert answer.content_type == "application/octet-stream"
        raw = await answer.read()
    header = block.read_header(raw)
    assert header.ledger_id == segment["ledger_id"] and header.first_entry <= 1 <= header.last_entry


async def test_segments_of_a_partitioned_topic_say_so(rest: Rest) -> None:
    await rest.put(f"{TOPIC}/partitions", 2)
    assert (await rest.get(f"{RAW}/segments")).body["partitions"] == 2


@pytest.mark.parametrize(
    "query", ["", "?ledger=1", "?ledger=x&entry=0", "?ledger=1&entry=-1", "?ledger=1&entry=0&bytes=y"]
)
async def test_blocks_need_a_position(rest: Rest, query: str) -> None:
    await rest.put(TOPIC)
    assert (await rest.get(f"{RAW}/blocks{query}")).status == 400


async def test_blocks_of_a_trimmed_segment_or_an_unknown_topic_are_not_found(
    rest: Rest, client: pulsar.Client
) -> None:
    assert (await rest.get(f"{RAW}/segments")).status == 404
    assert (await rest.get(f"{RAW}/blocks?ledger=1&entry=0")).status == 404
    sent = await publish(client, 1)
    assert (await rest.get(f"{RAW}/blocks?ledger={sent[0].ledger_id() - 1}&entry=0")).status == 404


async def test_a_ledger_is_recovered_by_hand(rest: Rest, client: pulsar.Client) -> None:
    sent = await publish(client, 2)
    ledger = sent[0].ledger_id()
    await rest.put(f"{TOPIC}/unload")
    answer = await rest.post(f"/quire/v1/ledgers/{ledger}/recover")
    assert answer.body["ledgerId"] == ledger and answer.body["lastEntry"] == 1
    assert (await rest.post("/quire/v1/ledgers/999999/recover")).status == 404
    assert (await rest.post("/quire/v1/ledgers/first/recover")).status == 400


async def counters(rest: Rest) -> dict[str, float]:
    """The counters of /metrics, by name."""
    text = (await rest.get("/metrics")).body
    families = text_string_to_metric_families(text)
    return {one.name: one.samples[0].value for one in families if one.type == "counter" and one.samples}


async def test_metrics_are_prometheus_text_with_our_names(rest: Rest, client: pulsar.Client) -> None:
    await publish(client, 2)
    async with rest.session.get(f"{rest.url}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        families = list(text_string_to_metric_families(await answer.text()))
    ours = [one for one in families if not one.name.startswith("process_")]
    assert len(ours) > 5 and all(METRIC.fullmatch(one.name) for one in ours)
    by_name = {one.name: one for one in ours}
    assert by_name["quire_serving_messages_in"].type == "counter"
    assert by_name["quire_serving_messages_in"].samples[0].name == "quire_serving_messages_in_total"
    assert by_name["quire_serving_messages_in"].samples[0].value == 2
    assert by_name["quire_serving_topics_loaded"].type == "gauge"


async def test_counters_never_fall(rest: Rest, broker: Broker) -> None:
    """Neither when a session closes nor when a topic is unloaded or deleted."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, logger=quiet)
    await publish(client, 5)
    seen = [await counters(rest)]
    await in_thread(client.close)
    seen.append(await counters(rest))
    await rest.put(f"{TOPIC}/unload")
    seen.append(await counters(rest))
    await rest.delete(TOPIC)
    seen.append(await counters(rest))
    assert seen[0]["quire_serving_messages_in"] == 5
    assert seen[0]["quire_serving_fast_sends"] + seen[0]["quire_serving_slow_sends"] == 5
    begin_anew = ("quire_topic_", "quire_subscription_")
    ours = [name for name in seen[0] if name.startswith("quire_") and not name.startswith(begin_anew)]
    for before, after in pairwise(seen):
        assert all(after[name] >= before[name] for name in ours)


async def test_health_says_whether_it_lives_and_whether_it_is_ready(rest: Rest, broker: Broker) -> None:
    assert (await rest.get("/health/live")).body == {"live": True}
    for path in ("/health", "/health/ready"):
        assert (await rest.get(path)).body == {"ready": True, "reasons": []}
    broker.registry.is_stopping = True
    answer = await rest.get("/health/ready")
    assert answer.status == 503 and answer.body["reasons"] == ["the broker is stopping"]
    assert (await rest.get("/admin/v2/brokers/health")).status == 503
    assert (await rest.get("/health/live")).status == 200
    broker.registry.is_stopping = False
