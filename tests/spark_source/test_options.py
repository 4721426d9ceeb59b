"""What a user may say, and the sentence for everything else."""

from __future__ import annotations

import pytest

from quire.runtime.errors import ConfigurationError
from quire.spark_source import schema
from quire.spark_source.options import parse
from quire.spark_source.positions import Bound, Position

GIVEN = {"service_url": "http://localhost:8080/", "topic": "t"}


def test_defaults() -> None:
    options = parse(GIVEN)
    assert options.service_url == "http://localhost:8080"
    assert options.topics == ("persistent://public/default/t",)
    assert (options.start, options.end) == (Bound(), Bound(latest=True))
    assert options.columns == schema.COLUMNS and not options.keep_raw
    assert options.batch_rows == 8192 and options.slice_bytes == 96 << 20


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Bound()),
        ("Latest", Bound(latest=True)),
        ("7:12", Bound(position=Position(7, 12, 0))),
        ("7:12:3", Bound(position=Position(7, 12, 3))),
        ("1700000000123", Bound(time_ms=1700000000123)),
        ("2023-11-14T22:13:20.123", Bound(time_ms=1700000000123)),
        ("2023-11-14T22:13:20.123Z", Bound(time_ms=1700000000123)),
        ("2023-11-15T00:13:20.123+02:00", Bound(time_ms=1700000000123)),
        ("2023-11-14", Bound(time_ms=1699920000000)),
    ],
)
def test_bounds(text: str, bound: Bound) -> None:
    assert parse(GIVEN | {"start": text}).start == bound


def test_topics_in_all_forms() -> None:
    names = "a, persistent://x/y/b,x/y/c,a"
    assert parse({"service_url": "http://h", "topics": names}).topics == (
        "persistent://public/default/a",
        "persistent://x/y/b",
        "persistent://x/y/c",
    )
    pattern = {"service_url": "http://h", "topics_pattern": "persistent://x/y/orders-.*"}
    assert parse(pattern).pattern == ("x", "y", "orders-.*")
    assert parse({"service_url": "http://h", "topics_pattern": "o.*"}).pattern == ("public", "default", "o.*")


def test_columns_keep_their_order_and_raw_adds_its_own() -> None:
    assert parse(GIVEN | {"columns": "value, Entry"}).columns == ("value", "entry")
    assert parse(GIVEN | {"on_undecodable": "raw"}).columns[-1] == "undecoded"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"colums": "value"}, "option colums is not known"),
        ({"path": "/x"}, "option path is not known"),
        ({"service_url": "pulsar://h:6650"}, "is not a broker's HTTP URL"),
        ({"topics": "b"}, "exactly one of"),
        ({"topic": "a/b"}, "is not a topic's name"),
        ({"start": "yesterday"}, "option start='yesterday' is neither"),
        ({"columns": "value,foo"}, "column 'foo' is not one of"),
        ({"columns": "value,value"}, "names a column twice"),
        ({"columns": "undecoded"}, "column 'undecoded' is not one of"),
        ({"columns": "value", "on_undecodable": "raw"}, "must include undecoded"),
        ({"on_undecodable": "skip"}, "is not one of fail, raw"),
        ({"batch_rows": "0"}, "is not a number from 1 to"),
        ({"slice_bytes": "much"}, "is not a size"),
    ],
)
def test_refusals(change: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        parse(GIVEN | change)
