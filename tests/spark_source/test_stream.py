"""A stream without Spark: where it begins, what a trigger may read, what a cut-off driver and a loss mean."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from quire.runtime import rest
from quire.runtime.errors import ConfigurationError, CorruptionError, NotFound, Unavailable
from quire.spark_source.broker import Broker
from quire.spark_source.options import for_batch, for_stream
from quire.spark_source.positions import Bound, Position
from quire.spark_source.stream import partitions as partitions_module
from quire.spark_source.stream.reader import QuireStreamReader
from quire.wire.message import OutgoingMessage, encode_one
from tests.spark_source.made_up_topics import (
    TIME_MS,
    TOPIC,
    Topic,
    either_order,
    look_for_partitions_each_time,
    number,
    query,
    topic,
)
from tests.spark_source.micro_batches import Killed

__all__ = ["look_for_partitions_each_time", "topic"]

ReadAllAvailable = pytest.importorskip(
    "pyspark.sql.streaming.datasource", reason="PySpark before 4.2 has no limits of streams"
).ReadAllAvailable


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


def test_a_start_behind_a_batch_is_at_the_next_entry(broker: Any) -> None:
    topic = Topic(broker)
    topic.segment(100, per_entry=10)
    stream = query(broker, start="1:3:25")
    assert QuireStreamReader(for_stream(stream.options)).initialOffset()[TOPIC]["index"] == 40
    stream.run(number)
    assert stream.rows() == list(range(40, 100))


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


@pytest.mark.parametrize("start", ["latest", "1:7"])
def test_of_two_drivers_that_begin_a_stream_at_once_the_second_begins_where_the_first_did(
    broker: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """The first one makes its cursor after the second has looked for one, and has resolved its own start."""
    given = for_stream({"service_url": broker.url, "topic": "t", "stream_name": "s", "start": start})
    first = given if start == "latest" else replace(given, start=Bound(position=Position(3, 4)))
    subscribe, begun = Broker.subscribe, []

    def overtaken(self: Broker, *arguments: Any) -> None:
        if not begun:
            begun.append(None)
            begun[0] = QuireStreamReader(first).initialOffset()
            topic.segment(10)
        subscribe(self, *arguments)

    monkeypatch.setattr(Broker, "subscribe", overtaken)
    second = QuireStreamReader(given).initialOffset()
    assert second == begun[0] and second[TOPIC]["index"] == (200 if start == "latest" else 104)
    assert QuireStreamReader(given).initialOffset() == second


def test_a_cursor_that_is_deleted_while_the_stream_begins_is_an_error(
    broker: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broker, "subscribe", lambda *_: None)
    with pytest.raises(NotFound, match=r"the cursor s of .* was deleted while the stream began"):
        query(broker, start="latest", stream_name="s").run(number)


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


def test_a_broker_that_finds_an_index_in_the_wrong_entry_is_not_believed(
    broker: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broker, "position_of_index", lambda *_: (3, 40))
    with pytest.raises(
        CorruptionError, match=r"returned entry 3:40 for message 30 of .*, but it has messages 140 to 140"
    ):
        query(broker, max_rows_per_trigger="30").run(number)


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
    assert "cursor s of" in caplog.text and broker.cursors[TOPIC, "s"]["next"] == (1, 0)
    reader.commit(end)
    assert broker.cursors[TOPIC, "s"]["next"] == (3, 100)


def test_a_cursor_is_not_made_on_a_topic_that_is_gone(broker: Any, topic: Topic) -> None:
    reader = QuireStreamReader(for_stream({"service_url": broker.url, "topic": "t", "stream_name": "s"}))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    del broker.topics[TOPIC]
    broker.cursors.clear()
    reader.commit(end)
    assert not broker.cursors and TOPIC not in broker.topics


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
