"""The latest of each key, by a dictionary; and once, wherever the job is killed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from quire.cli.spark import command
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import Admin
from quire.spark_source.jobs import compact as module
from quire.spark_source.jobs import run as runs
from quire.spark_source.jobs import state
from quire.spark_source.jobs.compact import Compacted, Latest, compact
from quire.spark_source.jobs.part_file import PartFile
from quire.wire.message import OutgoingMessage, encode_batch, encode_one
from tests.serving.conftest import in_thread
from tests.spark_source.jobs.conftest import Target

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"
AGAIN = "persistent://public/default/again"

Pair = tuple[str, bytes]


def history(seed: int, count: int) -> list[OutgoingMessage]:
    """Keys that come and go; some messages have none or an empty one, some are deletes: of a null or an empty value."""
    rng = random.Random(seed)
    return [
        OutgoingMessage(
            rng.choice((None, b"")) if rng.random() < 0.2 else b"%d" % i,
            key=rng.choice((None, "")) if rng.random() < 0.1 else f"k{int(rng.expovariate(0.1))}",
        )
        for i in range(count)
    ]


def latest(messages: list[OutgoingMessage]) -> list[Pair]:
    """By hand; in the order of the messages."""
    found: dict[str, tuple[int, bytes | None]] = {}
    for i, one in enumerate(messages):
        if one.key:
            found[one.key] = i, one.payload
    return [(key, value) for key, (_, value) in sorted(found.items(), key=lambda it: it[1][0]) if value]


@pytest.fixture
def topic(broker: Any, archivist: Any) -> Any:
    """An archived segment, one in batches, and the open one."""
    messages = history(7, 300)
    singles = [encode_one(one, "p", i, TIME_MS + i) for i, one in enumerate(messages)]
    batches = [encode_batch(messages[i : i + 10], "p", i, TIME_MS + i) for i in range(100, 200, 10)]
    broker.topics[TOPIC] = [
        broker.segment(3, singles[:100]),
        broker.segment(5, batches, [10] * 10),
        broker.segment(9, singles[200:], state="active"),
    ]
    archivist.archive(broker.topics[TOPIC][0])
    return broker


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(broker: Any, directory: Path, target: Target | None = None, **more: Any) -> Compacted:
    source = {"service_url": broker.url, "topic": "t"}
    into = (
        None if target is None else {"service_url": target.url, "topic": "again", "batch_messages_max": "5"}
    )
    return compact(directory, source, into, **more)


def in_files(directory: Path) -> list[Pair]:
    """As readers see them."""
    if not list(directory.glob("[!_]*")):
        return []
    rows = ds.dataset(directory, format="parquet").to_table().sort_by("message_index")
    return [
        (key.decode(), value)
        for key, value in zip(*(rows[n].to_pylist() for n in ("key", "value")), strict=True)
    ]


async def in_topic(target: Target) -> list[Pair]:
    return [(one.key or "", one.payload or b"") for one in await target.read(AGAIN)]


def test_into_files(topic: Any, out: Path) -> None:
    done = run(topic, out)
    expected = latest(history(7, 300))
    assert in_files(out) == expected and done.rows == len(expected)
    assert (done.messages, done.slices_looked_at) == (300, 3)
    assert done.without_key == sum(not one.key for one in history(7, 300))
    assert done.deleted == len({one.key for one in history(7, 300)} - {None, ""}) - len(expected) > 0
    again = run(topic, out)
    assert (again.rows, again.resumed, again.messages) == (0, True, 300) and in_files(out) == expected


async def test_into_a_topic(topic: Any, target: Target, out: Path) -> None:
    await in_thread(lambda: Admin(target.url).put("/admin/v2/persistent/public/default/again"))
    done = await in_thread(lambda: run(topic, out, target))
    assert await in_topic(target) == latest(history(7, 300)) and done.repeated == 0


def test_a_topic_with_nothing_to_keep(broker: Any, out: Path) -> None:
    nothing = [OutgoingMessage(None, key="a"), OutgoingMessage(b"x")]
    broker.topics[TOPIC] = [
        broker.segment(3, [encode_one(one, "p", i, TIME_MS) for i, one in enumerate(nothing)])
    ]
    done = run(broker, out)
    assert (done.rows, done.deleted, done.without_key) == (0, 1, 1)
    broker.topics["persistent://public/default/empty"] = []
    assert compact(out / "e", {"service_url": broker.url, "topic": "empty"}).rows == 0


def test_partitions_are_compacted_one_by_one(broker: Any, out: Path) -> None:
    broker.topics[TOPIC] = 2
    for i in range(2):
        broker.next_index = 0
        some = [encode_one(OutgoingMessage(b"%d" % (10 * i + j), key="a"), "p", j, TIME_MS) for j in range(3)]
        broker.topics[f"{TOPIC}-partition-{i}"] = [broker.segment(3 + i, some)]
    run(broker, out)
    assert sorted(in_files(out)) == [("a", b"12"), ("a", b"2")]


class Killed(BaseException):
    """As a kill: nothing that comes after it runs."""


def dying(steps: Iterator[int], at: int, work: Any) -> Any:
    def step(*arguments: Any, **more: Any) -> Any:
        if next(steps) == at:
            raise Killed
        result = work(*arguments, **more)
        if next(steps) == at:
            raise Killed
        return result

    return step


@pytest.mark.parametrize("at", range(23))
def test_killed_at_any_step_into_files(
    topic: Any, out: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    steps = iter(range(10_000))
    with monkeypatch.context() as patched:
        patched.setattr(module, "_store", dying(steps, at, module._store))
        patched.setattr(state, "store", dying(steps, at, state.store))
        patched.setattr(PartFile, "publish", dying(steps, at, PartFile.publish))
        patched.setattr(PartFile, "discard", lambda _: None)
        patched.setattr(runs.Run, "finish", dying(steps, at, runs.Run.finish))
        try:
            run(topic, out)
            assert next(steps) == 22, "this many steps, and then it is not killed"
        except Killed:
            seen = in_files(out)
            assert len(seen) == len({*seen})
    # what comes meanwhile may be chosen as long as no row was written, and not after that
    run(topic, out)
    assert in_files(out) == latest(history(7, 300))
    assert not list(out.glob("_*.parquet*"))


@pytest.mark.parametrize("at", range(8))
async def test_killed_while_it_writes_a_topic(
    topic: Any, target: Target, out: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    await in_thread(lambda: Admin(target.url).put("/admin/v2/persistent/public/default/again"))
    steps = iter(range(10_000))
    rows_of = module.rows_of

    def torn(*arguments: Any) -> Iterator[pa.RecordBatch]:
        for batch in rows_of(*arguments):
            yield batch.slice(0, 7)
            if next(steps) == at:
                raise Killed
            yield batch.slice(7)

    with monkeypatch.context() as patched:
        patched.setattr(module, "rows_of", torn)
        patched.setattr(runs.Run, "finish", dying(steps, at, runs.Run.finish))
        with pytest.raises(Killed):
            await in_thread(lambda: run(topic, out, target))
    # the latest is what it was when it was chosen
    topic.topics[TOPIC].append(
        topic.segment(12, [encode_one(OutgoingMessage(b"new", key="k0"), "p", 999, TIME_MS)])
    )
    await in_thread(lambda: run(topic, out, target))
    assert await in_topic(target) == latest(history(7, 300))


def test_the_latest_over_many_slices() -> None:
    rng = random.Random(1)
    expected: dict[bytes, int] = {}
    one = Latest()
    for _ in range(50):
        keys = [b"%d" % rng.randrange(200) for _ in range(60)]
        places = [rng.randrange(1 << 40) for _ in range(60)]
        for key, place in zip(keys, places, strict=True):
            expected[key] = max(place, expected.get(key, -1))
        one.add_table(pa.table({"key": pa.array(keys, pa.binary()), "place": places}))
    assert np.array_equal(one.places(), sorted(expected.values()))
    assert len(Latest().places()) == 0


def test_options_that_make_no_sense(topic: Any, out: Path) -> None:
    same = {"service_url": topic.url, "topic": "t"}
    with pytest.raises(ConfigurationError, match="same topic"):
        compact(out, same, same)
    with pytest.raises(ConfigurationError, match="whole messages"):
        compact(out, same | {"columns": "key"})
    run(topic, out)
    with pytest.raises(ConfigurationError, match="another source"):
        compact(out, same | {"end": "latest"})


def test_the_command(topic: Any, out: Path) -> None:
    def quire_spark(*words: str) -> Any:
        done = CliRunner().invoke(command, ["compact", "t", str(out), "--admin-url", topic.url, *words])
        assert done.exit_code == 0, done.output + repr(done.exception)
        return done.output

    assert "3 slices" in quire_spark("--dry-run")
    assert json.loads(quire_spark("--json"))["rows"] == len(latest(history(7, 300)))
    assert "wrote 0 messages" in quire_spark()
