"""The table of metrics, and the text that is made of it: read back by Prometheus' own parsers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client import ProcessCollector, parser
from prometheus_client.openmetrics import parser as open_metrics_parser

from quire.runtime import exposition
from quire.runtime.metric_docs import document
from quire.runtime.metric_table import BY_NAME, METRICS
from quire.runtime.metrics import UNITS, Histogram, Kind, Labels, Value, Values
from quire.runtime.probes import of_process

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
NAME = re.compile(r"(quire|process)_[a-z]+(_[a-z]+)*")

VALUES: dict[str, Value | Mapping[Labels, Value]] = {
    "quire_build_info": {("1.0",): 1},
    "quire_serving_messages_in_total": 12,
    "quire_subscription_backlog_messages": {("a/b", "persistent://a/b/c", 'q"u\\o\nte}'): 3},
    "quire_serving_publish_latency_seconds": Histogram(),
}


def text(values: Values, *, open_metrics: bool = False) -> str:
    return "".join(exposition.pieces(values, open_metrics=open_metrics))


def test_names_are_as_prometheus_has_them() -> None:
    assert len(BY_NAME) == len(METRICS)
    for one in METRICS:
        assert NAME.fullmatch(one.name) and one.help.endswith("."), one
        assert (one.kind is Kind.COUNTER) == one.name.endswith("_total"), one
        assert one.kind is not Kind.HISTOGRAM or one.unit == "seconds", one
        words = set(one.family.split("_"))
        assert one.unit or not words & {"ms", "s", "kb", "mb"}, "base units only"
    assert {one.unit for one in METRICS} <= {"", *UNITS}


def test_the_documentation_is_the_table() -> None:
    """`python -m quire.runtime.metric_docs > docs/metrics.md` writes it anew."""
    assert DOCS.read_text() == "\n".join(document()) + "\n"


@pytest.mark.parametrize("open_metrics", [False, True])
def test_the_text_is_read_back(open_metrics: bool) -> None:
    histogram = Histogram()
    values = {**VALUES, "quire_serving_publish_latency_seconds": histogram}
    histogram.observe(0.001, 3)
    histogram.observe(0.0011)
    histogram.observe(99.0)
    read = open_metrics_parser if open_metrics else parser
    found = {
        one.name: one for one in read.text_string_to_metric_families(text(values, open_metrics=open_metrics))
    }
    assert found["quire_serving_messages_in"].type == "counter"
    assert found["quire_serving_messages_in"].samples[0].value == 12
    (backlog,) = found["quire_subscription_backlog_messages"].samples
    assert backlog.labels["subscription"] == 'q"u\\o\nte}' and backlog.value == 3
    latency = found["quire_serving_publish_latency_seconds"]
    by_bound = {one.labels.get("le", one.name[-3:]): one.value for one in latency.samples}
    assert by_bound["0.001"] == 3 and by_bound["0.0025"] == 4 and by_bound["30.0"] == 4
    assert by_bound["+Inf"] == by_bound["unt"] == 5 and by_bound["sum"] == pytest.approx(99.0041)
    assert (latency.unit == "seconds") == open_metrics


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text;version=1.0.0;charset=utf-8;q=0.75,text/plain;q=0.5", True),
        ("text/plain, application/openmetrics-text; version=0.0.1", True),
        ("application/openmetrics-text; q=0", False),
    ],
)
def test_open_metrics_for_who_asks(accept: str, wanted: bool) -> None:
    assert exposition.wants_open_metrics(accept) == wanted


def test_what_is_not_in_the_table_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="quire_nothing"):
        text({"quire_nothing": 1})


def test_many_series_come_in_pieces() -> None:
    rows: Values = {"quire_topic_producers": {("a/b", str(i)): i for i in range(2_000)}}
    pieces = list(exposition.pieces(rows, open_metrics=False))
    assert len(pieces) > 3 and max(piece.count("\n") for piece in pieces) <= exposition.LINES_A_PIECE


@pytest.mark.parametrize("open_metrics", [False, True])
def test_texts_of_processes_are_joined(open_metrics: bool) -> None:
    joined = exposition.Joined()
    lines = text(VALUES, open_metrics=open_metrics).splitlines()
    joined.add(lines)
    joined.add(lines, 'broker="b:1"')
    read = open_metrics_parser if open_metrics else parser
    whole = joined.text(open_metrics=open_metrics)
    found = {one.name: one for one in read.text_string_to_metric_families(whole)}
    one, other = found["quire_serving_messages_in"].samples
    assert (one.labels, other.labels) == ({}, {"broker": "b:1"})
    one, other = found["quire_subscription_backlog_messages"].samples
    assert other.labels == {**one.labels, "broker": "b:1"}
    assert whole.count("# TYPE quire_serving_publish_latency_seconds ") == 1


def test_what_is_no_metrics_is_left_out_and_is_not_taken_for_the_former_texts() -> None:
    joined = exposition.Joined()
    joined.add(["# HELP a Help.", "# TYPE a counter", "a_total 1"], 'broker="b:1"')
    joined.add(["<html>", "# a comment", "#", "b 2", "", "# EOF"], 'broker="b:2"')
    assert joined.text(open_metrics=False) == '# HELP a Help.\n# TYPE a counter\na_total{broker="b:1"} 1\n'


def test_a_process_is_measured_as_by_prometheus() -> None:
    collected = ProcessCollector(registry=None).collect()
    expected = {sample.name: sample.value for family in collected for sample in family.samples}
    assert of_process() == pytest.approx(expected, rel=0.2)
    assert of_process()["process_start_time_seconds"] == expected["process_start_time_seconds"]
