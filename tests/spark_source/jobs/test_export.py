"""A topic as Parquet files: all of it, once, wherever an export is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from quire.cli.spark import command
from quire.runtime.errors import ConfigurationError, InUse, NotFound
from quire.spark_source.jobs import state
from quire.spark_source.jobs.export import Exported, export
from quire.spark_source.jobs.part_file import PartFile
from quire.wire.message import OutgoingMessage, encode_one

TIME_MS = 1_700_000_000_000
DAY_MS = 86_400_000
TOPIC = "persistent://public/default/t"


def entries(first: int, count: int) -> list[bytes]:
    """A message an hour."""
    return [
        encode_one(OutgoingMessage(b"%09d" % i, key=f"k{i % 3}"), "p", i, TIME_MS + i * DAY_MS // 24)
        for i in range(first, first + count)
    ]


@pytest.fixture
def topic(broker: Any, archivist: Any) -> Any:
    """An archived, a sealed and an active segment: messages 0-99, 100-199, 200-249."""
    broker.topics[TOPIC] = [
        broker.segment(3, entries(0, 100)),
        broker.segment(5, entries(100, 100)),
        broker.segment(9, entries(200, 50), state="active"),
    ]
    archivist.archive(broker.topics[TOPIC][0])
    return broker


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where to; the archive lies beside it."""
    return tmp_path / "out"


def run(broker: Any, directory: Path, **more: Any) -> Exported:
    return export(directory, {"service_url": broker.url, "topic": "t"}, **more)


def numbers(directory: Path) -> list[int]:
    """All there is, as readers see it."""
    if not list(directory.glob("date=*/[!_]*")):
        return []
    found = ds.dataset(directory, format="parquet", partitioning="hive").to_table()
    return sorted(int(value) for value in found["value"].to_pylist())


def test_all_of_it_by_date(topic: Any, out: Path) -> None:
    done = run(topic, out)
    assert (done.rows, done.resumed) == (250, False)
    assert numbers(out) == list(range(250))
    days = sorted(path.name for path in out.glob("date=*"))
    assert days[0] == "date=2023-11-14" and len(days) == 12
    table = ds.dataset(out, format="parquet", partitioning="hive").to_table()
    assert {when.date().isoformat() for when in table["publish_time"].to_pylist()} == {
        day.removeprefix("date=") for day in days
    }
    assert done.files == len(list(out.glob("date=*/*.parquet")))


def test_it_goes_on_where_it_ended(topic: Any, out: Path) -> None:
    run(topic, out)
    assert run(topic, out).rows == 0
    topic.topics[TOPIC][2].state = "sealed"
    topic.topics[TOPIC].append(topic.segment(12, entries(250, 30), state="active"))
    assert run(topic, out, dry_run=True).files == 1
    assert run(topic, out).rows == 30
    assert json.loads((out / "_quire" / "export.json").read_text())["rows"] == 280
    assert numbers(out) == list(range(280))


def test_an_empty_topic(broker: Any, out: Path) -> None:
    broker.topics[TOPIC] = []
    assert run(broker, out).rows == 0


class Killed(BaseException):
    """As a kill: nothing that comes after it runs."""


@pytest.mark.parametrize("at", range(54))
def test_killed_at_any_step_it_is_finished_by_the_next(
    topic: Any, out: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    steps = iter(range(10_000))

    def dying(work: Any, *, after: bool) -> Any:
        def step(*arguments: Any) -> Any:
            if next(steps) == at and not after:
                raise Killed
            result = work(*arguments)
            if next(steps) == at and after:
                raise Killed
            return result

        return step

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", dying(os.replace, after=True))
        patched.setattr(state, "sync_directory", dying(state.sync_directory, after=False))
        patched.setattr(PartFile, "discard", lambda _: None)
        try:
            run(topic, out)
        except Killed:
            seen = numbers(out)
            assert len(seen) == len({*seen}), "nothing twice, whenever one looks"
    topic.topics[TOPIC].append(topic.segment(12, entries(250, 30), state="active"))
    run(topic, out)
    assert numbers(out) == list(range(280))
    assert json.loads((out / "_quire" / "export.json").read_text())["rows"] == 280
    assert not list(out.glob("date=*/_*")) and not (out / "_quire" / "run.json").exists()


def test_the_command(topic: Any, out: Path) -> None:
    def quire_spark(*words: str) -> Any:
        done = CliRunner().invoke(command, ["export", "t", str(out), "--admin-url", topic.url, *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert "3 slices" in quire_spark("--dry-run") and not (out).exists()
    assert json.loads(quire_spark("--json"))["rows"] == 250
    assert quire_spark().startswith("copied 0 messages of persistent://public/default/t into")
    assert numbers(out) == list(range(250))


def test_two_at_once(topic: Any, out: Path) -> None:
    with state.lock_directory(out, "export"), pytest.raises(InUse, match="another export"):
        run(topic, out)


def test_a_directory_has_one_topic(topic: Any, out: Path) -> None:
    run(topic, out)
    topic.topics["persistent://public/default/u"] = []
    with pytest.raises(ConfigurationError, match="another directory"):
        export(out, {"service_url": topic.url, "topic": "u"})


def test_what_was_exported_may_be_trimmed(topic: Any, out: Path) -> None:
    run(topic, out)
    state = json.loads((out / "_quire" / "export.json").read_text())
    assert state["indexes"] == {TOPIC: [*state["ends"][TOPIC], 250]}
    topic.topics[TOPIC] = [topic.segment(20, entries(250, 10), state="active")]
    assert run(topic, out).rows == 10 and numbers(out) == list(range(260))


def test_an_export_of_an_older_version_has_no_index(topic: Any, out: Path) -> None:
    run(topic, out)
    path = out / "_quire" / "export.json"
    for indexes in ({}, {TOPIC: [5, 100, 200]}):  # none, or one that the older version has moved the end from
        path.write_text(json.dumps(json.loads(path.read_text()) | {"indexes": indexes}))
        saved, topic.topics[TOPIC] = topic.topics[TOPIC], [topic.segment(20, entries(250, 1), state="active")]
        with pytest.raises(NotFound, match="messages from 9:50 on were trimmed"):
            run(topic, out)
        topic.topics[TOPIC] = saved
        assert run(topic, out).rows == 0


def test_what_retention_took_is_told(topic: Any, out: Path) -> None:
    run(topic, out)
    topic.next_index += 50
    topic.topics[TOPIC] = [topic.segment(20, entries(300, 10), state="active")]
    with pytest.raises(
        NotFound, match=f"messages 250 to 299 of {TOPIC} were trimmed before they were copied"
    ):
        run(topic, out)
    reporting = {"service_url": topic.url, "topic": "t", "on_data_loss": "report"}
    assert export(out, reporting).rows == 10


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "t", "start": "latest"}, "not for exports"),
        ({"topics": "t,u"}, "one topic"),
        ({"topic": "t", "columns": "value"}, "publish_time"),
    ],
)
def test_options_that_make_no_sense(topic: Any, out: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        export(out, {"service_url": topic.url} | options)
