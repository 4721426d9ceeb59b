"""A query's rows are the same with sidecars and without, and a sidecar spares what it should."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quire.runtime.errors import QuireError
from quire.spark_source import schema
from quire.spark_source.broker import Broker
from quire.spark_source.options import parse
from quire.spark_source.sidecar import build as build_module
from quire.spark_source.sidecar import choose
from quire.spark_source.source import QuireReader
from quire.spark_source.values import with_value_schema
from quire.tiering.archive import sidecar_of
from quire.wire.message import OutgoingMessage, encode_batch, encode_one
from tests.spark_source.sidecar.topics import KEYS, TIME_MS, TOPIC, build, random_entries, random_options

COLUMNS = list(schema.COLUMNS)


def reader(broker: Any, slice_bytes: int = 1 << 30, **options: str) -> QuireReader:
    parsed = parse({"service_url": broker.url, "topic": "t"} | options)
    made = with_value_schema(replace(parsed, slice_bytes=slice_bytes), Broker(broker.url))
    return pickle.loads(pickle.dumps(QuireReader(made)))  # type: ignore[no-any-return]


def rows(query: QuireReader) -> list[dict[str, Any]]:
    """All rows, in the order of the slices; each batch has exactly the schema that was promised."""
    found: list[dict[str, Any]] = []
    typed = query.options.typed.parts if query.options.typed else {}
    promised = schema.arrow(query.options.columns, {name: part.column.arrow for name, part in typed.items()})
    for partition in pickle.loads(pickle.dumps(query.partitions())):
        for batch in query.read(partition):
            assert batch.num_rows and batch.schema.equals(promised), batch.schema
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def outcome(broker: Any, *size: int, **options: str) -> Any:
    """The rows, or the error's sentence."""
    try:
        return rows(reader(broker, *size, **options))
    except QuireError as error:
        return type(error), str(error)


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_the_same_with_and_without(
    broker: Any, archivist: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(build_module, "GROUP_ROWS", rng.choice([7, 25, 100, 65_536]))
    monkeypatch.setattr(choose, "GAP_BYTES", rng.choice([0, 500, 1 << 20]))
    odd, keys = rng.random() < 0.6, KEYS if rng.random() < 0.5 else KEYS[:6]
    broker.topics[TOPIC] = [
        broker.segment(number, *random_entries(rng, odd=odd, keys=keys), per_block=rng.randint(1, 7))
        for number in (3, 5, 8)
    ]
    for segment in broker.topics[TOPIC][:2]:
        archivist.archive(segment)
    assert build(broker).built == 2
    for _ in range(12):
        options = random_options(rng, COLUMNS)
        size = rng.choice([3000, 1 << 30])
        with_sidecars = outcome(broker, size, **options)
        without = outcome(broker, size, **options, sidecars="ignore")
        assert with_sidecars == without, options
    assert "sidecar" not in caplog.text, "each was believed"


@pytest.mark.parametrize("seed", range(3))
def test_typed_values_are_the_same(
    broker: Any, archivist: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(build_module, "GROUP_ROWS", 20)
    monkeypatch.setattr(choose, "GAP_BYTES", 100)
    definition = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    broker.schemas[TOPIC] = [("JSON", json.dumps(definition))]
    entries, counts = [], []
    for number in range(60):
        content = [
            OutgoingMessage(
                rng.choice([b'{"n": 1}', b'{"n": 2}', b"no json", None]), key=rng.choice("abcdef")
            )
            for _ in range(rng.randint(1, 5))
        ]
        entries.append(encode_batch(content, "p", number, TIME_MS + 1000 * number))
        counts.append(len(content))
    broker.topics[TOPIC] = [broker.segment(3, entries, counts)]
    archivist.archive(broker.topics[TOPIC][0])
    assert build(broker).built == 1
    for bad in ("fail", "null"):
        for more in ({"key": "c"}, {"start": str(TIME_MS + 30_000)}, {"columns": "entry,key"}):
            if bad == "null" and "columns" in more:
                continue
            options = {"value_schema": "auto", "on_bad_value": bad} | more
            assert outcome(broker, **options) == outcome(broker, **options, sidecars="ignore")


# -- what it spares ----------------------------------------------------------------------------------------


@pytest.fixture
def large(broker: Any, archivist: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two archived segments of 1,000 messages each, a second apart; the key of message i is i // 25."""
    monkeypatch.setattr(build_module, "GROUP_ROWS", 125)
    monkeypatch.setattr(choose, "GAP_BYTES", 100_000)
    for ledger_id, first in ((3, 0), (5, 1000)):
        entries = [
            encode_one(
                OutgoingMessage(bytes(1000), key=f"{i // 25:04d}", event_time_ms=TIME_MS + 5 * i),
                "p",
                i,
                TIME_MS + 1000 * i,
            )
            for i in range(first, first + 1000)
        ]
        clock = TIME_MS + 1000 * first
        segment = broker.segment(ledger_id, entries, per_block=20, clock_ms=clock)
        broker.topics.setdefault(TOPIC, []).append(segment)
        archivist.archive(segment)
    assert build(broker).built == 2
    return broker


def drop_objects(broker: Any, archivist: Any) -> None:
    for segment in broker.topics[TOPIC]:
        archivist.store.delete(segment.archive["name"])


def test_a_query_without_values_reads_no_object(large: Any, archivist: Any) -> None:
    expected = rows(reader(large, columns="key,publish_time,message_index,properties", sidecars="ignore"))
    drop_objects(large, archivist)
    query = reader(large, 1 << 20, columns="key,publish_time,message_index,properties")
    assert len(query.partitions()) == 1, "so small are the sidecars of both segments"
    assert rows(query) == expected and len(expected) == 2000
    assert len(rows(reader(large, columns="entry", key="0007"))) == 25


def entries_of(query: QuireReader) -> list[tuple[int, int, int]]:
    slices = [piece for task in query.partitions() for piece in task.value]
    return [(one.origin.ledger_id, one.first_entry, one.end_entry) for one in slices]


def test_slices_without_a_wanted_row_are_no_tasks(large: Any) -> None:
    range_ = {"start": str(TIME_MS + 300_000), "end": str(TIME_MS + 310_000)}
    assert entries_of(reader(large, **range_)) == [(3, 250, 375)]
    assert len(rows(reader(large, **range_))) == 10
    assert entries_of(reader(large, **range_, sidecars="ignore")) == [(3, 0, 1000), (5, 0, 1000)]
    event = {"event_start": str(TIME_MS + 5 * 1100), "event_end": str(TIME_MS + 5 * 1150)}
    assert entries_of(reader(large, **event)) == [(5, 0, 250)]
    assert len(rows(reader(large, **event))) == 50
    assert entries_of(reader(large, key="0047")) == [(5, 125, 250)]
    assert entries_of(reader(large, key="nobody")) == [] and rows(reader(large, key="nobody")) == []
    assert entries_of(reader(large, keys="0003,0077")) == [(3, 0, 125), (5, 875, 1000)]


def test_of_a_slice_only_the_runs_with_wanted_rows_are_read(
    large: Any, archivist: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = reader(large, key="0042")
    (one,) = query.partitions()
    read: list[int] = []
    store = type(archivist.store)
    get_range = store.get_range

    def counted(self: Any, name: str, offset: int, length: int) -> Any:
        if not name.endswith(".parquet"):
            read.append(length)
        return get_range(self, name, offset, length)

    monkeypatch.setattr(store, "get_range", counted)
    assert sum(batch.num_rows for batch in query.read(one)) == 25
    segment = large.topics[TOPIC][1]
    _, *runs = read
    assert sum(runs) <= 2 * 65_536 < segment.archive["bytes"] // 5


def test_keys_that_begin_alike_and_are_longer_than_a_sidecar_keeps(broker: Any, archivist: Any) -> None:
    keys = ["k" * 300 + str(i % 3) for i in range(30)]
    entries = [encode_one(OutgoingMessage(b"v", key=key), "p", i, TIME_MS) for i, key in enumerate(keys)]
    broker.topics[TOPIC] = [broker.segment(3, entries)]
    archivist.archive(broker.topics[TOPIC][0])
    assert build(broker).built == 1
    assert [row["key"].decode() for row in rows(reader(broker, columns="key"))] == keys
    for columns in ("entry", "entry,value"):
        assert [row["entry"] for row in rows(reader(broker, columns=columns, key=keys[1]))] == [
            *range(1, 30, 3)
        ]


# -- what is wrong with a sidecar ----------------------------------------------------------------------------


QUERIES: list[dict[str, str]] = [
    {"columns": "key,entry,publish_time"},
    {"columns": "value", "key": "0012"},
    {"start": str(TIME_MS + 900_000), "end": str(TIME_MS + 1_100_000)},
]


def outcomes(broker: Any) -> list[Any]:
    return [outcome(broker, **options) for options in QUERIES]


def path_of(broker: Any, tmp_path: Path, number: int = 0) -> Path:
    path = tmp_path / "archive" / sidecar_of(broker.topics[TOPIC][number].archive["name"])
    path.chmod(0o600)
    return path


def test_a_damaged_sidecar_is_not_believed_wherever_it_is_damaged(
    large: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = outcomes(large)
    path = path_of(large, tmp_path)
    content = path.read_bytes()
    rng = random.Random(5)
    for at in [0, 3, 4, *(rng.randrange(len(content)) for _ in range(14)), len(content) - 1]:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        assert outcomes(large) == expected, at
    assert "reading an object without its sidecar: a sidecar's rows do not match" in caplog.text
    assert "reading an object without its sidecar: a sidecar's footer does not match" in caplog.text
    for size in (0, 3, 11, 12, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        assert outcomes(large) == expected, size


def test_a_sidecar_of_another_object_is_not_believed(
    large: Any, tmp_path: Path, archivist: Any, caplog: pytest.LogCaptureFixture
) -> None:
    expected = outcomes(large)
    path_of(large, tmp_path).write_bytes(path_of(large, tmp_path, 1).read_bytes())
    assert outcomes(large) == expected
    assert "belongs to another object" in caplog.text


def test_a_file_of_parquet_that_is_no_sidecar_is_not_believed(large: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    expected = outcomes(large)
    pq.write_table(pq.read_table(path_of(large, tmp_path)), path_of(large, tmp_path))
    assert outcomes(large) == expected
    pq.write_table(pa.table({"a": [1]}), path_of(large, tmp_path))
    assert outcomes(large) == expected


def test_a_sidecar_that_vanishes_between_plan_and_read(large: Any, tmp_path: Path) -> None:
    queries = [reader(large, **options) for options in QUERIES]
    expected = [rows(query) for query in queries]
    plans = [query.partitions() for query in queries]
    for number in (0, 1):
        path_of(large, tmp_path, number).unlink()
    found = [
        [row for part in plan for batch in query.read(part) for row in batch.to_pylist()]
        for query, plan in zip(queries, plans, strict=True)
    ]
    assert found == expected


def test_a_driver_out_of_reach_of_the_archive_plans_without(
    large: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from quire.runtime.errors import Unavailable
    from quire.spark_source.sidecar import prune

    def away(*_: Any) -> Any:
        raise Unavailable("no route to the archive")

    monkeypatch.setattr(prune, "opened", away)
    query = reader(large, start=str(TIME_MS + 300_000), end=str(TIME_MS + 310_000))
    assert entries_of(query) == [(3, 0, 1000), (5, 0, 1000)] and len(rows(query)) == 10
    assert "planning without some sidecars, because they cannot be read: no route" in caplog.text
