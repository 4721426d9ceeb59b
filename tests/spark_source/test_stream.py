"""A stream without Spark: where it begins, what a trigger may read, what a cut-off driver and a loss mean."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from quire.runtime import rest
from quire.runtime.errors import ConfigurationError, NotFound, Unavailable
from quire.spark_source.options import for_batch, for_stream
from quire.spark_source.stream import partitions as partitions_module
from quire.spark_source.stream.reader import QuireStreamReader
from quire.wire.message import OutgoingMessage, encode_batch, encode_one
from tests.spark_source.micro_batches import Killed, Query

ReadAllAvailable = pytest.importorskip(
    "pyspark.sql.streaming.datasource", reason="PySpark before 4.2 has no limits of streams"
).ReadAllAvailable

TIME_MS = 1_700_000_000_000
PREFIX = "persistent://public/default/"
TOPIC = f"{PREFIX}t"


def entries(first: int, count: int) -> list[bytes]:
    return [encode_one(OutgoingMessage(b"%d" % i), "p", i, TIME_MS + i) for i in range(first, first + count)]


def batch(first: int, count: int) -> bytes:
    return encode_batch(
        [OutgoingMessage(b"%d" % i) for i in range(first, first + count)], "p", first, TIME_MS
    )


class Topic:
    """A made-up partition that grows, rolls and is trimmed, its messages numbered by their index."""

    def __init__(self, broker: Any, name: str = TOPIC, ledger_id: int = 1) -> None:
        self.broker, self.name, self.next, self.ledger_id = broker, name, 0, ledger_id
        broker.topics[name] = []

    def segment(self, count: int, *, per_entry: int = 1) -> None:
        self.broker.next_index = self.next
        content, counts = entries(self.next, count), [1] * count
        if per_entry > 1:
            content = [batch(self.next + i, per_entry) for i in range(0, count, per_entry)]
            counts = [per_entry] * len(content)
        self.broker.topics[self.name].append(self.broker.segment(self.ledger_id, content, counts))
        self.next += count
        self.ledger_id += 2

    def trim(self, count: int = 1) -> None:
        del self.broker.topics[self.name][:count]


@pytest.fixture
def topic(broker: Any) -> Topic:
    made = Topic(broker)
    made.segment(100)
    made.segment(100)
    return made


def number(row: dict[str, Any]) -> int:
    return int(row["value"])


def query(broker: Any, *, asks_end_first: bool = False, **options: str) -> Query:
    given = {"service_url": broker.url, "columns": "topic,value"}
    named = {} if "topics_pattern" in options else {"topic": "t"}
    return Query(given | named | options, asks_end_first=asks_end_first)


either_order = pytest.mark.parametrize("asks_end_first", [False, True], ids=["PySpark 4.2", "PySpark 4.1"])


@pytest.fixture(autouse=True)
def look_for_partitions_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module, "DISCOVERY_S", 0.0)


# -- where it begins -------------------------------------------------------------------------------------


def test_everything_once_and_then_what_is_new(broker: Any, topic: Topic) -> None:
    stream = query(broker)
    stream.run(number)
    assert stream.rows() == list(range(200)) and len(stream.sink) == 1
    stream.run(number)
    assert len(stream.sink) == 1
    topic.segment(50)
    stream.run(number)
    assert stream.rows() == list(range(250)) and len(stream.sink) == 2


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"start": "3:40"}, 140),
        ({"start": "1:100"}, 100),
        ({"start": "latest", "stream_name": "s"}, 200),
        ({"start": "earliest", "stream_name": "s"}, 0),
    ],
)
@either_order
def test_starts(broker: Any, topic: Topic, options: dict[str, str], first: int, asks_end_first: bool) -> None:
    stream = query(broker, asks_end_first=asks_end_first, **options)
    stream.run(number)
    topic.segment(50)
    stream.run(number)
    assert stream.rows() == list(range(first, 250))


def test_a_start_within_a_batch(broker: Any) -> None:
    topic = Topic(broker)
    topic.segment(100, per_entry=10)
    stream = query(broker, start="1:3:4")
    stream.run(number)
    assert stream.rows() == list(range(34, 100))


def test_a_start_at_a_subscription(broker: Any, topic: Topic) -> None:
    broker.cursors[TOPIC, "theirs"] = {"next": (3, 7), "properties": {}}
    stream = query(broker, starting_subscription="theirs", stream_name="mine")
    stream.run(number)
    assert stream.rows() == list(range(107, 200))
    with pytest.raises(NotFound, match="no durable subscription nobody"):
        query(broker, starting_subscription="nobody", stream_name="other").run(number)


def test_latest_on_a_topic_that_begins_later(broker: Any) -> None:
    topic = Topic(broker)
    stream = query(broker, start="latest", stream_name="s")
    stream.run(number)
    topic.segment(10)
    stream.run(number)
    assert stream.rows() == list(range(10))


def test_a_restart_before_the_first_commit_loses_nothing(broker: Any, topic: Topic) -> None:
    stream = query(broker, start="latest", stream_name="s")
    stream.run(number)  # nothing is new, so nothing is in the checkpoint
    assert not stream.ends
    topic.segment(100)
    stream.run(number)
    assert stream.rows() == list(range(200, 300))


def test_whatever_moved_the_cursor_a_stream_begins_where_it_began(broker: Any, topic: Topic) -> None:
    stream = query(broker, start="3:0", stream_name="s")
    stream.steps_left = 4
    with pytest.raises(Killed):
        stream.run(number)
    broker.cursors[TOPIC, "s"]["next"] = (3, 50)  # a time to live does this
    stream.steps_left = 1 << 60
    stream.run(number)
    assert stream.rows() == list(range(100, 200))


def test_a_subscription_of_somebody_else_is_no_cursor(broker: Any, topic: Topic) -> None:
    broker.cursors[TOPIC, "s"] = {"next": (3, 7), "properties": {}}
    with pytest.raises(ConfigurationError, match=r"subscription s of .* is not the cursor of a stream"):
        query(broker, start="latest", stream_name="s").run(number)


@pytest.mark.parametrize(
    ("limit", "asks_end_first"), [({}, False), ({"max_rows_per_trigger": "70"}, False), ({}, True)]
)
def test_a_driver_killed_between_any_two_steps(
    broker: Any, limit: dict[str, str], asks_end_first: bool
) -> None:
    """Messages come all the time, and each life of the driver is one step longer than the one before."""
    topic = Topic(broker)
    topic.segment(100, per_entry=10)
    stream = query(broker, asks_end_first=asks_end_first, start="1:5", stream_name="s", **limit)
    for life in range(30):
        stream.steps_left = life
        try:
            stream.run(number)
        except Killed:
            topic.segment(20)
    stream.steps_left = 1 << 60
    stream.run(number)
    assert stream.rows() == list(range(50, topic.next))
    assert len(stream.sink) > 3


def test_a_micro_batch_has_the_same_tasks_when_it_is_done_again(broker: Any, archivist: Any) -> None:
    """Though its segments are sealed and archived meanwhile: the sink knows by them what is written."""
    topic = Topic(broker)
    for _ in range(3):
        broker.next_index = topic.next
        sizes = [100_000] * 30 + [10] * 470
        content = [encode_one(OutgoingMessage(bytes(size)), "p", i, TIME_MS) for i, size in enumerate(sizes)]
        broker.topics[TOPIC].append(broker.segment(topic.ledger_id, content))
        topic.next, topic.ledger_id = topic.next + 500, topic.ledger_id + 2
    given = for_stream({"service_url": broker.url, "topic": "t", "slice_bytes": "1MiB"})
    reader = QuireStreamReader(given)
    start, end = reader.initialOffset(), reader.latestOffset()
    end[TOPIC] |= {"entry": 300, "index": 1300}

    def planned(reader: QuireStreamReader) -> list[list[tuple[int, int, int]]]:
        return [
            [(one.origin.ledger_id, one.first_entry, one.end_entry) for one in task.value]
            for task in reader.partitions(start, end)
        ]

    first = planned(reader)
    topic.segment(10)
    for segment in broker.topics[TOPIC]:
        archivist.archive(segment)
    assert planned(QuireStreamReader(given)) == first
    assert len(first) > 4 and first[-1] == [(5, 0, 300)]


# -- limits, and triggers --------------------------------------------------------------------------------


def test_rows_per_trigger_are_cut_within_batches(broker: Any) -> None:
    topic = Topic(broker)
    topic.segment(100, per_entry=25)
    topic.segment(100, per_entry=10)
    stream = query(broker, max_rows_per_trigger="30")
    stream.run(number)
    assert stream.rows() == list(range(200))
    assert [len(rows) for rows in stream.sink.values()] == [30] * 6 + [20]


def test_bytes_per_trigger(broker: Any, topic: Topic) -> None:
    size = sum(len(one) for segment in broker.topics[TOPIC] for one in segment.blocks)
    stream = query(broker, max_bytes_per_trigger=str(size // 4))
    stream.run(number)
    assert stream.rows() == list(range(200))
    assert 4 <= len(stream.sink) <= 6


def test_a_limit_is_not_heeded_where_spark_says_so(broker: Any, topic: Topic) -> None:
    given = {"service_url": broker.url, "topic": "t", "max_rows_per_trigger": "10"}
    reader = QuireStreamReader(for_stream(given))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end[TOPIC]["index"] == 200
    assert reader.latestOffset(start, reader.getDefaultReadLimit())[TOPIC]["index"] == 10
    assert reader.reportLatestOffset() == end


def test_available_now_ends_where_it_began_and_the_cursor_with_it(broker: Any, topic: Topic) -> None:
    stream = query(broker, stream_name="s", max_rows_per_trigger="150")
    stream.between = lambda: topic.segment(5)
    stream.run(number)
    assert stream.rows() == list(range(200))
    assert broker.cursors[TOPIC, "s"]["next"] in ((3, 100), (5, 0))


def test_a_trigger_without_news_is_one_request_for_each_partition(
    broker: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions_module, "DISCOVERY_S", 3600.0)
    reader = QuireStreamReader(for_stream({"service_url": broker.url, "topic": "t"}))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    broker.requests.clear()
    for _ in range(3):
        assert json.dumps(reader.latestOffset(end, ReadAllAvailable())) == json.dumps(end)
    assert [path.rpartition("/")[2] for path in broker.requests] == ["lastMessageId"] * 3


def test_commits_move_the_cursor_once_and_put_it_back(broker: Any, topic: Topic) -> None:
    reader = QuireStreamReader(for_stream({"service_url": broker.url, "topic": "t", "stream_name": "s"}))
    start = reader.initialOffset()
    assert broker.cursors[TOPIC, "s"]["next"] == (1, 0)
    end = reader.latestOffset(start, ReadAllAvailable())
    broker.requests.clear()
    for _ in range(2):
        reader.commit(end)
    assert len(broker.requests) == 1
    assert broker.cursors.pop((TOPIC, "s"))["next"] == (3, 100)
    topic.segment(10)
    reader.commit(reader.latestOffset(end, ReadAllAvailable()))
    assert broker.cursors[TOPIC, "s"]["next"] == (5, 10)


def test_a_commit_that_fails_does_not_end_the_query(
    broker: Any, topic: Topic, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = QuireStreamReader(for_stream({"service_url": broker.url, "topic": "t", "stream_name": "s"}))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    monkeypatch.setattr(rest, "PAUSE_S", 0)
    broker.failures = [503] * 4
    reader.commit(end)
    assert "the cursor s of" in caplog.text and broker.cursors[TOPIC, "s"]["next"] == (1, 0)
    reader.commit(end)
    assert broker.cursors[TOPIC, "s"]["next"] == (3, 100)


def test_a_cursor_is_not_made_on_a_topic_that_is_gone(broker: Any, topic: Topic) -> None:
    reader = QuireStreamReader(for_stream({"service_url": broker.url, "topic": "t", "stream_name": "s"}))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    del broker.topics[TOPIC]
    broker.cursors.clear()
    reader.commit(end)
    assert not broker.cursors


def test_a_broker_that_is_away_is_waited_for(
    broker: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "PAUSE_S", 0)
    monkeypatch.setattr(partitions_module, "PAUSE_S", 0)
    reader = QuireStreamReader(for_stream({"service_url": broker.url, "topic": "t"}))
    broker.failures = [503] * 20
    assert reader.initialOffset()[TOPIC]["index"] == 0
    monkeypatch.setattr(partitions_module, "PATIENCE_S", 0)
    broker.failures = [503] * 20
    with pytest.raises(Unavailable, match="not now"):
        reader.latestOffset()


# -- partitions and topics that come, and what is lost ---------------------------------------------------


def test_partitions_that_are_added_are_read_from_their_beginning(broker: Any) -> None:
    broker.topics[TOPIC] = 2
    parts = [Topic(broker, f"{TOPIC}-partition-{i}", 100 * i) for i in range(2)]
    for part in parts:
        part.segment(10)
    stream = query(broker, start="latest", stream_name="s")
    stream.run(number)
    broker.topics[TOPIC] = 3
    parts.append(Topic(broker, f"{TOPIC}-partition-2", 200))
    # The broker makes the subscriptions of the old partitions on the new one, with their properties.
    copied = broker.cursors[f"{TOPIC}-partition-0", "s"]["properties"]
    broker.cursors[f"{TOPIC}-partition-2", "s"] = {"next": (-1, -1), "properties": copied}
    for part in parts:
        part.segment(10)
    stream.run(number)
    assert sorted(stream.rows()) == sorted([*range(10), *range(10, 20), *range(10, 20)])


def test_topics_that_appear_under_a_pattern(broker: Any) -> None:
    Topic(broker, f"{PREFIX}orders-a").segment(10)
    Topic(broker, f"{PREFIX}other").segment(10)
    stream = query(broker, topics_pattern="orders-.*", start="latest", stream_name="s")
    stream.run(number)
    late = Topic(broker, f"{PREFIX}orders-b", 50)
    late.segment(10)
    stream.steps_left = 6  # a micro-batch is planned, and not done
    with pytest.raises(Killed):
        stream.run(number)
    assert stream.ends and not stream.done
    stream.steps_left = 1 << 60
    stream.run(number)
    assert stream.rows() == list(range(10))
    assert broker.cursors[late.name, "s"]["next"] == (50, 10)


def test_a_pattern_without_topics(broker: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"no topic matches .* start=earliest"):
        query(broker, topics_pattern="x.*", start="latest", stream_name="s").run(number)
    stream = query(broker, topics_pattern="x.*")
    stream.run(number)
    Topic(broker, f"{PREFIX}x1").segment(10)
    stream.run(number)
    assert stream.rows() == list(range(10))


def test_a_topic_that_is_not_there_is_a_sentence(broker: Any) -> None:
    with pytest.raises(NotFound, match="no topic persistent://public/default/t"):
        query(broker).run(number)


def test_a_trimmed_start(broker: Any, topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    stream = query(broker, max_rows_per_trigger="50")
    stream.steps_left = 10
    with pytest.raises(Killed):
        stream.run(number)
    assert stream.rows() == list(range(50))
    topic.trim()
    topic.segment(10)
    stream.steps_left = 1 << 60
    with pytest.raises(NotFound, match=f"messages 50 to 99 of {TOPIC} were trimmed unread; option on_data"):
        stream.run(number)
    stream.options["on_data_loss"] = "report"
    with caplog.at_level(logging.WARNING):
        stream.run(number)
    assert stream.rows() == [*range(50), *range(100, 210)]
    assert f"messages 50 to 99 of {TOPIC} were trimmed unread" in caplog.text


def test_a_micro_batch_that_is_trimmed_whole_before_it_is_done_again(broker: Any, topic: Topic) -> None:
    stream = query(broker, max_rows_per_trigger="50", on_data_loss="report")
    stream.steps_left = 6
    with pytest.raises(Killed):
        stream.run(number)
    assert len(stream.ends) == 1 and not stream.done
    topic.trim()
    stream.steps_left = 1 << 60
    stream.run(number)
    assert stream.rows() == list(range(100, 200))


def test_a_segment_trimmed_after_the_plan(broker: Any, topic: Topic) -> None:
    for loss, rows in (("fail", None), ("report", list(range(100, 200)))):
        given = {"service_url": broker.url, "topic": "t", "on_data_loss": loss}
        reader = QuireStreamReader(for_stream(given))
        start = reader.initialOffset()
        plan = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        saved = broker.topics[TOPIC]
        broker.topics[TOPIC] = saved[1:]
        if rows is None:
            with pytest.raises(NotFound, match="trimmed after the query was planned"):
                [list(reader.read(part)) for part in plan]
        else:
            found = [row for part in plan for one in reader.read(part) for row in one.to_pylist()]
            assert [number(row) for row in found] == rows
        broker.topics[TOPIC] = saved


def test_a_checkpoint_of_another_topic(broker: Any, topic: Topic) -> None:
    stream = query(broker)
    stream.run(number)
    again = Topic(broker, ledger_id=71)
    again.segment(50)
    with pytest.raises(ConfigurationError, match="made anew, or the checkpoint is of another topic"):
        stream.run(number)
    again.segment(500)
    with pytest.raises(ConfigurationError, match="made anew, or the checkpoint is of another topic"):
        stream.run(number)


@either_order
def test_a_topic_that_goes(broker: Any, asks_end_first: bool) -> None:
    for name, ledger in (("a", 1), ("b", 20)):
        Topic(broker, PREFIX + name, ledger).segment(10)
    stream = query(broker, topics_pattern="[ab]", asks_end_first=asks_end_first)
    stream.run(number)
    del broker.topics[PREFIX + "a"]
    with pytest.raises(NotFound, match="topic persistent://public/default/a is gone"):
        stream.run(number)
    stream.options["on_data_loss"] = "report"
    stream.run(number)
    assert sorted(stream.rows()) == sorted([*range(10), *range(10)])


# -- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"start": "latest"}, "option stream_name is required"),
        ({"start": "2026-01-01"}, "option stream_name is required"),
        ({"starting_subscription": "x"}, "option stream_name is required"),
        ({"end": "5:0"}, "a stream has no end"),
        ({"starting_subscription": "x", "start": "earliest"}, "not both"),
        ({"max_rows_per_trigger": "0"}, "is not a number of rows"),
        ({"max_bytes_per_trigger": "lots"}, "is not a size"),
        ({"on_data_loss": "ignore"}, "is not one of fail, report"),
    ],
)
def test_refusals(change: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        for_stream({"service_url": "http://h", "topic": "t"} | change)


def test_options_of_streams_are_not_for_batches() -> None:
    with pytest.raises(ConfigurationError, match="option stream_name is for streams"):
        for_batch({"service_url": "http://h", "topic": "t", "stream_name": "s"})
