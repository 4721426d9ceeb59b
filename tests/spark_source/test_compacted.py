"""Compacted reading leaves what the broker's compaction would, whatever lies in segments, batches and slices."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from quire.runtime.errors import ConfigurationError, NotFound
from quire.serving.topic.compaction import compacting
from quire.spark_source import compacted
from quire.spark_source.compacted import LastOfKey, TooManyKeys
from quire.spark_source.options import for_batch, for_stream
from quire.spark_source.source import QuireReader
from quire.spark_source.task import read_slice
from quire.wire import message
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_batch, encode_one

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"


def reader(broker: Any, **options: str) -> QuireReader:
    given = {"service_url": broker.url, "topic": "t", "compacted": "true", "slice_bytes": "1MiB"} | options
    return QuireReader(for_batch(given))


def read(broker: Any, **options: str) -> list[dict[str, Any]]:
    rows = reader(broker, **options)
    return [row for part in rows.partitions() for batch in rows.read(part) for row in batch.to_pylist()]


def one(number: int, key: str | None, value: bytes | None) -> bytes:
    return encode_one(OutgoingMessage(value, key=key), "p", number, TIME_MS + number)


def random_entries(dice: random.Random, count: int) -> tuple[list[bytes], list[int]]:
    """Single messages and batches, with keys, deletes, empty values, empty keys and none."""

    def outgoing() -> OutgoingMessage:
        key = dice.choice([None, "", *(f"k{i}" for i in range(12))])
        return OutgoingMessage(dice.choice([None, b"", *(dice.randbytes(9) for _ in range(6))]), key=key)

    entries, counts = [], []
    for number in range(count):
        if dice.random() < 0.5:
            entries.append(message.encode_one(outgoing(), "p", number, TIME_MS + number))
            counts.append(1)
        else:
            some = [outgoing() for _ in range(dice.randint(1, 9))]
            codec = dice.choice([pb.NONE, pb.ZSTD, pb.LZ4])
            entries.append(encode_batch(some, "p", number, TIME_MS + number, codec))
            counts.append(len(some))
    return entries, counts


def by_the_broker(entries: list[bytes]) -> list[tuple[str | None, bytes | None]]:
    """Key and value of what the broker's compaction leaves."""
    rule = compacting.LastOfKey()
    for entry in entries:
        rule.note(entry)
    left = [found[0] for entry in entries if (found := rule.retained(entry)) is not None]
    return [(m.key, m.payload) for entry in left for m in message.decode(entry) if not m.compacted_out]


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_are_those_that_a_compaction_leaves(
    broker: Any, archivist: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(compacted, "NOTED_ROWS_MAX", 20)
    dice = random.Random(seed)
    entries, counts = random_entries(dice, 60)
    cut = dice.randint(1, 59)
    broker.topics[TOPIC] = [
        broker.segment(1, entries[:cut], counts[:cut], per_block=4),
        broker.segment(2, entries[cut:], counts[cut:], per_block=4),
    ]
    archivist.archive(broker.topics[TOPIC][0])
    found = read(broker, columns="value,key", batch_rows="7")
    pairs = [(None if row["key"] is None else row["key"].decode(), row["value"]) for row in found]
    assert pairs == by_the_broker(entries)
    assert [*found[0]] == ["value", "key"]


def test_the_last_message_of_a_key_is_the_last_of_the_range(broker: Any) -> None:
    entries = [one(0, "a", b"1"), one(1, "b", b"1"), one(2, "a", b"2"), one(3, "b", None), one(4, None, b"x")]
    broker.topics[TOPIC] = [broker.segment(1, entries[:2]), broker.segment(2, entries[2:])]

    def values(**options: str) -> list[tuple[bytes, bytes]]:
        return [(row["key"], row["value"]) for row in read(broker, **options)]

    assert values() == [(b"a", b"2"), (None, b"x")]
    assert values(end="2:0") == [(b"a", b"1"), (b"b", b"1")]
    assert values(end=str(TIME_MS + 3)) == [(b"b", b"1"), (b"a", b"2")]
    assert values(start="2:1") == [(None, b"x")]


def test_partitions_have_keys_of_their_own_and_are_a_task_each(broker: Any) -> None:
    broker.topics |= {
        TOPIC: 2,
        f"{TOPIC}-partition-0": [broker.segment(n, [one(n, "a", b"%d" % n)]) for n in (1, 2)],
        f"{TOPIC}-partition-1": [broker.segment(n, [one(n, "a", b"%d" % n)]) for n in (3, 4)],
    }
    assert [len(task.value) for task in reader(broker).partitions()] == [2, 2]
    assert [(row["partition"], row["value"]) for row in read(broker)] == [(0, b"2"), (1, b"4")]


def test_what_only_the_brokers_compaction_has_kept_is_missed(
    broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.topics[TOPIC] = [broker.segment(n, [one(n, f"k{n}", b"v")]) for n in (1, 2)]
    del broker.topics[TOPIC][0]
    assert len(read(broker)) == 1, "nothing was compacted, so what is there is all"
    broker.compacted.add(TOPIC)
    with pytest.raises(
        NotFound, match=f"{TOPIC} begins with message 1; earlier messages may be in the result"
    ):
        read(broker)
    assert len(read(broker, on_data_loss="report")) == 1
    assert "earlier messages may be in the result of its compaction" in caplog.text
    assert len(read(broker, start=str(TIME_MS))) == 1, "it was not asked for"


def test_too_many_keys_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted, "KEYS_BYTES_MAX", 100_000)
    last = LastOfKey()
    keys = pa.array([b"key %d" % n for n in range(10_000)], pa.binary())
    columns = [keys, pa.array(range(10_000), pa.int64()), pa.repeat(False, 10_000)]
    batch = pa.RecordBatch.from_arrays(columns, names=list(compacted.COLUMNS))
    with pytest.raises(TooManyKeys, match="more keys than a task can hold"):
        for _ in range(100):
            last.note(batch)


def test_where_compacted_reading_has_no_sense(broker: Any) -> None:
    given = {"service_url": broker.url, "topic": "t", "compacted": "true"}
    with pytest.raises(ConfigurationError, match="a stream cannot know"):
        for_stream(given)
    broker.topics[TOPIC] = [broker.segment(1, [one(0, "a", b"1")])]
    rows = reader(broker)
    with pytest.raises(ConfigurationError, match=r"reading a topic with spark\.read"):
        list(read_slice(rows.partitions()[0].value[0], rows.options))
