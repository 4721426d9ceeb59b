"""An audit of a sound topic finds nothing, and each kind of damage is found, named and told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quire.cli.output import Found
from quire.cli.spark import command
from quire.runtime.errors import ConfigurationError, NotFound
from quire.spark_source.broker import Broker
from quire.spark_source.jobs.audit import Audited, audit
from quire.wire import block
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_batch, encode_one, seal

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"
MIB = 1 << 20


def entries(first: int, count: int, producer: str = "p", value: bytes = b"v") -> list[bytes]:
    return [
        encode_one(OutgoingMessage(value, key=f"k{i % 3}"), producer, i, TIME_MS + i)
        for i in range(first, first + count)
    ]


def run(broker: Any, **more: Any) -> Audited:
    return audit({"service_url": broker.url, "topic": "t"}, **more)


def said(report: Audited) -> list[str]:
    return [f"{one.kind} {one.ledger}:{one.entry}" for one in report.findings]


@pytest.fixture
def topic(broker: Any, archivist: Any) -> Any:
    """An archived, a sealed and an active segment: messages 0-99, 100-199, and batches of three."""
    batches = [encode_batch([OutgoingMessage(b"b")] * 3, "q", 3 * i, TIME_MS + i) for i in range(20)]
    broker.topics[TOPIC] = [
        broker.segment(3, entries(0, 100)),
        broker.segment(5, entries(100, 100)),
        broker.segment(9, batches, [3] * 20, state="active"),
    ]
    archivist.archive(broker.topics[TOPIC][0])
    return broker


def test_a_sound_topic(topic: Any) -> None:
    report = run(topic)
    assert report.findings == []
    assert (report.messages, report.entries, report.producers) == (260, 220, 2)
    assert [(one.ledger, one.messages, one.state) for one in report.segments] == [
        (3, 100, "archived"),
        (5, 100, "sealed"),
        (9, 60, "active"),
    ]


def test_slices_are_compared_with_each_other(broker: Any) -> None:
    large = entries(0, 12, value=bytes(MIB // 2))
    broker.topics[TOPIC] = [broker.segment(3, large, per_block=2)]
    report = audit({"service_url": broker.url, "topic": "t", "slice_bytes": "1MiB"})
    assert report.slices == 5 and report.findings == [] and report.messages == 12


def test_a_cut_within_a_block_counts_each_entry_once(broker: Any, archivist: Any) -> None:
    broker.topics[TOPIC] = [broker.segment(3, entries(0, 12, value=bytes(MIB // 2)), per_block=5)]
    archivist.archive(broker.topics[TOPIC][0])
    report = audit({"service_url": broker.url, "topic": "t", "slice_bytes": "1MiB"})
    assert report.findings == [] and (report.entries, report.messages) == (12, 12)


def damage(path: Path) -> None:
    [found] = [one for one in (path / "segments").rglob("*") if one.is_file()]
    content = bytearray(found.read_bytes())
    content[200] ^= 1
    found.write_bytes(content)


def test_a_damaged_object_that_bookies_still_have(topic: Any, archivist: Any, tmp_path: Path) -> None:
    topic.topics[TOPIC][0].on_broker = True
    damage(tmp_path / "archive")
    report = run(topic)
    assert said(report) == ["damaged 3:0"] and "quire archive repair" in report.findings[0].what
    assert report.messages == 260


def test_a_damaged_object_that_nobody_else_has(topic: Any, tmp_path: Path) -> None:
    damage(tmp_path / "archive")
    report = run(topic)
    assert said(report) == ["unreadable 3:0"]
    assert "does not match its checksum" in report.findings[0].what
    assert [one.findings for one in report.segments] == [1, 0, 0]


def test_blocks_of_a_broker_that_are_damaged(topic: Any) -> None:
    content = bytearray(topic.topics[TOPIC][1].blocks[1])
    content[-1] ^= 1
    topic.topics[TOPIC][1].blocks[1] = bytes(content)
    assert said(run(topic)) == ["unreadable 5:0"]


def test_an_entry_that_is_not_what_its_producer_sent(broker: Any) -> None:
    some = entries(0, 10)
    some[4] = some[4][:-1] + b"x"
    broker.topics[TOPIC] = [broker.segment(3, some)]
    assert said(run(broker)) == ["damaged 3:4"]


def test_an_entry_that_no_reader_can_read(broker: Any) -> None:
    broken = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=TIME_MS, compression=pb.LZ4, uncompressed_size=100
    )
    encrypted = pb.MessageMetadata(producer_name="p", sequence_id=2, publish_time=TIME_MS)
    encrypted.encryption_keys.add(key="k", value=b"v")
    some = [*entries(0, 1), seal(broken, b"no lz4"), seal(encrypted, b"secret")]
    broker.topics[TOPIC] = [broker.segment(3, some)]
    report = run(broker)
    assert said(report) == ["undecodable 3:1"] and report.encrypted == 1


def test_blocks_that_do_not_follow_one_another(broker: Any) -> None:
    some = entries(0, 10)
    segment = broker.segment(3, some)
    segment.blocks = [
        bytes(block.cut(3, 0, -1, TIME_MS, 0, some[:5])),
        bytes(block.cut(3, 5, 4, TIME_MS - 1, 7, some[5:])),
    ]
    broker.topics[TOPIC] = [segment]
    report = run(broker)
    assert said(report) == ["order 3:5", "order 3:5"]
    assert "index 7, expected 5" in report.findings[0].what and "clock" in report.findings[1].what


def test_blocks_and_records_that_count_wrongly(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = encode_batch([OutgoingMessage(b"b")] * 3, "q", 0, TIME_MS)
    broker.topics[TOPIC] = [
        broker.segment(3, [*entries(0, 2), batch], [1, 1, 5]),
        broker.segment(4, entries(2, 1)),
    ]
    assert said(run(broker)) == ["count 3:2"]
    first = broker.topics[TOPIC][0]
    described = first.described()
    monkeypatch.setattr(first, "described", lambda: described | {"messages": 6}, raising=False)
    broker.topics[TOPIC][1] = broker.segment(4, entries(2, 1))
    assert "count 3:-1" in said(run(broker))


def test_a_list_of_segments_with_a_gap(topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.spark_source.plan.PAUSE_S", 0)
    del topic.topics[TOPIC][1]
    assert said(run(topic)) == ["metadata 9:-1"]


def test_entries_twice_wherever_they_lie(broker: Any) -> None:
    some = entries(0, 30)
    broker.topics[TOPIC] = [
        broker.segment(3, [*some[:10], some[4]]),
        broker.segment(5, [some[2], *some[10:]]),
    ]
    report = run(broker)
    assert sorted(said(report)) == ["duplicate 3:10", "duplicate 5:0"]
    assert [one.findings for one in report.segments] == [1, 1]
    assert {"it repeats 3:2, sequence id 2 of producer p", "it repeats 3:4, sequence id 4 of producer p"} == {
        one.what for one in report.findings
    }


def test_a_producer_that_counts_anew_has_sent_nothing_twice(broker: Any) -> None:
    broker.topics[TOPIC] = [
        broker.segment(3, entries(0, 10)),
        broker.segment(5, entries(0, 10, value=b"new")),
    ]
    assert run(broker).findings == []


def test_what_was_lost_and_given_up(broker: Any) -> None:
    some = entries(0, 10)
    segment = broker.segment(3, some)
    segment.blocks = [
        bytes(block.cut(3, 0, -1, TIME_MS, 0, some[:4])),
        block.blank(3, 4, TIME_MS, 4, [1, 1]),
        bytes(block.cut(3, 6, 5, TIME_MS, 6, some[6:])),
    ]
    broker.topics[TOPIC] = [segment]
    assert said(run(broker)) == ["lost 3:4", "lost 3:5"]


def test_a_segment_that_is_trimmed_meanwhile(topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Broker.blocks

    def trimming(self: Broker, *words: Any) -> bytes:
        topic.topics[TOPIC] = [one for one in topic.topics[TOPIC] if one.ledger_id != 5]
        return ask(self, *words)

    monkeypatch.setattr(Broker, "blocks", trimming)
    report = run(topic)
    assert report.findings == [] and [one.trimmed for one in report.segments] == [False, True, False]


def test_a_partitioned_topic(broker: Any) -> None:
    broker.topics[TOPIC] = 2
    for i in range(2):
        broker.next_index = 0
        broker.topics[f"{TOPIC}-partition-{i}"] = [broker.segment(3 + i, entries(0, 10))]
    report = run(broker)
    assert report.topics == [f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"]
    assert report.findings == [], "each partition counts by itself"


def test_no_topic_and_options_that_make_no_sense(broker: Any) -> None:
    with pytest.raises(NotFound):
        run(broker)
    with pytest.raises(ConfigurationError, match="which read everything"):
        audit({"service_url": broker.url, "topic": "t", "start": "latest"})


def test_the_command(topic: Any, tmp_path: Path) -> None:
    def quire_spark(*words: str) -> Any:
        return CliRunner().invoke(command, ["audit", "t", "--admin-url", topic.url, *words])

    assert "3 slices of 1 partitions" in quire_spark("--dry-run").output
    done = quire_spark()
    assert done.exit_code == 0 and "all is as it should be" in done.output and "260 messages" in done.output
    damage(tmp_path / "archive")
    done = quire_spark("--json")
    assert json.loads(done.output)["findings"][0]["kind"] == "unreadable"
    assert isinstance(done.exception, Found)
