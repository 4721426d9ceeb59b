"""`quire bench` against a real server: figures, percentiles, Ctrl-C, topics that are deleted, and errors."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from quire.cli.bench_report import _rows
from quire.perf.histogram import LatencyHistogram
from tests.cli.running import Ran, Server, quire
from tests.cli.test_progress import Terminal

SMALL = ("--warm-up", "0s", "--size", "100B", "--json")


def bench(server: Server, *words: str) -> Ran:
    return quire("bench", *words, *connection(server))


def connection(server: Server) -> Sequence[str]:
    return "--service-url", server.service_url, "--admin-url", server.http_url


def topics(server: Server) -> list[str]:
    """The topics that benchmarks left."""
    found = quire("topics", "list", "--admin-url", server.http_url, "--json").json
    return [row["topic"] for row in found if "quire-bench" in row["topic"]]


def assert_is_whole(section: dict[str, Any], messages: int, size: int = 100) -> None:
    """The figures of a section agree with each other."""
    assert (section["messages"], section["bytes"], section["failed"]) == (messages, messages * size, 0)
    assert section["seconds"] > 0
    assert section["messages_per_second"] == pytest.approx(messages / section["seconds"], rel=0.01)
    if "latency_ms" in section:
        latency = section["latency_ms"]
        names = ["min", "p50", "p95", "p99", "p99.9", "max"]
        assert [latency[name] for name in names] == sorted(latency[name] for name in names)
        assert latency["min"] <= latency["mean"] <= latency["max"]
        assert sum(count for _, count in section["histogram"]) == messages
        assert latency["max"] <= section["histogram"][-1][0]


def test_produce_over_processes_topics_and_partitions(server: Server) -> None:
    spread = ("--processes", "2", "--topics", "2", "--partitions", "2", "--producers", "2")
    found = bench(server, "produce", "--messages", "2001", *spread, *SMALL).json
    assert found["benchmark"] == "produce" and "consume" not in found
    assert_is_whole(found["publish"], 2001)
    assert "latency_ms" in found["publish"] and len(found["client_cores"]) == 2
    assert found["options"]["producers_per_topic"] == 2 and not found["interrupted"]
    assert found["topics_kept"] == [] and topics(server) == []


def test_end_to_end_by_shared_consumers_and_two_subscriptions(server: Server) -> None:
    words = ("--rate", "2000", "--messages", "600", "--subscriptions", "2", "--consumers", "2")
    found = bench(server, "end-to-end", *words, "--payload", "text", "--compression", "zstd", *SMALL).json
    assert_is_whole(found["publish"], 600)
    assert_is_whole(found["consume"], 1200)
    assert found["consume"]["latency_ms"]["min"] > 0 and topics(server) == []
    assert found["publish"]["seconds"] > 0.29, "the schedule takes 0.3 s"


def test_a_warm_up_is_not_counted(server: Server) -> None:
    words = ("--rate", "1000", "--duration", "300ms", "--warm-up", "300ms", "--size", "20B", "--json")
    found = bench(server, "end-to-end", *words)
    assert_is_whole(found.json["publish"], 300, 20)
    assert_is_whole(found.json["consume"], 300, 20)
    assert "The first 0.3 s were the warm-up, which is not counted." in found.err


def test_consume_reads_a_backlog_that_it_publishes(server: Server) -> None:
    found = bench(server, "consume", "--messages", "3000", "--topics", "2", "--processes", "2", *SMALL)
    assert_is_whole(found.json["consume"], 3000)
    assert "latency_ms" not in found.json["consume"] and topics(server) == []


def test_topics_that_are_given_are_kept_and_get_no_subscription(server: Server) -> None:
    assert quire("topics", "create", "mine", "--admin-url", server.http_url).code == 0
    published = bench(server, "produce", "mine", "--messages", "500", *SMALL)
    assert_is_whole(published.json["publish"], 500)
    assert_is_whole(bench(server, "consume", "mine", *SMALL).json["consume"], 500)
    stats = quire("topics", "stats", "mine", "--json", "--admin-url", server.http_url).json
    assert stats["msgInCounter"] == 500 and stats["subscriptions"] == {}
    for what in ("consume", "produce"):
        missing = bench(server, what, "not-there", *SMALL)
        assert missing.code == 3 and missing.err.count("\n") == 1 and "not-there" in missing.err
    assert quire("topics", "stats", "not-there", "--admin-url", server.http_url).code == 3


def test_latency_of_one_message_at_a_time(server: Server) -> None:
    found = bench(server, "latency", "--messages", "50", *SMALL).json
    assert_is_whole(found["publish"], 50)
    assert_is_whole(found["consume"], 50)
    assert topics(server) == []


def test_topics_are_opened_and_kept_if_asked(server: Server) -> None:
    found = bench(server, "topics", "--topics", "30", "--keep", "--size", "10B", "--json").json
    assert_is_whole(found["open"], 30, 0)
    assert_is_whole(found["publish"], 30, 10)
    assert sorted(found["topics_kept"]) == topics(server) and len(topics(server)) == 30
    for name in topics(server):
        quire("topics", "delete", name, "--force", "--admin-url", server.http_url)


def test_ctrl_c_ends_with_the_report_of_what_was_done(server: Server) -> None:
    terminal = Terminal(
        "bench",
        "produce",
        "--duration",
        "1h",
        "--json",
        "--warm-up",
        "0s",
        "--rate",
        "500",
        *connection(server),
    )
    terminal.read_until(r"published [1-9][\d,]*/s, p99 [\d.]+ ms")
    terminal.process.send_signal(signal.SIGINT)
    code, out = terminal.end()
    found = json.loads(out)
    assert code == 130 and found["interrupted"] and found["topics_kept"] == []
    assert_is_whole(found["publish"], found["publish"]["messages"], 1024)
    assert topics(server) == [] and "Traceback" not in terminal.shown


def test_the_report_for_people(server: Server) -> None:
    found = bench(server, "end-to-end", "--messages", "400", "--warm-up", "0s")
    assert found.code == 0, found.err
    assert found.out.startswith(
        "end-to-end: 1 topic, payloads of 1.00 KiB, batches\npublished 400 messages in"
    )
    assert "consumed 400 messages in" in found.out
    assert "p99.9" in found.out and "publish to receipt, by latency" in found.out and "100" in found.out
    assert "set --rate below the measured rate" in found.err


def test_rows_of_the_histogram_begin_at_the_first_latency() -> None:
    made = LatencyHistogram()
    for ms in (3, 3, 4, 30):
        made.record(ms * 1_000_000)
    assert _rows(made) == [(5_000_000, 3), (10_000_000, 0), (20_000_000, 0), (50_000_000, 1)]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["produce", "--service-url", "pulsar://127.0.0.1:1"], 4, "cannot connect"),
        (["end-to-end", "--service-url", "tcp://x"], 2, "is not a service URL"),
        (["produce", "--messages", "1", "--duration", "1s"], 2, "either --messages or --duration"),
        (["produce", "--duration", "0s"], 2, "--duration must be more than 0"),
        (["produce", "--warm-up", "-1s"], 2, "'-1s' is not a duration"),
        (["produce", "--size", "6MiB"], 2, "--size must be from 0 B to 5MiB, not 6MiB"),
        (["latency", "--size", "11B"], 2, "--size must be from 12 B"),
        (["produce", "--size", "many"], 2, "a size such as 64MiB"),
        (["produce", "--processes", "4", "--producers", "2"], 2, "4 processes need as many producers"),
        (["end-to-end", "--consumers", "2", "--type", "exclusive"], 2, "set --type shared"),
        (["produce", "mine", "--topics", "2"], 2, "either TOPICs"),
        (["produce", "--namespace", "public"], 2, "is not a namespace"),
        (["latency", "one", "two"], 2, "uses one topic"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], code: int, sentence: str) -> None:
    found = quire("bench", *words)
    assert (found.code, found.out, found.err.strip().count("\n")) == (code, "", 0)
    assert sentence in found.err
