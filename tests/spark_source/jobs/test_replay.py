"""A replay writes each row once, wherever it is killed; filters and keys with a real Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from click.testing import CliRunner

from quire.cli.spark import command
from quire.runtime.errors import ConfigurationError, CorruptionError, InUse
from quire.runtime.rest import Admin
from quire.spark_source.jobs import replay as module
from quire.spark_source.jobs import run as runs
from quire.spark_source.jobs import state
from quire.spark_source.jobs.replay import Replayed, Wanted, paced, replay
from quire.spark_source.jobs.slices import Piece
from quire.wire.message import OutgoingMessage, encode_batch, encode_one
from tests.serving.conftest import in_thread
from tests.spark_source.jobs.conftest import Target

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"
AGAIN = "persistent://public/default/again"


@pytest.fixture
def topic(broker: Any, archivist: Any) -> Any:
    """Messages 0-59 and 60-119 in segments, of which one is archived, and batches 120-179."""

    def message(i: int) -> OutgoingMessage:
        return OutgoingMessage(b"%06d" % i, key=f"k{i % 3}", properties={"n": str(i)}, event_time_ms=1000 + i)

    singles = [encode_one(message(i), "p", i, TIME_MS + i) for i in range(120)]
    batches = [
        encode_batch([message(i + j) for j in range(20)], "q", i, TIME_MS + i) for i in range(120, 180, 20)
    ]
    broker.topics[TOPIC] = [
        broker.segment(3, singles[:60]),
        broker.segment(5, singles[60:]),
        broker.segment(9, batches, [20] * 3, state="active"),
    ]
    archivist.archive(broker.topics[TOPIC][0])
    return broker


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def wanted(broker: Any, target: Target, **more: Any) -> Wanted:
    source = {"service_url": broker.url, "topic": "t", **more.pop("source", {})}
    return Wanted(source, {"service_url": target.url, "topic": "again", "batch_messages_max": "7"}, **more)


async def values(target: Target) -> list[int]:
    return [int(one.payload or b"-1") for one in await target.read(AGAIN)]


async def test_all_that_a_message_has(topic: Any, target: Target, out: Path) -> None:
    await in_thread(lambda: enable(target))
    done = await in_thread(lambda: replay(out, wanted(topic, target)))
    assert (done.rows, done.repeated, done.slices, done.resumed) == (180, 0, 3, False)
    found = await target.read(AGAIN)
    assert [int(one.payload or b"") for one in found] == list(range(180))
    assert {(one.key, one.properties["n"], one.event_time_ms) for one in found} == {
        (f"k{i % 3}", str(i), 1000 + i) for i in range(180)
    }
    again = await in_thread(lambda: replay(out, wanted(topic, target)))
    assert (again.rows, again.slices, again.resumed) == (0, 0, True)
    assert await values(target) == list(range(180))


def enable(target: Target) -> None:
    """The topic is there, and drops duplicates."""
    Admin(target.url).put("/admin/v2/persistent/public/default/again")


async def test_a_range(topic: Any, target: Target, out: Path) -> None:
    await in_thread(lambda: enable(target))
    span = {"start": str(TIME_MS + 50), "end": str(TIME_MS + 70)}
    done = await in_thread(lambda: replay(out, wanted(topic, target, source=span)))
    assert done.rows == 20 and await values(target) == list(range(50, 70))


async def test_typed_values_are_encoded_by_the_schema_of_the_other_topic(
    broker: Any, target: Target, out: Path
) -> None:
    def version(*names: str) -> tuple[str, str]:
        fields = [{"name": name, "type": ["null", "int"], "default": None} for name in names]
        return "JSON", json.dumps({"type": "record", "name": "R", "fields": fields})

    broker.schemas[TOPIC] = [version("a"), version("a", "b")]
    texts = [b'{"a": 1}', b'{"a": 2, "b": 3}', b'{"b": 4}']
    some = [encode_one(OutgoingMessage(text), "p", i, TIME_MS) for i, text in enumerate(texts)]
    broker.topics[TOPIC] = [broker.segment(3, some)]
    await in_thread(lambda: enable(target))
    wish = wanted(broker, target, source={"value_schema": "auto"})
    with pytest.raises(ConfigurationError, match="has no schema"):
        await in_thread(lambda: replay(out, wish))
    wish = replace(wish, target={**wish.target, "register_schema": "true"})
    assert (await in_thread(lambda: replay(out, wish))).rows == 3
    found = await target.read(AGAIN)
    values = [json.loads(one.payload or b"") for one in found]
    assert values == [{"a": 1, "b": None}, {"a": 2, "b": 3}, {"a": None, "b": 4}]
    assert {one.schema_version for one in found} == {bytes(8)}


async def test_what_came_later_is_not_of_the_run(topic: Any, target: Target, out: Path) -> None:
    await in_thread(lambda: enable(target))
    await in_thread(lambda: replay(out, wanted(topic, target)))
    topic.topics[TOPIC][2].state = "sealed"
    topic.topics[TOPIC].append(topic.segment(12, [encode_one(OutgoingMessage(b"999"), "p", 999, TIME_MS)]))
    assert (await in_thread(lambda: replay(out, wanted(topic, target)))).rows == 0


class Killed(BaseException):
    """As a kill: nothing that comes after it runs."""


@pytest.mark.parametrize("at", range(22))
async def test_killed_at_any_step_it_is_finished_by_the_next(
    topic: Any, target: Target, out: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    await in_thread(lambda: enable(target))
    steps = iter(range(10_000))

    def dying(work: Any) -> Any:
        def step(*arguments: Any) -> Any:
            if next(steps) == at:
                raise Killed
            result = work(*arguments)
            if next(steps) == at:
                raise Killed
            return result

        return step

    def torn(batches: Any) -> Iterator[pa.RecordBatch]:
        """Rows that end in the middle."""
        for batch in batches:
            yield batch.slice(0, 30)
            if next(steps) == at:
                raise Killed
            yield batch.slice(30)

    with monkeypatch.context() as patched:
        patched.setattr(module.topic, "prepare", dying(module.topic.prepare))
        patched.setattr(state, "store", dying(state.store))
        write = dying(module.write)
        patched.setattr(module, "write", lambda task, batches: write(task, torn(batches)))
        patched.setattr(runs.Run, "finish", dying(runs.Run.finish))
        try:
            first = await in_thread(lambda: replay(out, wanted(topic, target)))
            assert first.rows == 180, "not killed"
        except Killed:
            found = await values(target)
            assert len(found) == len({*found})
    await in_thread(lambda: replay(out, wanted(topic, target)))
    assert await values(target) == list(range(180))


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_run_goes_on_though_the_topic_was_given_partitions(
    topic: Any, target: Target, out: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Targets with as many partitions as the source, and others: each row goes where the first call sent it."""
    topic.topics[TOPIC], topic.topics[f"{TOPIC}-partition-0"] = 1, topic.topics[TOPIC]
    admin, path = Admin(target.url), "/admin/v2/persistent/public/default/again/partitions"
    await in_thread(lambda: admin.put(path, partitions))
    with monkeypatch.context() as patched:
        patched.setattr(runs.Run, "finish", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            await in_thread(lambda: replay(out, wanted(topic, target)))
    await in_thread(lambda: admin.post(path, 5))
    done = await in_thread(lambda: replay(out, wanted(topic, target)))
    assert (done.rows, done.repeated) == (180, 60)
    found = [one for i in range(5) for one in await target.read(f"{AGAIN}-partition-{i}")]
    assert sorted(int(one.payload or b"") for one in found) == list(range(180))


def test_a_run_of_an_older_version_goes_where_rows_go_now(out: Path) -> None:
    with state.lock_directory(out, "job"):
        now = runs.Routes(4, False)
        assert runs.begin(out, {"a": 1}, "x", list).routes(now) == now
        (out / "_quire" / "run.json").unlink()
        runs.begin(out, {"a": 1}, "x", list, runs.Routes(2, True))
        again = runs.begin(out, {"a": 1}, "x", list, now)
        assert again.routes(now) == runs.Routes(2, True)
        with pytest.raises(ConfigurationError, match="had 2 partitions when this run began, but has 1"):
            again.routes(runs.Routes(1, False))


@pytest.mark.parametrize("hours", [-1, -7])
def test_a_clock_that_went_back_proves_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    piece = Piece(TOPIC, 3, 0, 10, (0, 0), None)
    with state.lock_directory(out, "job"):
        run = runs.begin(out, {"a": 1}, "x", lambda: [piece])
        run.check_remembered()
        now = runs._now_ms()
        monkeypatch.setattr(runs, "_now_ms", lambda: now + hours * 3_600_000)
        with pytest.raises(ConfigurationError, match=r"clock is \d+ minutes behind .*--accept-copies"):
            run.check_remembered()


def test_a_log_whose_last_line_is_torn(out: Path, topic: Any) -> None:
    with state.lock_directory(out, "job"):
        run = runs.begin(out, {"a": 1}, "x", list)
        run.finish(0, 10, 100, 0)
        with (out / "_quire" / "done.log").open("ab") as log:
            log.write(b"[1, 10")
        again = runs.begin(out, {"a": 1}, "x", list)
        assert [*again.done] == [0] and again.name == run.name
        again.finish(1, 5, 5, 0)
        assert [*runs.begin(out, {"a": 1}, "x", list).done] == [0, 1]
        (out / "_quire" / "done.log").write_bytes(b"nonsense\n")
        with pytest.raises(CorruptionError, match="damaged"):
            runs.begin(out, {"a": 1}, "x", list)


async def test_a_run_that_stood_still_for_long_is_not_gone_on_with_silently(
    topic: Any, target: Target, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_thread(lambda: enable(target))
    with monkeypatch.context() as patched:
        patched.setattr(runs.Run, "finish", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            await in_thread(lambda: replay(out, wanted(topic, target)))
    now = runs._now_ms()
    monkeypatch.setattr(runs, "_now_ms", lambda: now + runs.FORGOTTEN_MS + 1000)
    with pytest.raises(ConfigurationError, match="accept-copies"):
        await in_thread(lambda: replay(out, wanted(topic, target)))
    await in_thread(lambda: replay(out, wanted(topic, target, accept_copies=True)))
    assert await values(target) == list(range(180))


async def test_another_run_in_the_same_directory(topic: Any, target: Target, out: Path) -> None:
    await in_thread(lambda: enable(target))
    await in_thread(lambda: replay(out, wanted(topic, target)))
    with pytest.raises(ConfigurationError, match="another source"):
        await in_thread(lambda: replay(out, wanted(topic, target, source={"start": "latest"})))
    with state.lock_directory(out, "job"), pytest.raises(InUse):
        await in_thread(lambda: replay(out, wanted(topic, target)))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"where": "true"}, "needs a Spark session"),
        ({"rows_per_second": 0.0}, "not greater than 0"),
        ({"source": {"columns": "key"}}, "whole messages"),
    ],
)
def test_what_makes_no_sense(topic: Any, out: Path, more: Any, sentence: str) -> None:
    source = {"service_url": topic.url, "topic": "t", **more.pop("source", {})}
    with pytest.raises(ConfigurationError, match=sentence):
        replay(out, Wanted(source, {"service_url": topic.url, "topic": "again"}, **more))


def test_into_itself(topic: Any, out: Path) -> None:
    same = {"service_url": topic.url, "topic": "t"}
    with pytest.raises(ConfigurationError, match="same topic"):
        replay(out, Wanted(same, same))


def test_a_pace_changes_no_row() -> None:
    batches = [pa.RecordBatch.from_pydict({"value": list(range(i, i + 40))}) for i in range(0, 120, 40)]
    begun = time.monotonic()
    found = [value for batch in paced(batches, 400) for value in batch.column("value").to_pylist()]
    assert found == list(range(120)) and 0.25 < time.monotonic() - begun < 5


async def test_the_command(topic: Any, target: Target, out: Path) -> None:
    def quire_spark(*words: str) -> Any:
        more = ["--admin-url", topic.url, "--to-url", target.url]
        done = CliRunner().invoke(command, ["replay", "t", "again", str(out), *more, *words])
        assert done.exit_code == 0, done.output + repr(done.exception)
        return done.output

    assert "3 slices" in await in_thread(lambda: quire_spark("--dry-run"))
    shown = json.loads(await in_thread(lambda: quire_spark("--json", "--enable-deduplication")))
    assert shown["rows"] == 180 and await values(target) == list(range(180))
    assert "wrote 0 messages" in await in_thread(lambda: quire_spark("--enable-deduplication"))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_filters_and_keys_with_spark(server: Any, client: pulsar.Client, spark: Any, out: Path) -> None:
    name = "replayed"
    producer = client.create_producer(name, batching_enabled=True, block_if_queue_full=True)
    for i in range(3000):
        producer.send_async(b"%d" % i, None, properties={"of": f"c{i % 5}"})
    producer.flush()
    server.archive()
    into = {"service_url": server.http_url, "topic": "again", "enable_deduplication": "true"}
    source = {"service_url": server.http_url, "topic": name}
    with pytest.raises(ConfigurationError, match=r"not valid Spark SQL: .*nope"):
        replay(out / "1", Wanted(source, into, where="nope > 1"), spark=spark)
    with pytest.raises(ConfigurationError, match="column key is of type bigint"):
        replay(out / "1", Wanted(source, into, key="entry % 7"), spark=spark)
    wish = Wanted(source, into, where="cast(value as string) % 2 = 0", key="properties['of']")
    # what was refused has left no run behind
    done: Replayed = replay(out / "1", wish, spark=spark)
    assert done.rows == 1500
    (out / "1" / "_quire" / "done.log").unlink()
    assert replay(out / "1", wish, spark=spark).repeated == 1500
    rows = spark.read.format("quire").options(service_url=server.http_url, topic="again").load()
    found = [(int(row.value), row.key.decode()) for row in rows.collect()]
    assert sorted(found) == [(i, f"c{i % 5}") for i in range(0, 3000, 2)]
