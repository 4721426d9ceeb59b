"""Plan and read without Spark: slices, both places of a segment, and a segment that moves between plan and read."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quire.runtime import rest
from quire.runtime.errors import (
    ConfigurationError,
    CorruptionError,
    NotAuthenticated,
    NotFound,
    Unavailable,
)
from quire.spark_source import fetch, schema
from quire.spark_source import plan as plan_module
from quire.spark_source.broker import Broker
from quire.spark_source.options import parse
from quire.spark_source.source import QuireDataSource, QuireReader
from quire.spark_source.task import QuirePartition
from quire.wire import block
from quire.wire.message import OutgoingMessage, encode_one
from quire.wire.publish_time import PublishTimes

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"


def entries(first: int, count: int, size: int = 10) -> list[bytes]:
    return [
        encode_one(OutgoingMessage(b"%09d." % i + bytes(size)), "p", i, TIME_MS + i)
        for i in range(first, first + count)
    ]


def reader(broker: Any, **options: str) -> QuireReader:
    given = {"service_url": broker.url, "topic": "t", "slice_bytes": "1MiB"} | options
    return QuireReader(parse(given))


def numbers(rows: QuireReader, plan: list[Any] | None = None) -> list[int]:
    """The messages' numbers, in order of partitions; the plan and the reader cross processes."""
    rows = pickle.loads(pickle.dumps(rows))
    partitions = pickle.loads(pickle.dumps(rows.partitions() if plan is None else plan))
    batches = [batch for partition in partitions for batch in rows.read(partition)]
    table = pa.Table.from_batches(batches, schema.arrow(rows.options.columns))
    return [int(value[:9]) for value in table["value"].to_pylist()]


def one_by_one(rows: QuireReader) -> list[QuirePartition]:
    """The plan, as if each slice were a task."""
    return [QuirePartition((piece,)) for task in rows.partitions() for piece in task.value]


@pytest.fixture
def moving(broker: Any, archivist: Any) -> Any:
    """A topic of an archived, a sealed and an active segment: messages 0-999, 1000-1999, 2000-2499."""
    segments = [
        broker.segment(3, entries(0, 1000, 4000)),
        broker.segment(5, entries(1000, 1000), clock_ms=TIME_MS + 1000),
        broker.segment(9, entries(2000, 500), clock_ms=TIME_MS + 2000, state="active"),
    ]
    archivist.archive(segments[0])
    broker.topics[TOPIC] = segments
    return broker


def test_reads_the_archive_and_the_tail(moving: Any) -> None:
    rows = reader(moving)
    plan = rows.partitions()
    assert isinstance(plan, list)
    assert [len(task.value) for task in plan] == [1, 1, 3]  # 4 MB in slices of 1 MiB; two small segments
    assert numbers(rows) == list(range(2500))
    assert sum("blocks" in path for path in moving.requests) == 2


def test_chunks_smaller_than_a_slice(moving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CHUNK_BYTES", 150_000)
    assert numbers(reader(moving, slice_bytes="100MiB")) == list(range(2500))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("3:900", "5:10", range(900, 1010)),
        ("5:0", "latest", range(1000, 2500)),
        ("earliest", "9:0", range(2000)),
        ("4:7", "5:1", range(1000, 1001)),
        (str(TIME_MS + 990), str(TIME_MS + 2010), range(990, 2010)),
        ("earliest", str(TIME_MS), range(0)),
        ("latest", "latest", range(0)),
        ("earliest", "earliest", range(0)),
        ("9:500", "latest", range(0)),
    ],
)
def test_half_open_ranges(moving: Any, start: str, end: str, expected: range) -> None:
    assert numbers(reader(moving, start=start, end=end)) == list(expected)


DAY = 24 * 3_600_000


def planned(broker: Any, start: int, end: int) -> list[int]:
    tasks = reader(broker, start=str(start), end=str(end)).partitions()
    return [piece.origin.ledger_id for task in tasks for piece in task.value]


def test_publish_times_decide_where_they_are_known(broker: Any) -> None:
    some = [broker.segment(number, entries(10 * number, 10), clock_ms=TIME_MS + DAY) for number in range(4)]
    for number, one in enumerate(some):
        one.times = {"publish_min_ms": TIME_MS + 10 * number, "publish_max_ms": TIME_MS + 10 * number + 9}
    some[2].times["publish_max_ms"] = TIME_MS + 100
    broker.has_ranges = False
    broker.topics[TOPIC] = some
    assert planned(broker, TIME_MS + 9, TIME_MS + 21) == [0, 1, 2]
    assert planned(broker, TIME_MS + 20, TIME_MS + 30) == [2]
    assert planned(broker, TIME_MS + 30, TIME_MS + 40) == [2, 3]
    assert planned(broker, TIME_MS + 101, TIME_MS + 200) == []
    assert not any("messageid" in path for path in broker.requests)


def test_segments_that_are_not_archived_are_read_within_the_range(broker: Any) -> None:
    broker.topics[TOPIC] = [
        broker.segment(3, entries(0, 1000)),
        broker.segment(5, entries(1000, 1000)),
        broker.segment(9, entries(2000, 500), state="active"),
    ]
    rows = reader(broker, start=str(TIME_MS + 1700), end=str(TIME_MS + 2100))
    plan = rows.partitions()
    read = [(one.origin.ledger_id, one.first_entry, one.end_entry) for task in plan for one in task.value]
    assert read == [(5, 700, 1000), (9, 0, 100)]
    assert numbers(rows, plan) == list(range(1700, 2100))
    assert numbers(reader(broker, start=str(TIME_MS + 9000))) == []
    assert numbers(reader(broker, end=str(TIME_MS))) == []
    broker.has_ranges = False
    assert numbers(reader(broker, start=str(TIME_MS + 1700), end=str(TIME_MS + 2100))) == list(
        range(1700, 2100)
    )


@pytest.mark.parametrize("has_ranges", [True, False])
@pytest.mark.parametrize(
    ("start", "end"),
    [(None, TIME_MS + 5), (TIME_MS + 5, None), (TIME_MS + 3, TIME_MS + 8), (TIME_MS + 500, None), (None, 1)],
)
def test_a_time_range_has_the_same_rows_before_and_after_archiving(
    broker: Any, archivist: Any, has_ranges: bool, start: int | None, end: int | None
) -> None:
    """Whatever the clocks of producers and brokers say, and of entries that cannot be decoded as well."""
    broker.has_ranges = has_ranges
    good = entries(400, 1)[0]
    bad = [entries(4, 1)[0][:-1] + b"!", good[:-1] + b"!", good[:6] + b"\0\0\0\0"]
    clocks = [TIME_MS - 30 * DAY, TIME_MS, TIME_MS + 30 * DAY]
    segments = [
        broker.segment(number, [*entries(4 * number, 4), entry], clock_ms=clock_ms)
        for number, (clock_ms, entry) in enumerate(zip(clocks, bad, strict=True))
    ]
    broker.topics[TOPIC] = segments
    times = {name: str(at) for name, at in (("start", start), ("end", end)) if at is not None} | {
        "on_undecodable": "raw",
        "columns": "entry,ledger,undecoded",
    }

    def rows() -> list[dict[str, Any]]:
        made = reader(broker, **times)
        return [row for task in made.partitions() for batch in made.read(task) for row in batch.to_pylist()]

    before = rows()
    assert any(row["undecoded"] and row["ledger"] == 2 for row in before), "it may have any time"
    for one in segments:
        archivist.archive(one)
        known = PublishTimes()
        for content in one.blocks:
            known.add(content, block.read_header(content))
        one.times = {"publish_min_ms": known.min_ms, "publish_max_ms": known.max_ms}
    assert rows() == before


def test_a_segment_archived_after_the_plan(moving: Any, archivist: Any) -> None:
    rows = reader(moving)
    plan = rows.partitions()
    archivist.archive(moving.topics[TOPIC][1])
    assert numbers(rows, plan) == list(range(2500))


def test_an_archive_out_of_reach_is_read_through_the_broker(
    moving: Any, archivist: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    segment = moving.topics[TOPIC][0]
    segment.on_broker = True
    archivist.store.delete(segment.archive["name"])
    monkeypatch.setattr(fetch, "_warned", set())
    assert numbers(reader(moving)) == list(range(2500))
    assert caplog.text.count("is archived, but was read through the broker") == 1


def test_a_wrong_archive_option_is_not_passed_over(moving: Any) -> None:
    moving.topics[TOPIC][0].on_broker = True
    with pytest.raises(ConfigurationError, match="is not an object store's URL"):
        numbers(reader(moving, archive="ftp://elsewhere"))


def test_an_archive_lost_while_it_is_read_goes_on_through_the_broker(
    moving: Any, archivist: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "CHUNK_BYTES", 300_000)
    segment = moving.topics[TOPIC][0]
    segment.on_broker = True
    rows = reader(moving, slice_bytes="100MiB")
    (first, *_) = one_by_one(rows)
    reading = rows.read(first)
    count = next(reading).num_rows
    archivist.store.delete(segment.archive["name"])
    assert 0 < count < 1000
    assert count + sum(batch.num_rows for batch in reading) == 1000


def test_a_trimmed_segment_is_an_error_that_says_so(moving: Any) -> None:
    rows = reader(moving)
    plan = one_by_one(rows)
    moving.topics[TOPIC] = moving.topics[TOPIC][2:]
    with pytest.raises(
        NotFound, match=r"ledger 5 of persistent://public/default/t: .*trimmed after the query"
    ):
        numbers(rows, plan[-2:])


def test_a_trimmed_segment_is_left_out_where_losses_are_reported(
    moving: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = reader(moving, on_data_loss="report")
    plan = rows.partitions()
    del moving.topics[TOPIC][1]
    assert numbers(rows, plan) == [*range(1000), *range(2000, 2500)]
    assert "cannot read entries 0 to 999 of ledger 5 of persistent://public/default/t: " in caplog.text


def test_a_start_that_was_trimmed(moving: Any, caplog: pytest.LogCaptureFixture) -> None:
    del moving.topics[TOPIC][0]
    with pytest.raises(
        NotFound, match=f"{TOPIC} begins with message 1000 in ledger 5; messages from 3:7 on were trimmed"
    ):
        numbers(reader(moving, start="3:7"))
    assert numbers(reader(moving, start="3:7", on_data_loss="report")) == list(range(1000, 2500))
    assert "messages from 3:7 on were trimmed" in caplog.text
    assert numbers(reader(moving, start="5:7")) == list(range(1007, 2500))
    assert numbers(reader(moving)) == numbers(reader(moving, start=str(TIME_MS))) == list(range(1000, 2500))


def test_a_query_begins_where_a_subscription_stands(moving: Any) -> None:
    moving.cursors[TOPIC, "theirs"] = {"next": (5, 7), "properties": {}}
    moving.cursors[TOPIC, "done"] = {"next": (3, 1000), "properties": {}}
    assert numbers(reader(moving, starting_subscription="theirs")) == list(range(1007, 2500))
    assert numbers(reader(moving, starting_subscription="done")) == list(range(1000, 2500))
    del moving.topics[TOPIC][0]  # it had all of it
    assert numbers(reader(moving, starting_subscription="done")) == list(range(1000, 2500))
    with pytest.raises(NotFound, match="no durable subscription nobody, which starting_subscription"):
        numbers(reader(moving, starting_subscription="nobody"))


def test_damage_in_the_archive_names_object_and_offset(moving: Any, archivist: Any, tmp_path: Path) -> None:
    name = moving.topics[TOPIC][0].archive["name"]
    path = tmp_path / "archive" / name
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[1_000_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match=f"{name} at offset"):
        numbers(reader(moving))


def test_damage_in_the_archive_is_passed_over_while_the_broker_has_the_bytes(
    moving: Any, tmp_path: Path
) -> None:
    segment = moving.topics[TOPIC][0]
    segment.on_broker = True
    path = tmp_path / "archive" / segment.archive["name"]
    path.chmod(0o600)
    content = path.read_bytes()
    for damaged in (content[:-50], content[:1_000_000] + b"?" + content[1_000_001:]):
        path.write_bytes(damaged)
        assert numbers(reader(moving, slice_bytes="100MiB")) == list(range(2500))


@pytest.mark.parametrize(
    ("lacks", "sentence"),
    [
        (0, ""),
        (
            1,
            "segment 3 ends with entry 999 and message 999, but the next segment 9 begins with message 2000",
        ),
        (2, "the last confirmed entry 499 is in segment 9, which is missing"),
    ],
)
def test_a_plan_that_is_not_whole_is_asked_for_again_and_then_refused(
    moving: Any, monkeypatch: pytest.MonkeyPatch, lacks: int, sentence: str
) -> None:
    monkeypatch.setattr(plan_module, "PAUSE_S", 0)
    moving.lacking = [lacks] * (plan_module.ATTEMPTS - 1)
    if sentence:
        assert numbers(reader(moving)) == list(range(2500))
        moving.lacking = [lacks] * plan_module.ATTEMPTS
        with pytest.raises(
            CorruptionError, match=f"plan of {TOPIC} is incomplete.* would miss messages: {sentence}"
        ):
            reader(moving).partitions()
    else:  # what was trimmed at the front is no gap
        assert numbers(reader(moving)) == list(range(1000, 2500))


def test_a_task_says_so_when_it_cannot_reach_the_end_of_its_slice(moving: Any, archivist: Any) -> None:
    rows = reader(moving, slice_bytes="100MiB")
    archived, sealed, active = (piece for task in rows.partitions() for piece in task.value)
    longer = replace(archived, end_entry=1001)
    with pytest.raises(CorruptionError, match=r"cannot read entries 1000 to 1000 of .*: no block follows"):
        list(rows.read(QuirePartition((longer,))))
    for piece in (sealed, active):
        beyond = replace(piece, end_entry=piece.end_entry + 1)
        with pytest.raises(Unavailable, match="has no entry"):
            list(rows.read(QuirePartition((beyond,))))


def test_blocks_that_do_not_follow_one_another_are_refused(moving: Any) -> None:
    rows = reader(moving)
    sealed = one_by_one(rows)[-2]
    segment = moving.topics[TOPIC][1]
    blocks = segment.blocks
    segment.blocks = blocks[:3] + blocks[4:]
    with pytest.raises(CorruptionError, match="entry 200 after entry 149"):
        list(rows.read(sealed))
    segment.blocks = blocks[1:]
    with pytest.raises(CorruptionError, match="received entry 50 instead of entry 0"):
        list(rows.read(sealed))


def test_small_answers_of_the_broker_are_decoded_together(
    moving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "READ_BYTES_MAX", 5_000)
    rows = reader(moving)
    [sealed] = one_by_one(rows)[-2].value
    moving.requests.clear()
    chunks = list(fetch.from_broker(sealed, Broker(moving.url), 0))
    assert len(moving.requests) > 5
    assert [(one.first_entry, one.next_entry) for one in chunks] == [(0, sealed.end_entry)]
    assert bytes(chunks[0].blocks) == b"".join(moving.topics[TOPIC][1].blocks)


def test_a_broker_that_repeats_a_block_is_refused(moving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two answers as within one."""
    [sealed] = one_by_one(reader(moving))[-2].value
    answers = iter(moving.topics[TOPIC][1].blocks[i] for i in (0, 1, 1))
    monkeypatch.setattr(Broker, "blocks", lambda *_: next(answers))
    with pytest.raises(CorruptionError, match="received entry 50 instead of entry 100"):
        list(fetch.from_broker(sealed, Broker(moving.url), 0))


def test_a_broker_that_is_not_ready_is_asked_again(moving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "PAUSE_S", 0)
    moving.failures = [503, 500, 429]
    assert len(numbers(reader(moving))) == 2500
    moving.failures = [503] * 4
    with pytest.raises(Unavailable, match="not now"):
        reader(moving).partitions()
    moving.failures = [401]
    with pytest.raises(NotAuthenticated, match="not now"):
        reader(moving).partitions()


def test_no_broker_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "PAUSE_S", 0)
    unreachable = QuireReader(parse({"service_url": "http://127.0.0.1:1", "topic": "t"}))
    with pytest.raises(Unavailable, match=r"no broker answers at http://127\.0\.0\.1:1 "):
        unreachable.partitions()


def test_partitions_patterns_and_their_columns(broker: Any) -> None:
    prefix = "persistent://public/default/"
    broker.topics |= {
        f"{prefix}orders": 2,
        f"{prefix}orders-partition-0": [broker.segment(1, entries(0, 3))],
        f"{prefix}orders-partition-1": [broker.segment(2, entries(3, 3))],
        f"{prefix}orders-old": [broker.segment(3, entries(6, 2))],
        f"{prefix}other": [broker.segment(4, entries(8, 2))],
        f"{prefix}x-partition-7": [broker.segment(5, entries(10, 1))],
    }

    def places(**options: str) -> list[tuple[str, int]]:
        rows = QuireReader(parse({"service_url": broker.url, "columns": "topic,partition", **options}))
        found: dict[tuple[str, int], None] = {}
        for partition in rows.partitions():
            for batch in rows.read(partition):
                pairs = zip(*(batch.column(i).to_pylist() for i in (0, 1)), strict=True)
                found |= dict.fromkeys((topic.removeprefix(prefix), n) for topic, n in pairs)
        return list(found)

    assert places(topic="orders") == [("orders", 0), ("orders", 1)]
    assert places(topic="orders-partition-1") == [("orders", 1)]
    assert places(topics="other,orders-old") == [("other", -1), ("orders-old", -1)]
    assert places(topics_pattern="orders.*") == [("orders", 0), ("orders", 1), ("orders-old", -1)]
    assert places(topics_pattern="x.*") == [("x", 7)]
    with pytest.raises(ConfigurationError, match="no topic of"):
        places(topics_pattern="z.*")
    with pytest.raises(ConfigurationError, match="one partition, but 2 are read"):
        places(topic="orders", start="1:0")


def test_an_empty_topic_has_a_plan_of_one_partition_without_rows(broker: Any) -> None:
    for segments in ([], [broker.segment(1, [], state="active")]):
        broker.topics[TOPIC] = segments
        assert [partition.value for partition in reader(broker).partitions()] == [()]
        assert numbers(reader(broker)) == []


def test_leaving_early_stops_reading_ahead(moving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CHUNK_BYTES", 100_000)
    others = {*threading.enumerate()}  # such as a reader's that failed, while its error is kept
    rows = reader(moving, slice_bytes="100MiB")
    reading = rows.read(rows.partitions()[0])
    next(reading)
    running = {*threading.enumerate()} - others
    threads = [thread for thread in running if thread.name.startswith("quire-fetch")]
    assert threads
    reading.close()  # what a LIMIT does
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_schema_of_the_users_own_is_refused(broker: Any) -> None:
    from pyspark.sql.types import StructType

    source = QuireDataSource({"service_url": broker.url, "topic": "t", "columns": "value"})
    assert source.schema() == "`value` binary"
    with pytest.raises(ConfigurationError, match="choose among them with the option columns"):
        source.reader(StructType().add("text", "string"))


def test_a_segment_that_moves_in_the_middle_of_a_task_is_read_once(
    moving: Any, archivist: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is read by runs of blocks, and the broker's last answer ended within one."""
    monkeypatch.setattr(fetch, "READ_BYTES_MAX", 5_000)
    monkeypatch.setattr(fetch, "CHUNK_BYTES", 20_000)
    segment = moving.topics[TOPIC][1]
    rows = reader(moving, slice_bytes="100MiB")
    reading = rows.read(one_by_one(rows)[1])
    count = next(reading).num_rows
    archivist.archive(segment)
    segment.on_broker = False
    assert 0 < count < 1000
    assert count + sum(batch.num_rows for batch in reading) == 1000
