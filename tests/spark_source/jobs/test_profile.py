"""What a profile counts, counted by hand; and the page, which loads nothing."""

from __future__ import annotations

import json
import random
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from quire.cli.spark import command
from quire.runtime.errors import ConfigurationError
from quire.spark_source.jobs import sketches
from quire.spark_source.jobs.page import render
from quire.spark_source.jobs.profile import profile, text_of
from quire.spark_source.jobs.sketches import Distinct, Hot, Hottest, Sizes
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_batch, encode_one, seal

TIME_MS = 1_700_000_000_000
MINUTE_MS = 60_000
TOPIC = "persistent://public/default/t"
HOT = "<b>hot & loud</b>"


def entries(first: int, count: int) -> list[bytes]:
    """A message a minute, of 10 bytes; every second one has the hot key, each tenth no value."""
    return [
        encode_one(
            OutgoingMessage(None if i % 10 == 0 else bytes(10), key=HOT if i % 2 else f"k{i}"),
            f"p{i % 4}",
            i,
            TIME_MS + i * MINUTE_MS,
        )
        for i in range(first, first + count)
    ]


@pytest.fixture
def topic(broker: Any, archivist: Any) -> Any:
    """200 messages in 200 entries of two segments, then 50 in one; and an encrypted entry."""
    encrypted = pb.MessageMetadata(producer_name="p", sequence_id=2, publish_time=TIME_MS)
    encrypted.encryption_keys.add(key="k", value=b"v")
    batch = encode_batch([OutgoingMessage(bytes(1000))] * 50, "q", 0, TIME_MS + 200 * MINUTE_MS)
    last_ms = TIME_MS + 200 * MINUTE_MS
    broker.topics[TOPIC] = [
        broker.segment(3, entries(0, 100), clock_ms=TIME_MS),
        broker.segment(5, entries(100, 100), clock_ms=last_ms),
        broker.segment(9, [batch, seal(encrypted, b"secret")], [50, 1], clock_ms=last_ms, state="active"),
    ]
    archivist.archive(broker.topics[TOPIC][0])
    return broker


def run(broker: Any, **more: str) -> Any:
    return profile({"service_url": broker.url, "topic": "t", **more})


def test_it_is_as_it_was_written(topic: Any) -> None:
    found = run(topic).as_dict()
    assert (found["messages"], found["entries"], found["undecodable_entries"]) == (250, 201, 1)
    assert (found["null_values"], found["value_bytes"]) == (20, 180 * 10 + 50_000)
    assert found["interval_ms"] == 5 * MINUTE_MS
    assert sum(one["messages"] for one in found["over_time"]) == 250
    assert sum(one["bytes"] for one in found["over_time"]) == found["value_bytes"]
    assert [one["messages"] for one in found["over_time"]][1:-1] == [5] * 39
    keys = found["keys"]
    assert (keys["messages_with_key"], keys["distinct"], keys["distinct_is_exact"]) == (200, 101, True)
    assert keys["hot"][0]["key"] == HOT and keys["hot"][0]["messages"] == 100
    assert sum(keys["hot"][0]["over_time"]) == 100 and keys["hot_counts_are_low_by_at_most"] == 0
    assert found["producers"][0] == {"producer": "p0", "messages": 50} and len(found["producers"]) == 5
    assert found["partitions"] == [{"partition": TOPIC, "messages": 250}]
    assert (found["sizes"]["p50"], found["sizes"]["max"]) == (10, 1000)
    assert [one["values"] for one in found["sizes"]["classes"] if one["values"]] == [180, 50]


def test_a_range_of_times(topic: Any) -> None:
    found = run(topic, start=str(TIME_MS + 10 * MINUTE_MS), end=str(TIME_MS + 20 * MINUTE_MS)).as_dict()
    assert found["messages"] == 10 and found["interval_ms"] == 30_000


def test_an_empty_topic(broker: Any) -> None:
    broker.topics[TOPIC] = []
    found = run(broker)
    assert found.as_dict()["messages"] == 0 and "no messages" in render(found)


def test_options_that_make_no_sense(topic: Any) -> None:
    with pytest.raises(ConfigurationError, match="choose what they read"):
        run(topic, columns="key")


class Page(HTMLParser):
    """Its tags are closed in order; what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert not {"src", "href", "style", "onload"} & {name for name, _ in attrs}
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in ("meta", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_nothing_and_says_what_was_found(topic: Any) -> None:
    text = render(run(topic))
    page = Page()
    page.feed(text)
    assert page.open == [] and page.count["svg"] == 4 and page.count["table"] == 3
    assert not re.search(r"https?://|url\(|@import", text)
    assert "&lt;b&gt;hot &amp; loud&lt;/b&gt;" in text and "<b>" not in text
    assert page.count["rect"] > 3 * 40


def test_labels_of_moments_do_not_overlap(topic: Any) -> None:
    text = render(run(topic))
    moment = r'<text x="([\d.]+)" y="(\d+)" text-anchor="middle">\d{4}-\d\d-\d\d \d\d:\d\d:\d\d<'
    pictures = [re.findall(moment, one) for one in text.split("<svg")]
    assert sum(map(bool, pictures)) == 3
    for places in pictures:
        at = [float(x) for x, _ in places]
        assert all(right - left > 125 for left, right in pairwise(at)), "19 characters of 11 px"


def test_the_command(topic: Any, tmp_path: Path) -> None:
    def quire_spark(*words: str) -> Any:
        done = CliRunner().invoke(command, ["profile", "t", "--admin-url", topic.url, *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert "3 slices" in quire_spark("--dry-run")
    assert json.loads(quire_spark("--json"))["messages"] == 250
    page = tmp_path / "t.html"
    shown = quire_spark("--html", str(page))
    assert "250 in 201 entries" in shown and HOT in shown and page.read_text().startswith("<!doctype html>")


# -- sums ------------------------------------------------------------------------------------------------


def test_sizes_are_right_to_their_class() -> None:
    rng = random.Random(7)
    sizes = [int(rng.lognormvariate(7, 2)) for _ in range(20_000)]
    whole, parts = Sizes(), Sizes()
    whole.count(np.array(sizes))
    for start in range(0, len(sizes), 3000):
        part = Sizes()
        part.count(np.array(sizes[start : start + 3000]))
        parts.merge(part)
    assert (whole.counts == parts.counts).all() and whole.bytes == parts.bytes == sum(sizes)
    for part in (0.5, 0.9, 0.99):
        exact = sorted(sizes)[int(part * len(sizes))]
        assert exact <= whole.quantile(part) * 1.01 <= exact * 1.12
    assert whole.largest == max(sizes) and sum(one.values for one in whole.octaves()) == len(sizes)


def test_sizes_at_the_ends() -> None:
    one = Sizes()
    one.count(np.array([0, 1, 5 << 20]))
    assert next((c.start, c.values) for c in one.octaves()) == (0, 2) and one.quantile(1) == 5 << 20
    assert Sizes().quantile(0.5) == 0 and list(Sizes().octaves()) == []


@pytest.mark.parametrize("count", [0, 1, 4000, 100_000])
def test_different_keys_are_counted(count: int) -> None:
    parts = Distinct()
    for start in range(0, count, 1500):
        part = Distinct()
        part.add_keys(b"%d" % i for i in range(max(0, start - 500), min(count, start + 1500)))
        parts.merge(part)
    assert parts.is_exact == (count < sketches.HASHES_KEPT)
    assert abs(parts.count - count) <= (0 if parts.is_exact else 0.06 * count)


def test_keys_that_are_let_go_of_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "KEYS_HELD", 10)
    rng = random.Random(3)
    exact: dict[bytes, int] = {}
    held = Hottest()
    for _ in range(200):
        part = Hottest()
        for _ in range(30):
            key = b"%d" % min(99, int(rng.expovariate(0.1)))
            part.keys.setdefault(key, Hot()).messages += 1
            exact[key] = exact.get(key, 0) + 1
        held.merge(part)
    assert len(held.keys) <= 20 and held.unseen > 0
    for key, hot in held.top(5):
        assert hot.messages <= exact[key] <= hot.messages + held.unseen


def test_keys_for_people() -> None:
    assert [text_of(one) for one in (b"plain", b"\xff\x00", b"a\nb")] == ["plain", "0xff00", "'a\\nb'"]
