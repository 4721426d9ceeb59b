"""Sidecars are written for what lacks one, whenever the writer dies, and say what the messages say."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from quire.cli.archive import command
from quire.identity.marker import NAME as MARKER
from quire.identity.marker import encode_marker
from quire.runtime.errors import NotFound
from quire.spark_source import fetch
from quire.spark_source.broker import Broker
from quire.spark_source.sidecar import build as build_module
from quire.spark_source.sidecar.archive import State, archived_segments, find
from quire.testing.place import CLUSTER
from quire.tiering.archive import name_of, sidecar_of
from quire.wire import block
from quire.wire.hashing import murmur3_32
from quire.wire.message import OutgoingMessage, encode_batch, encode_one
from tests.spark_source.sidecar.test_rows import reader, rows
from tests.spark_source.sidecar.topics import KEYS, TIME_MS, TOPIC, build, random_entries


@pytest.fixture
def topic(broker: Any, archivist: Any) -> Any:
    """Two archived segments and an active one, of all that producers may write but what cannot be decoded."""
    rng = random.Random(11)
    for ledger_id in (3, 5, 8):
        segment = broker.segment(ledger_id, *random_entries(rng, odd=False, keys=KEYS))
        broker.topics.setdefault(TOPIC, []).append(segment)
        if ledger_id != 8:
            archivist.archive(segment)
    segment.state = "active"
    return broker


def states(broker: Any) -> list[State]:
    return [find(piece).state for piece in archived_segments(Broker(broker.url), ["t"])]


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "archive").rglob("*.parquet"))


def test_what_lacks_one_gets_one(topic: Any, archivist: Any, tmp_path: Path) -> None:
    done = build(topic)
    assert (done.segments, done.there, done.built, done.errors, done.without) == (2, 0, 2, [], [])
    assert done.bytes == sum(path.stat().st_size for path in files(tmp_path))
    assert done.object_bytes == sum(one.archive["bytes"] for one in topic.topics[TOPIC][:2])
    again = build(topic)
    assert (again.there, again.built, again.bytes) == (2, 0, 0)
    archivist.archive(topic.topics[TOPIC][2])
    assert build(topic, dry_run=True).built == 1 and states(topic)[2] is State.MISSING
    assert (build(topic).there, build(topic).there) == (2, 3)
    before = [path.read_bytes() for path in files(tmp_path)]
    assert build(topic, rebuild=True).built == 3
    assert [path.read_bytes() for path in files(tmp_path)] == before


def test_it_says_what_the_messages_say(topic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "GROUP_ROWS", 30)
    build(topic)
    table = ds.dataset(files(tmp_path), format="parquet").to_table().sort_by("message_index")
    query = reader(topic, end="8:0", sidecars="ignore")
    expected = rows(query)
    assert len(expected) == table.num_rows
    for name in (
        "topic",
        "partition",
        "ledger",
        "entry",
        "batch_index",
        "message_index",
        "producer",
        "sequence",
    ):
        assert table[name].to_pylist() == [row[name] for row in expected], name
    for name in ("publish_time", "event_time", "properties"):
        assert table[name].to_pylist() == [row[name] for row in expected], name
    keys = [row["key"] for row in expected]
    assert table["key"].to_pylist() == [None if key is None else key[:256] for key in keys]
    assert table["key_bytes"].to_pylist() == [None if key is None else len(key) for key in keys]
    assert table["key_hash"].to_pylist() == [None if key is None else murmur3_32(key) for key in keys]
    values = [row["value"] for row in expected]
    assert table["value_bytes"].to_pylist() == [None if value is None else len(value) for value in values]
    assert table["undecoded"].null_count == table.num_rows
    blocks = [one for segment in topic.topics[TOPIC][:2] for one in segment.blocks]
    stored = sum(len(one) - block.read_header(one).entries_offset for one in blocks)
    assert pc.sum(table["stored_bytes"]).as_py() == stored


def test_a_sidecar_of_usual_messages_is_small(broker: Any, archivist: Any) -> None:
    rng = random.Random(3)
    entries = [
        encode_batch(
            [
                OutgoingMessage(
                    rng.randbytes(1024),
                    key=f"customer-{rng.randrange(10_000)}",
                    properties={"region": rng.choice(["eu", "us"])},
                    event_time_ms=TIME_MS + 10 * number - rng.randrange(5000),
                )
                for _ in range(10)
            ],
            f"producer-{rng.randrange(4)}",
            10 * number,
            TIME_MS + 10 * number,
        )
        for number in range(800)
    ]
    broker.topics[TOPIC] = [broker.segment(3, entries, [10] * 800)]
    archivist.archive(broker.topics[TOPIC][0])
    done = build(broker)
    assert done.rows == 8000 and done.bytes < 0.02 * done.object_bytes


def test_a_damaged_one_and_one_of_another_object_are_written_anew(topic: Any, tmp_path: Path) -> None:
    build(topic)
    first, second = files(tmp_path)
    whole = first.read_bytes()
    for damaged in (b"", whole[:-1], second.read_bytes(), whole[:-20] + b"?" + whole[-19:]):
        first.chmod(0o600)
        first.write_bytes(damaged)
        assert states(topic) == [State.DAMAGED, State.THERE]
        assert (build(topic).built, first.read_bytes()) == (1, whole)


def test_nothing_appears_before_it_is_whole(
    topic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(build_module.Builder, "finish", dying)
        with pytest.raises(KeyboardInterrupt):
            build(topic)
    assert files(tmp_path) == [] and list((tmp_path / "archive" / ".uploading").iterdir()) == []
    assert build(topic).built == 2


def test_an_object_that_is_gone_is_an_error_for_it_alone(topic: Any, archivist: Any, tmp_path: Path) -> None:
    archivist.store.delete(topic.topics[TOPIC][0].archive["name"])
    done = build(topic)
    assert done.built == 1 and len(done.errors) == 1 and len(files(tmp_path)) == 1


def test_one_written_while_its_object_is_deleted_does_not_stay(
    topic: Any, archivist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic.topics[TOPIC][0].archive["name"]
    blocks = fetch.blocks

    def trimmed(piece: Any, *more: Any) -> Any:
        yield from blocks(piece, *more)
        archivist.store.delete(name)

    monkeypatch.setattr(fetch, "blocks", trimmed)
    done = build(topic)
    assert done.built == 1 and sidecar_of(name) not in [str(one) for one in files(tmp_path)]
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("wrong", ["no marker", "another cluster's"])
def test_nothing_is_deleted_in_a_store_that_is_not_proven(
    topic: Any, archivist: Any, tmp_path: Path, wrong: str
) -> None:
    """As when a mount vanished, or was replaced, while sidecars are built again."""
    ours = topic.topics[TOPIC][0].archive
    named = name_of(3, CLUSTER, "a")
    (tmp_path / "archive" / ours["name"]).rename(tmp_path / "archive" / named)
    ours["name"] = named
    build(topic)
    before = {path: path.read_bytes() for path in files(tmp_path)}
    assert len(before) == 2
    marker = tmp_path / "archive" / MARKER
    if wrong == "no marker":
        marker.rename(tmp_path / "marker")
    else:
        marker.chmod(0o600)
        marker.write_bytes(encode_marker("0a0b0c0d-0000-4000-8000-000000000007"))
    damaged = tmp_path / "archive" / sidecar_of(named)
    damaged.chmod(0o600)
    damaged.write_bytes(b"damaged")
    [error] = build(topic).errors
    assert "no sidecar is deleted there" in error
    if wrong == "another cluster's":
        assert f"0a0b0c0d-0000-4000-8000-000000000007, but object {named} to cluster {CLUSTER}" in error
    assert damaged.read_bytes() == b"damaged"
    assert build(topic, rebuild=True).errors
    (tmp_path / "marker").rename(marker) if wrong == "no marker" else marker.write_bytes(
        encode_marker(CLUSTER)
    )
    assert build(topic).built == 1
    assert {path: path.read_bytes() for path in files(tmp_path)} == before


def test_a_segment_with_lost_entries_has_none(topic: Any, archivist: Any, tmp_path: Path) -> None:
    segment = topic.segment(9, [encode_one(OutgoingMessage(b"x"), "p", 1, TIME_MS)] * 3, per_block=1)
    header = block.read_header(segment.blocks[1])
    segment.blocks[1] = block.blank(9, header.first_entry, header.clock_ms, header.first_index, [1])
    archivist.archive(segment)
    topic.topics[TOPIC].append(segment)
    done = build(topic)
    assert done.built == 2 and len(done.without) == 1 and "entries 1 to 1 of ledger 9" in done.without[0]
    assert len(files(tmp_path)) == 2


def test_of_all_topics(topic: Any, archivist: Any, tmp_path: Path) -> None:
    partition = topic.segment(20, [encode_one(OutgoingMessage(b"x"), "p", 1, TIME_MS)])
    archivist.archive(partition)
    topic.topics["persistent://other/space/parts"] = 1
    topic.topics["persistent://other/space/parts-partition-0"] = [partition]
    result = CliRunner().invoke(command, ["sidecars", "build", "--json", "--admin-url", topic.url])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["built"] == 3
    topics = {one for path in files(tmp_path) for one in pq.read_table(path)["topic"].to_pylist()}
    assert topics == {TOPIC, "persistent://other/space/parts"}


def test_the_command(topic: Any, archivist: Any) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(command, ["sidecars", *words, "--admin-url", topic.url])

    assert "2 lack one" in run("build", "--dry-run").output
    assert "missing" in run("list", "t").output
    said = run("build", "t").output
    assert "2 archived segments: 0 have a sidecar, 2 written: " in said and " % of " in said
    listed = json.loads(run("list", "t", "--json").stdout)
    assert [(line["ledger"], line["state"]) for line in listed] == [(3, "there"), (5, "there")]
    assert "2 have a sidecar, 0 written" in run("build").output
    archivist.store.delete(sidecar_of(topic.topics[TOPIC][0].archive["name"]))
    archivist.store.delete(topic.topics[TOPIC][0].archive["name"])
    failed = run("build")
    assert failed.exit_code and "1 could not be written now" in str(failed.exception)
    with pytest.raises(NotFound, match="nobody"):
        CliRunner().invoke(
            command, ["sidecars", "build", "nobody", "--admin-url", topic.url], catch_exceptions=False
        )
