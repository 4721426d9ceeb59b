"""A stream whose topics change under it: partitions and topics that come and go, and what is lost."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from quire.runtime.errors import ConfigurationError, NotFound
from quire.spark_source.broker import Broker
from quire.spark_source.options import for_stream
from quire.spark_source.stream.reader import QuireStreamReader
from tests.spark_source.made_up_topics import (
    PREFIX,
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


@either_order
@pytest.mark.parametrize(
    "options",
    [{}, {"stream_name": "s"}, {"stream_name": "s", "start": "latest"}, {"topics_pattern": "t.*"}],
    ids=str,
)
def test_what_is_added_before_the_first_micro_batch_is_done(
    broker: Any, options: dict[str, str], asks_end_first: bool
) -> None:
    """Spark asks again where the stream begins, and plans the first micro-batch again, which ends without it."""
    if "topics_pattern" not in options:
        broker.topics[TOPIC] = 1
    first, late = Topic(broker, f"{TOPIC}-partition-0"), Topic(broker, f"{TOPIC}-partition-1", 50)
    del broker.topics[late.name]
    first.segment(10)
    stream = query(broker, asks_end_first=asks_end_first, **options)
    if "start" in options:
        stream.run(number)
        first.segment(10)
    done = len(stream.done)
    for life in range(10):
        if len(stream.ends) == done:
            stream.steps_left = life
            with pytest.raises(Killed):
                stream.run(number)
    assert len(stream.ends) == done + 1 and len(stream.done) == done
    if "topics_pattern" not in options:
        broker.topics[TOPIC] = 2
    broker.topics[late.name] = []
    late.segment(10)
    stream.steps_left = 1 << 60
    stream.run(number)
    begins = 10 if "start" in options else 0
    assert sorted(stream.rows()) == sorted([*range(begins, first.next), *range(10)])


def test_a_start_by_position_holds_when_a_partition_is_added_before_the_first_commit(broker: Any) -> None:
    broker.topics[TOPIC] = 1
    Topic(broker, f"{TOPIC}-partition-0").segment(10)
    stream = query(broker, start="1:4", stream_name="s")
    stream.steps_left = 3
    with pytest.raises(Killed):
        stream.run(number)
    broker.topics[TOPIC] = 2
    Topic(broker, f"{TOPIC}-partition-1", 50).segment(3)
    stream.steps_left = 1 << 60
    stream.run(number)
    assert sorted(stream.rows()) == sorted([*range(4, 10), *range(3)])


def test_a_topic_of_a_pattern_that_is_deleted_while_it_is_looked_for(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Topic(broker, f"{PREFIX}x1").segment(10)
    names = Broker.topics
    monkeypatch.setattr(Broker, "topics", lambda *given: [*names(*given), f"{PREFIX}x2"])
    stream = query(broker, topics_pattern="x.*")
    stream.run(number)
    assert stream.rows() == list(range(10))


def test_a_micro_batch_may_end_beyond_what_its_reader_has_looked_at(broker: Any, topic: Topic) -> None:
    given = for_stream({"service_url": broker.url, "topic": "t"})
    reader = QuireStreamReader(given)
    start = reader.initialOffset()
    topic.segment(100)
    end = QuireStreamReader(given).latestOffset(start, ReadAllAvailable())
    found = [
        row for part in reader.partitions(start, end) for one in reader.read(part) for row in one.to_pylist()
    ]
    assert [number(row) for row in found] == list(range(300))


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
    with pytest.raises(ConfigurationError, match="created again, or the checkpoint belongs to another topic"):
        stream.run(number)
    again.segment(500)
    with pytest.raises(ConfigurationError, match="created again, or the checkpoint belongs to another topic"):
        stream.run(number)


@pytest.mark.parametrize("named", [{}, {"stream_name": "s"}], ids=str)
def test_a_topic_that_was_created_again_with_a_segment_where_the_stream_stands(
    broker: Any, named: dict[str, str]
) -> None:
    broker.generations[TOPIC] = 1
    Topic(broker).segment(100)
    stream = query(broker, **named)
    stream.run(number)
    again = Topic(broker, ledger_id=71)
    broker.generations[TOPIC] = 2
    again.segment(100)
    again.segment(100)
    for _ in range(2):  # whatever retention leaves of it
        with pytest.raises(
            ConfigurationError, match="created again, or the checkpoint belongs to another topic"
        ):
            stream.run(number)
        again.trim()


@either_order
def test_a_loss_is_reported_though_nothing_came_after_it(
    broker: Any, topic: Topic, caplog: pytest.LogCaptureFixture, asks_end_first: bool
) -> None:
    """Retention took all that the stream had not read, and it asks for what is available now."""
    stream = query(broker, asks_end_first=asks_end_first, stream_name="s")
    stream.run(number)
    topic.segment(100)
    topic.trim(3)
    with pytest.raises(NotFound, match=f"messages 200 to 299 of {TOPIC} were trimmed unread; option on_data"):
        stream.run(number)
    stream.options["on_data_loss"] = "report"
    for _ in range(2):
        stream.run(number)
    assert caplog.text.count("were trimmed unread") == 1, "the checkpoint is beyond them"
    topic.segment(10)
    stream.run(number)
    assert stream.rows() == [*range(200), *range(300, 310)]


@either_order
def test_a_topic_that_goes(broker: Any, asks_end_first: bool) -> None:
    for name, ledger in (("a", 1), ("b", 20)):
        Topic(broker, PREFIX + name, ledger).segment(10)
    stream = query(broker, topics_pattern="[ab]", asks_end_first=asks_end_first)
    stream.run(number)
    del broker.topics[PREFIX + "a"]
    with pytest.raises(NotFound, match="topic persistent://public/default/a was deleted"):
        stream.run(number)
    stream.options["on_data_loss"] = "report"
    stream.run(number)
    assert sorted(stream.rows()) == sorted([*range(10), *range(10)])
