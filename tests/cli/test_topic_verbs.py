"""`quire topics` against a real server: lists, single messages, properties, expiry and compaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from quire.cli import topic_storage
from quire.cli.output import FAILED, NOT_FOUND, WRONG_USE
from tests.cli.recording import Recording, recording
from tests.cli.running import Ran, Server, quire

TOPIC = "/admin/v2/persistent/public/default/t"


@pytest.fixture(autouse=True)
def address(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_ADMIN_URL", server.http_url)
    monkeypatch.setattr(topic_storage, "LOOK_S", 0.01)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """A broker in place of the server."""
    with recording() as broker:
        monkeypatch.setenv("QUIRE_ADMIN_URL", broker.url)
        broker.answers[f"GET {TOPIC}/partitions"] = {"partitions": 0}
        yield broker


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[pulsar.Client]:
    made = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


def publish(client: pulsar.Client, topic: str, *payloads: bytes, **words: Any) -> list[str]:
    """Publish each message in an entry of its own, and return its id."""
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(payload, **words) for payload in payloads]
    producer.close()
    return [f"{one.ledger_id()}:{one.entry_id()}" for one in ids]


def backlog(topic: str, subscription: str) -> int:
    count: int = quire("subscriptions", "stats", topic, subscription, "--json").json["msgBacklog"]
    return count


def refused(ran: Ran, code: int, *words: str) -> None:
    assert ran.code == code and ran.err.startswith("quire: ") and ran.err.count("\n") == 1, ran
    assert all(word in ran.err for word in words), ran.err


def test_a_partitioned_topic_is_listed_once_with_its_number_of_partitions() -> None:
    quire("topics", "create", "listed", "--partitions", "2")
    quire("topics", "create", "listed-alone")
    lines = quire("topics", "list").out.splitlines()
    assert [line.split() for line in lines if "listed" in line] == [
        ["persistent://public/default/listed", "2", "partitions"],
        ["persistent://public/default/listed-alone"],
    ]
    rows = [row for row in quire("topics", "list", "--json").json if "listed" in row["topic"]]
    assert [row["partitions"] for row in rows] == [2, 0]
    each = [line for line in quire("topics", "list", "--partitions").out.splitlines() if "listed" in line]
    assert [line.rpartition("/")[2] for line in each] == [
        "listed-alone",
        "listed-partition-0",
        "listed-partition-1",
    ]
    assert set(each) <= set(quire("topics", "list", "--partitions", "--json").json)


def test_partitions_that_are_missing_are_created() -> None:
    quire("topics", "create", "unused", "--partitions", "2")
    assert quire("topics", "create-missed-partitions", "unused").out == "all partitions of unused exist\n"
    refused(quire("topics", "create-missed-partitions", "never-made"), NOT_FOUND, "never-made")


def test_a_name_with_white_space_is_created_with_a_warning() -> None:
    made = quire("topics", "create", "white space")
    assert made.code == 0 and "contains white space" in made.err
    assert "persistent://public/default/white space" in quire("topics", "list").out.splitlines()
    assert quire("topics", "delete", "white space").code == 0


def test_properties_are_set_listed_and_removed() -> None:
    quire("topics", "create", "described")
    said = quire("topics", "properties", "set", "described", "team=billing", "tier=a=b").out
    assert said == "set team, tier of described\n"
    assert quire("topics", "properties", "list", "described", "--json").json == {
        "team": "billing",
        "tier": "a=b",
    }
    assert quire("topics", "properties", "remove", "described", "tier").code == 0
    assert quire("topics", "properties", "list", "described").out.split() == ["team", "billing"]
    refused(quire("topics", "properties", "remove", "described", "tier"), NOT_FOUND, "no property 'tier'")
    refused(quire("topics", "properties", "set", "described", "team"), WRONG_USE, "NAME=VALUE")
    refused(quire("topics", "properties", "list", "never-made"), NOT_FOUND, "never-made")


def test_single_messages_are_shown_by_position_and_by_id(client: pulsar.Client) -> None:
    ids = publish(client, "read", b"one", b"\xff", partition_key="färbe", properties={"colour": "rot"})
    first = quire("topics", "examine", "read", "--first", "1")
    rows = dict(line.split(maxsplit=1) for line in first.out.splitlines() if not line.startswith("property"))
    assert (rows["id"], rows["key"], rows["payload"]) == (ids[0], "färbe", "one")
    assert "property colour  rot" in first.out
    (last,) = quire("topics", "examine", "read", "--json").json
    assert (last["id"], last["payload_base64"], last["properties"]) == (ids[1], "/w==", {"colour": "rot"})
    assert quire("topics", "message", "read", ids[0], "--json").json[0]["payload"] == "one"
    assert quire("topics", "message", "read", f"{ids[0]}:-1:-1", "--json").json[0]["payload"] == "one"
    publish(client, "letters", b"", partition_key="ключ")
    assert quire("topics", "examine", "letters", "--json").json[0]["key"] == "ключ"
    assert quire("topics", "last-message-id", "read").out == f"{ids[1]}\n"
    assert quire("topics", "last-message-id", "read", "--json").json["entryId"] == 1
    refused(quire("topics", "examine", "read", "--last", "3"), NOT_FOUND, "fewer entries")
    refused(quire("topics", "examine", "read", "--first", "1", "--last", "1"), WRONG_USE, "either")
    refused(quire("topics", "message", "read", "17"), WRONG_USE, "LEDGER:ENTRY")
    refused(quire("topics", "message", "read", f"{ids[0].partition(':')[0]}:99"), NOT_FOUND, "99")
    refused(quire("topics", "message", "read", f"{ids[0]}:1"), NOT_FOUND, "messages 0 to 0")


def test_a_message_of_a_batch_in_a_partition(client: pulsar.Client) -> None:
    quire("topics", "create", "batches", "--partitions", "2")
    assert quire("topics", "last-message-id", "batches").out.split() == [
        *("batches-partition-0", "no", "message"),
        *("batches-partition-1", "no", "message"),
    ]
    producer = client.create_producer(
        "persistent://public/default/batches-partition-1",
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
    )
    for number in range(3):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number}")
    producer.flush()
    producer.close()
    found = quire("topics", "last-message-id", "batches", "--json").json
    assert found["batches-partition-0"] is None or found["batches-partition-0"]["entryId"] < 0
    ledger, entry = (found["batches-partition-1"][name] for name in ("ledgerId", "entryId"))
    every = quire("topics", "message", "batches-partition-1", f"{ledger}:{entry}", "--json").json
    assert [(one["payload"], one["key"]) for one in every] == [("0", "k0"), ("1", "k1"), ("2", "k2")]
    (one,) = quire("topics", "message", "batches", f"{ledger}:{entry}:1:2", "--json").json
    assert (one["payload"], one["id"]) == ("2", f"{ledger}:{entry}:2")
    (one,) = quire("topics", "message", "batches-partition-1", f"{ledger}:{entry}:1", "--json").json
    assert one["payload"] == "1"
    refused(
        quire("topics", "message", "batches-partition-1", f"{ledger}:{entry}:3"), NOT_FOUND, "messages 0 to 2"
    )
    refused(quire("topics", "examine", "batches"), WRONG_USE, "partition")


def test_the_bytes_after_a_message(client: pulsar.Client) -> None:
    ids = publish(client, "sized", b"x" * 1000, b"x" * 1000)
    whole = quire("topics", "backlog-size", "sized", "earliest", "--json").json["bytes"]
    after = quire("topics", "backlog-size", "sized", ids[0], "--json").json["bytes"]
    assert whole > after >= 1000
    assert quire("topics", "backlog-size", "sized", ids[1]).out == "0 bytes (0 B)\n"


def test_old_messages_expire_for_one_subscription_or_for_all(client: pulsar.Client) -> None:
    for name in ("a", "b"):
        client.subscribe("aging", name).close()
    publish(client, "aging", b"1", b"2")
    expire = ("topics", "expire", "aging")
    assert quire(*expire, "--older-than", "7d", "--all-subscriptions").code == 0
    assert (backlog("aging", "a"), backlog("aging", "b")) == (2, 2)
    for wrong in ("3600", "-5s", "soon"):
        refused(
            quire(*expire, "--older-than", wrong, "--all-subscriptions"),
            WRONG_USE,
            "15m" if wrong != "soon" else "7d",
        )
    refused(quire(*expire, "--older-than", "1s"), WRONG_USE, "--all-subscriptions")
    refused(quire(*expire, "--older-than", "1s", "--subscription", "c"), NOT_FOUND, "no subscription c")
    assert quire(*expire, "--older-than", "0s", "--subscription", "a").code == 0
    assert (backlog("aging", "a"), backlog("aging", "b")) == (0, 2)
    assert quire(*expire, "--older-than", "0s", "--all-subscriptions").code == 0
    assert backlog("aging", "b") == 0


def test_a_compaction_is_started_and_waited_for(client: pulsar.Client) -> None:
    publish(client, "compacted", b"old", b"new", partition_key="k")
    assert quire("topics", "compaction-status", "compacted").out == (
        "compaction of compacted has not run since the topic was loaded\n"
    )
    assert "compaction-status" in quire("topics", "compact", "compacted").out
    waited = quire("topics", "compaction-status", "compacted", "--wait")
    assert waited.out == "compaction of compacted has succeeded\n"
    refused(quire("topics", "compact", "never-made"), NOT_FOUND, "never-made")


def test_a_failed_compaction_is_exit_code_1(recorded: Recording) -> None:
    running, failed = {"status": "RUNNING", "lastError": ""}, {"status": "ERROR", "lastError": "no bookie"}
    recorded.answers[f"GET {TOPIC}/compaction"] = [running, running, failed]
    assert quire("topics", "compaction-status", "t").out == "compaction of t is running\n"
    refused(quire("topics", "compaction-status", "t", "--wait"), FAILED, "compaction of t failed: no bookie")


@pytest.mark.parametrize(
    ("threshold", "ledger"), [("0", 3), ("9", 3), ("10", 3), ("29", 3), ("30", 2), ("59", 2), ("60", None)]
)
def test_an_offload_leaves_the_newest_messages(
    recorded: Recording, threshold: str, ledger: int | None
) -> None:
    """As Pulsar's tool: segments are left as long as they are not larger together than the threshold."""
    ledgers = [{"ledgerId": number, "size": size} for number, size in ((1, 30), (2, 20), (3, 10))]
    recorded.answers[f"GET {TOPIC}/internalStats"] = {"ledgers": ledgers}
    ran = quire("topics", "offload", "t", "--size-threshold", threshold)
    before = {"ledgerId": ledger, "entryId": 0, "partitionIndex": -1}
    assert recorded.changes() == ([] if ledger is None else [("PUT", f"{TOPIC}/offload", before)])
    assert ran.code == 0 and ("nothing to archive" in ran.out) == (ledger is None)


def test_an_offload_without_a_threshold_takes_all_sealed_segments(recorded: Recording) -> None:
    assert "offload-status t --wait" in quire("topics", "offload", "t").out
    assert recorded.changes() == [("PUT", f"{TOPIC}/offload", "latest")]


def test_trim_and_truncate_and_the_state_of_an_offload(recorded: Recording) -> None:
    assert quire("topics", "trim", "t").out == "trimmed t\n"
    assert quire("topics", "truncate", "t").out == "truncated t\n"
    assert recorded.changes() == [("POST", f"{TOPIC}/trim", None), ("DELETE", f"{TOPIC}/truncate", None)]
    recorded.answers[f"GET {TOPIC}/offload"] = {"status": "SUCCESS", "lastError": ""}
    assert quire("topics", "offload-status", "t", "--wait").out == "offload of t has succeeded\n"


def test_a_backlog_is_counted_by_reading_it(recorded: Recording) -> None:
    path = f"POST {TOPIC}/subscription/s/analyzeBacklog"
    recorded.answers[path] = {"entries": 2, "messages": 5, "aborted": False, "firstMessageId": "1:0"}
    assert quire("subscriptions", "analyze-backlog", "t", "s").out.split() == [
        "entries",
        "2",
        "messages",
        "5",
    ]
    recorded.answers[path]["aborted"] = True
    assert "only the beginning" in quire("subscriptions", "analyze-backlog", "t", "s").err


def test_a_subscription_does_not_create_a_mistyped_topic() -> None:
    refused(
        quire("subscriptions", "create", "mistypd", "s"),
        NOT_FOUND,
        "mistypd does not exist; use --create-topic",
    )
    assert "mistypd" not in quire("topics", "list").out
    assert quire("subscriptions", "create", "mistypd", "s", "--create-topic").code == 0
    assert quire("subscriptions", "list", "mistypd").out == "s\n"


def test_nothing_to_peek_and_the_time_of_a_seek() -> None:
    quire("subscriptions", "create", "quiet", "s", "--create-topic")
    assert quire("subscriptions", "peek", "quiet", "s") == Ran(
        0, "", "s of quiet has no unacknowledged messages\n"
    )
    assert quire("subscriptions", "peek", "quiet", "s", "--json").json == []
    said = quire("subscriptions", "seek", "quiet", "s", "--to", "2026-01-31T12:00:00+01:00").out
    assert said == "s of quiet reads from the first message of 2026-01-31 11:00:00Z or later\n"
    assert "Z or later" in quire("subscriptions", "seek", "quiet", "s", "--to", "1h").out
    refused(quire("subscriptions", "seek", "quiet", "s", "--to", "5"), WRONG_USE, "15m")
    refused(quire("consume", "quiet", "--from", "5"), WRONG_USE, "earliest, latest", "15m")
