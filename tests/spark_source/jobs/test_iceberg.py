"""A topic as an Iceberg table: all of it, once, wherever copies are killed and however many there are."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from quire.cli.spark import command
from quire.runtime.errors import ConfigurationError, NotFound, Unavailable
from quire.spark_source.jobs import iceberg as module
from quire.spark_source.jobs import iceberg_table
from quire.spark_source.jobs.iceberg import Copied, Into, copy, status
from quire.spark_source.jobs.iceberg_table import CopyTable, open_catalog
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_batch, encode_one, seal

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"


def entries(first: int, count: int) -> list[bytes]:
    return [
        encode_one(
            OutgoingMessage(b"%09d" % i, key=f"k{i % 3}", properties={"n": str(i)}), "p", i, TIME_MS + i
        )
        for i in range(first, first + count)
    ]


@pytest.fixture
def topic(broker: Any, archivist: Any) -> Any:
    """An archived, a sealed and an active segment: messages 0-99, 100-199, 200-249."""
    broker.topics[TOPIC] = [
        broker.segment(3, entries(0, 100)),
        broker.segment(5, entries(100, 100)),
        broker.segment(
            9, [encode_batch([OutgoingMessage(b"%09d" % i) for i in range(200, 250)], "q", 0, TIME_MS)], [50]
        ),
    ]
    archivist.archive(broker.topics[TOPIC][0])
    return broker


@pytest.fixture
def into(tmp_path: Path) -> Into:
    return Into(str(tmp_path / "lake"), "shop.orders")


def run(broker: Any, into: Into, **more: Any) -> Copied:
    return copy({"service_url": broker.url, "topic": "t"}, into, **more)


def rows(into: Into) -> pa.Table:
    """As readers see them."""
    return open_catalog(into.catalog).load_table(into.table).scan().to_arrow().sort_by("message_index")


def numbers(into: Into) -> list[int]:
    return [int(value) for value in rows(into)["value"].to_pylist()]


def test_all_of_it_with_its_envelope(topic: Any, into: Into) -> None:
    done = run(topic, into)
    assert (done.rows, done.slices, done.bad, done.untyped) == (250, 3, 0, "")
    found = rows(into)
    assert numbers(into) == list(range(250)) and found["message_index"].to_pylist() == list(range(250))
    assert found["key"].to_pylist()[:4] == [b"k0", b"k1", b"k2", b"k0"]
    assert found["properties"].to_pylist()[7] == [("n", "7")] and found["topic"].to_pylist()[0] == TOPIC
    assert found["publish_time"].to_pylist()[1].timestamp() * 1000 == TIME_MS + 1
    assert found["error"].null_count == 250 and "typed" not in found.column_names
    summaries = [
        one.summary.additional_properties
        for one in open_catalog(into.catalog).load_table(into.table).snapshots()
    ]
    assert [one["quire.place"] for one in summaries] == [
        f"{TOPIC} ..3:100",
        f"{TOPIC} 3:100..5:100",
        f"{TOPIC} 5:100..9:1",
    ]


@pytest.mark.parametrize("name", [None, "lake"])
def test_readers_find_the_table_under_the_name_of_the_catalog(
    topic: Any, tmp_path: Path, name: str | None
) -> None:
    """In a database each name of a catalog has its own tables."""
    root = tmp_path / "lake"
    run(topic, Into(str(root), "shop.orders", None if name is None else {"name": name}))
    place = {"uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}"}
    found = load_catalog(name or "quire", type="sql", **place).load_table("shop.orders")
    assert len(found.scan().to_arrow()) == 250


def test_it_goes_on_where_it_ended(topic: Any, into: Into) -> None:
    run(topic, into)
    assert run(topic, into).rows == 0
    topic.topics[TOPIC].append(topic.segment(12, entries(250, 30), state="active"))
    assert run(topic, into, dry_run=True).slices_left == 1
    assert run(topic, into).rows == 30 and numbers(into) == list(range(280))


def test_a_dry_run_makes_nothing(topic: Any, into: Into) -> None:
    assert run(topic, into, dry_run=True).slices_left == 3
    assert not open_catalog(into.catalog).table_exists(into.table)


def test_an_empty_topic(broker: Any, into: Into) -> None:
    broker.topics[TOPIC] = []
    assert run(broker, into).rows == 0 and len(rows(into)) == 0


class Killed(BaseException):
    """As a kill: nothing that comes after it runs."""


def dying(steps: Any, at: int, work: Any) -> Any:
    def step(*arguments: Any, **more: Any) -> Any:
        if next(steps) == at:
            raise Killed
        result = work(*arguments, **more)
        if next(steps) == at:
            raise Killed
        return result

    return step


@pytest.mark.parametrize("resync", [False, True], ids=["copy", "resync"])
@pytest.mark.parametrize("at", range(19))
def test_killed_at_any_step_it_goes_on(
    topic: Any, into: Into, monkeypatch: pytest.MonkeyPatch, at: int, resync: bool
) -> None:
    if resync:
        run(topic, into)
    steps = iter(range(10_000))
    catalog = type(open_catalog(into.catalog))
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_file", dying(steps, at, module.write_file))
        patched.setattr(catalog, "commit_table", dying(steps, at, catalog.commit_table))
        patched.setattr(catalog, "create_table", dying(steps, at, catalog.create_table))
        try:
            run(topic, into, resync=resync)
            assert next(steps) == 14, "so many steps, and then it is not killed"
        except Killed:
            seen = numbers(into) if open_catalog(into.catalog).table_exists(into.table) else []
            assert seen == list(range(len(seen))), "in order and once, whenever one looks"
    topic.topics[TOPIC].append(topic.segment(12, entries(250, 30), state="active"))
    run(topic, into)
    assert numbers(into) == list(range(280))


@pytest.mark.parametrize("was_made", [False, True])
def test_a_catalog_that_does_not_say_whether_it_has_committed(
    topic: Any, into: Into, monkeypatch: pytest.MonkeyPatch, was_made: bool
) -> None:
    run(topic, into, dry_run=True)
    catalog = type(open_catalog(into.catalog))
    commit = catalog.commit_table
    asked = iter(range(1000))

    def vague(*arguments: Any) -> Any:
        if next(asked) != 1:
            return commit(*arguments)
        if was_made:
            commit(*arguments)
        raise CommitStateUnknownException("the connection was lost")

    monkeypatch.setattr(catalog, "commit_table", vague)
    if was_made:
        assert run(topic, into).rows == 250
    else:
        with pytest.raises(Unavailable, match="the connection was lost"):
            run(topic, into)
        assert numbers(into) == list(range(100))
        run(topic, into)
    assert numbers(into) == list(range(250))


@pytest.mark.parametrize("resync", [False, True], ids=["copy", "resync"])
@pytest.mark.parametrize("at", range(4))
def test_a_commit_that_a_proxy_sends_again_is_made_once(
    topic: Any, into: Into, monkeypatch: pytest.MonkeyPatch, at: int, resync: bool
) -> None:
    """The answer to the first one is lost, and the second one is refused, for the first was made."""
    run(topic, into, dry_run=not resync)
    catalog = type(open_catalog(into.catalog))
    commit = catalog.commit_table
    asked = iter(range(1000))

    def sent_twice(*arguments: Any) -> Any:
        answer = commit(*arguments)
        if next(asked) == at:
            raise CommitFailedException("409: branch main has changed")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", sent_twice)
        done = run(topic, into, resync=resync)
    assert (done.rows, done.slices, done.of_others) == (250, 3, 0)
    assert numbers(into) == list(range(250))


def test_two_copies_at_once(broker: Any, into: Into) -> None:
    broker.topics[TOPIC] = 3
    for i in range(3):
        broker.next_index = 0
        broker.topics[f"{TOPIC}-partition-{i}"] = [
            broker.segment(10 * i + j, entries(1000 * i + 20 * j, 20)) for j in range(4)
        ]
    with ThreadPoolExecutor(3) as pool:
        done = [one.result() for one in [pool.submit(run, broker, into) for _ in range(3)]]
    expected = sorted(1000 * i + n for i in range(3) for n in range(80))
    assert sorted(numbers(into)) == expected
    assert sum(one.rows for one in done) == 240 and sum(one.slices for one in done) == 12


def test_who_is_refused_looks_again(topic: Any, into: Into, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reading and committing, another copy takes the slice; or only another change is made."""
    run(topic, into)
    topic.topics[TOPIC].append(topic.segment(12, entries(250, 30), state="active"))
    write = module.write_file
    others: list[Copied] = []

    def overtaken(*arguments: Any) -> Any:
        found = write(*arguments)
        if not others:
            others.append(Copied("", ""))
            others.append(run(topic, into))
        return found

    monkeypatch.setattr(module, "write_file", overtaken)
    done = run(topic, into)
    assert (others[1].rows, done.rows, done.of_others) == (30, 0, 1)
    assert numbers(into) == list(range(280))
    files = list(Path(into.catalog).rglob("data/*.parquet"))
    assert len(files) == 4, "the file of the slower one is gone"
    topic.topics[TOPIC].append(topic.segment(15, entries(280, 5), state="active"))
    commit = iceberg_table.CopyTable.commit

    def after_a_change(self: CopyTable, *arguments: Any) -> bool:
        open_catalog(into.catalog).load_table(into.table).transaction().set_properties(
            {"a": "b"}
        ).commit_transaction()
        return commit(self, *arguments)

    monkeypatch.setattr(iceberg_table.CopyTable, "commit", after_a_change)
    assert run(topic, into).rows == 5 and numbers(into) == list(range(285))


def test_the_library_does_not_retry_by_itself(topic: Any, into: Into) -> None:
    run(topic, into)
    one, other = (open_catalog(into.catalog).load_table(into.table) for _ in range(2))
    some = rows(into).slice(0, 1).cast(one.schema().as_arrow())
    one.append(some)
    with pytest.raises(CommitFailedException):
        other.append(some)
    open_catalog(into.catalog).load_table(into.table).transaction().remove_properties(
        "commit.retry.num-retries"
    ).commit_transaction()
    run(topic, into)
    assert open_catalog(into.catalog).load_table(into.table).properties["commit.retry.num-retries"] == "0"


# -- typed values ----------------------------------------------------------------------------------------


def schema(*fields: tuple[str, Any]) -> str:
    every = [{"name": name, "type": ["null", kind], "default": None} for name, kind in fields]
    return json.dumps({"type": "record", "name": "R", "fields": every})


def json_entries(first: int, values: list[Any]) -> list[bytes]:
    texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in values]
    return [encode_one(OutgoingMessage(one), "p", i, TIME_MS) for i, one in enumerate(texts, first)]


def test_typed_columns_grow_by_union(broker: Any, into: Into) -> None:
    broker.schemas[TOPIC] = [("JSON", schema(("a", "int")))]
    broker.topics[TOPIC] = [broker.segment(3, json_entries(0, [{"a": 1}, {"a": 2}]))]
    run(broker, into)
    broker.schemas[TOPIC].append(("JSON", schema(("a", "long"), ("b", "string"))))
    broker.topics[TOPIC].append(broker.segment(5, json_entries(2, [{"a": 1 << 40, "b": "x"}])))
    assert run(broker, into).untyped == ""
    broker.schemas[TOPIC].append(("JSON", schema(("c", "double"))))
    broker.topics[TOPIC].append(broker.segment(7, json_entries(3, [{"c": 0.5}])))
    run(broker, into)
    nothing = {"a": None, "b": None, "c": None}
    assert rows(into)["typed"].to_pylist() == [
        nothing | {"a": 1},
        nothing | {"a": 2},
        nothing | {"a": 1 << 40, "b": "x"},
        nothing | {"c": 0.5},
    ]


def test_a_schema_that_does_not_unite_leaves_bytes_and_says_why(broker: Any, into: Into) -> None:
    broker.schemas[TOPIC] = [("JSON", schema(("a", "int")))]
    broker.topics[TOPIC] = [broker.segment(3, json_entries(0, [{"a": 1}]))]
    run(broker, into)
    broker.schemas[TOPIC].append(("JSON", schema(("a", "string"))))
    broker.topics[TOPIC].append(broker.segment(5, json_entries(1, [{"a": "x"}])))
    done = run(broker, into)
    assert "typed.a" in done.untyped and done.bad == 1
    found = rows(into)
    assert found["value"].to_pylist()[1] == b'{"a": "x"}' and found["typed"].to_pylist()[1] is None
    assert "does not fit the columns" in found["error"].to_pylist()[1]


def test_bad_rows_are_kept_with_their_error(broker: Any, into: Into) -> None:
    encrypted = pb.MessageMetadata(producer_name="p", sequence_id=2, publish_time=TIME_MS)
    encrypted.encryption_keys.add(key="k", value=b"v")
    secret = seal(encrypted, b'{"a": 5}')
    null = encode_one(OutgoingMessage(None, key="gone"), "p", 3, TIME_MS)
    broker.schemas[TOPIC] = [("JSON", schema(("a", "int")))]
    some = [
        *json_entries(0, [{"a": 1}, b"no json", {"a": "text"}]),
        secret,
        null,
        *json_entries(5, [{"a": 2}]),
    ]
    broker.topics[TOPIC] = [broker.segment(3, some)]
    done = run(broker, into)
    assert (done.rows, done.bad) == (6, 3)
    found = rows(into)
    assert found["typed"].to_pylist() == [{"a": 1}, None, None, None, None, {"a": 2}]
    errors = found["error"].to_pylist()
    assert [one is None for one in errors] == [True, False, False, False, True, True]
    assert "encrypted" in errors[3] and found["value"].to_pylist()[3] == secret
    assert found["value"].to_pylist()[1] == b"no json"


# -- around it -------------------------------------------------------------------------------------------


def test_what_retention_took_is_told(topic: Any, into: Into) -> None:
    run(topic, into)
    topic.next_index += 50
    topic.topics[TOPIC] = [topic.segment(20, entries(300, 10), state="active")]
    with pytest.raises(
        NotFound, match=f"messages 250 to 299 of {TOPIC} were trimmed before they were copied"
    ):
        run(topic, into)
    reporting = {"service_url": topic.url, "topic": "t", "on_data_loss": "report"}
    assert copy(reporting, into).rows == 10


@pytest.mark.parametrize("moved_by", ["this version", "an older version"])
def test_what_was_copied_may_be_trimmed(topic: Any, into: Into, archivist: Any, moved_by: str) -> None:
    run(topic, into)
    if moved_by == "an older version":
        table = open_catalog(into.catalog).load_table(into.table)
        table.transaction().remove_properties(f"quire.index.{TOPIC}").commit_transaction()
    topic.topics[TOPIC].append(topic.segment(20, entries(250, 10)))
    topic.topics[TOPIC].append(topic.segment(30, entries(260, 5), state="active"))
    del topic.topics[TOPIC][:3]
    if moved_by == "an older version":
        with pytest.raises(NotFound, match="messages from 9:1 on were trimmed"):
            run(topic, into, archived=True)
        return
    assert run(topic, into, archived=True).rows == 0
    archivist.archive(topic.topics[TOPIC][0])
    assert run(topic, into, archived=True).rows == 10
    del topic.topics[TOPIC][:]
    topic.trimmed[TOPIC] = 265
    with pytest.raises(
        NotFound, match=f"messages 260 to 264 of {TOPIC} were trimmed before they were copied"
    ):
        run(topic, into)
    assert numbers(into) == list(range(260))


def test_a_killed_copy_knows_the_end_of_each_segment(
    topic: Any, into: Into, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_file", dying(iter(range(100)), 2, module.write_file))
        with pytest.raises(Killed):
            run(topic, into)
    assert numbers(into) == list(range(100))
    del topic.topics[TOPIC][0]
    run(topic, into)
    assert numbers(into) == list(range(250))


def test_a_table_has_one_topic(topic: Any, into: Into) -> None:
    run(topic, into)
    topic.topics["persistent://public/default/u"] = []
    with pytest.raises(ConfigurationError, match="is the copy of persistent://public/default/t"):
        copy({"service_url": topic.url, "topic": "u"}, into)
    catalog = open_catalog(into.catalog)
    catalog.create_table("shop.other", schema=pa.schema([("a", pa.int32())]))
    with pytest.raises(ConfigurationError, match="not the copy of a topic"):
        run(topic, Into(into.catalog, "shop.other"))
    with pytest.raises(ConfigurationError, match=r"NAMESPACE.TABLE"):
        run(topic, Into(into.catalog, "orders"))
    with pytest.raises(ConfigurationError, match="continues at the end"):
        copy({"service_url": topic.url, "topic": "t", "start": "latest"}, into)


def test_status(topic: Any, into: Into) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        status({"service_url": topic.url, "topic": "t"}, into)
    run(topic, into)
    topic.topics[TOPIC].append(topic.segment(12, entries(250, 30), state="active"))
    table, [one] = status({"service_url": topic.url, "topic": "t"}, into)
    assert (table.rows, one.copied_to, one.topic_ends, one.entries_behind) == (250, "9:1", "12:30", 30)


def test_no_catalog() -> None:
    with pytest.raises(Unavailable, match=r"catalog http://127\.0\.0\.1:9"):
        open_catalog("http://127.0.0.1:9")


def test_the_command(topic: Any, into: Into) -> None:
    def quire_spark(*words: str) -> Any:
        more = ["--admin-url", topic.url, "--catalog", into.catalog, *words]
        done = CliRunner().invoke(command, ["iceberg", "t", into.table, *more])
        assert done.exit_code == 0, done.output + repr(done.exception)
        return done.output

    assert "3 slices" in quire_spark("--dry-run")
    assert json.loads(quire_spark("--json"))["rows"] == 250
    assert "has 250 rows" in quire_spark("--status") and "0 entries behind" in quire_spark("--status")
    assert "copied 250 messages" in quire_spark("--resync") and numbers(into) == list(range(250))
