"""What a user may say to `spark.read.format("quire")`, checked before anything is read.

| option | means | default |
|---|---|---|
| service_url | the broker's HTTP URL, such as `http://localhost:8080`; nothing else is needed | required |
| topic, topics, topics_pattern | one; several with commas; a regular expression (see below) | one is required |
| start, end | half-open range: `earliest`, `latest`, a position, a publish time | earliest, latest |
| columns | which columns, with commas, in this order: the others cost nothing | all |
| batch_rows | most rows in one Arrow batch | 8192 |
| on_undecodable | `fail` ends the query and names the entry; `raw` keeps it, see `schema` | fail |
| on_lost | `fail` ends the query where messages were lost and given up; `skip` leaves them out, with a warning | fail |
| slice_bytes | about how much one Spark task reads | 96MiB |
| archive | URL of the archive as the executors reach it (another endpoint, keys) | as the broker says |

A position is `LEDGER:ENTRY` or `LEDGER:ENTRY:BATCH_INDEX`, and goes with one partition only. A time is ISO-8601 (UTC
unless it says otherwise) or epoch milliseconds. A pattern is for the last part of the names, as in
`persistent://public/default/orders-.*`. Options' names are not case-sensitive, as always in Spark. An option that is
not here is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MIB
from quire.runtime.settings import parse_size
from quire.spark_source import schema
from quire.spark_source.positions import Bound, parse_bound

BATCH_ROWS_DEFAULT: Final = 8192
BATCH_ROWS_MAX: Final = 65_536
SLICE_BYTES_MIN: Final = 1 * MIB

_UNDECODABLE: Final = "on_undecodable"
_LOST: Final = "on_lost"
_TOPIC_OPTIONS: Final = ("topic", "topics", "topics_pattern")
_KNOWN: Final = frozenset(
    (
        "service_url",
        *_TOPIC_OPTIONS,
        "start",
        "end",
        "columns",
        "batch_rows",
        "on_undecodable",
        "on_lost",
        "slice_bytes",
        "archive",
    )
)
_NAME: Final = re.compile(r"(?:persistent://)?([^/]+)/([^/]+)/(.+)")


@dataclass(frozen=True)
class Options:
    """The options of one query. `topics` are full names; `pattern` is (tenant, namespace, regular expression)."""

    service_url: str
    topics: tuple[str, ...]
    pattern: tuple[str, str, str] | None
    start: Bound
    end: Bound
    columns: tuple[str, ...]
    batch_rows: int
    keep_raw: bool
    skip_lost: bool
    slice_bytes: int
    archive: str | None


def parse(options: Mapping[str, str]) -> Options:
    """Check a query's options. Raises `ConfigurationError` with what to write instead."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    unknown = sorted(given.keys() - _KNOWN)
    if unknown:
        raise ConfigurationError(
            f"option {unknown[0]} is not known to format quire; its options are {', '.join(sorted(_KNOWN))}"
        )
    url = given.get("service_url", "")
    if not re.match(r"https?://[^/]+", url):
        raise ConfigurationError(
            f"option service_url={url!r} is not a broker's HTTP URL; write http://HOST:8080"
        )
    topics, pattern = _topics(given)
    keep_raw = _one_of(given, _UNDECODABLE, ("fail", "raw")) == "raw"
    return Options(
        service_url=url.rstrip("/"),
        topics=topics,
        pattern=pattern,
        start=parse_bound("start", given.get("start", "earliest")),
        end=parse_bound("end", given.get("end", "latest")),
        columns=_columns(given.get("columns"), keep_raw),
        batch_rows=_batch_rows(given.get("batch_rows", str(BATCH_ROWS_DEFAULT))),
        keep_raw=keep_raw,
        skip_lost=_one_of(given, _LOST, ("fail", "skip")) == "skip",
        slice_bytes=max(parse_size(given.get("slice_bytes", "96MiB")), SLICE_BYTES_MIN),
        archive=given.get("archive"),
    )


def full_name(topic: str) -> str:
    """`persistent://tenant/namespace/topic` from that, or from its shorter forms. Raises `ConfigurationError`."""
    if match := _NAME.fullmatch(topic):
        return f"persistent://{match[1]}/{match[2]}/{match[3]}"
    if not topic or "/" in topic:
        raise ConfigurationError(
            f"{topic!r} is not a topic's name; write persistent://TENANT/NAMESPACE/TOPIC"
        )
    return f"persistent://public/default/{topic}"


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, str, str] | None]:
    named = [name for name in _TOPIC_OPTIONS if name in given]
    if len(named) != 1:
        raise ConfigurationError(f"give exactly one of the options {', '.join(_TOPIC_OPTIONS)}")
    value = given[named[0]]
    if named[0] == "topics_pattern":
        return (), _pattern(value)
    parts = value.split(",") if named[0] == "topics" else [value]
    return tuple(dict.fromkeys(full_name(part.strip()) for part in parts)), None


def _pattern(text: str) -> tuple[str, str, str]:
    match = _NAME.fullmatch(text) or _NAME.fullmatch(f"public/default/{text}")
    try:
        assert match is not None
        re.compile(match[3])
    except (AssertionError, re.error):
        raise ConfigurationError(
            f"option topics_pattern={text!r} is not a pattern; write persistent://TENANT/NAMESPACE/REGEX"
        ) from None
    return match[1], match[2], match[3]


def _columns(text: str | None, keep_raw: bool) -> tuple[str, ...]:
    every = (*schema.COLUMNS, schema.UNDECODED) if keep_raw else schema.COLUMNS
    if text is None:
        return every
    columns = tuple(part.strip().lower() for part in text.split(","))
    for name in columns:
        if name not in every:
            raise ConfigurationError(f"column {name!r} is not one of {', '.join(every)}")
    if len(set(columns)) != len(columns):
        raise ConfigurationError(f"option columns={text!r} names a column twice")
    if keep_raw and schema.UNDECODED not in columns:
        raise ConfigurationError(
            "with on_undecodable=raw the columns must include undecoded, which tells raw entries from messages"
        )
    return columns


def _batch_rows(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= BATCH_ROWS_MAX:
        raise ConfigurationError(f"option batch_rows={text!r} is not a number from 1 to {BATCH_ROWS_MAX}")
    return int(text)


def _one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    value = given.get(name, values[0]).lower()
    if value not in values:
        raise ConfigurationError(f"option {name}={value!r} is not one of {', '.join(values)}")
    return value
