"""Options of `spark.read.format("quire")`, validated before anything is read.

| option | means | default |
|---|---|---|
| service_url | a broker's HTTP URL, such as `http://localhost:8080`; no other address is needed | required |
| topic, topics, topics_pattern | one topic; several, separated by commas; a pattern (see below) | one is required |
| start, end | half-open range: `earliest`, `latest`, a position, a publish time | earliest, latest |
| starting_subscription | begin at the cursor of this durable subscription, instead of `start` | |
| on_data_loss | `fail` ends the query if messages of its range were trimmed; `report` continues with a warning | fail |
| columns | columns to read, separated by commas, in this order; other columns cost nothing | all |
| batch_rows | maximum number of rows in one Arrow batch | 8192 |
| on_undecodable | `fail` ends the query and names the entry; `raw` returns the entry as a row, see `schema` | fail |
| chunks | `join`: a chunked message is one row, with its last chunk's position; `raw`: each chunk is a row | join |
| value_schema | keys and values have the types of the topic's newest schema (`auto`) or VERSION; `none`: bytes | none |
| on_bad_value | `fail` ends the query if a value does not fit its schema; `null` returns null, see `schema` | fail |
| compacted | `true`: only the last message of each key in the range, see `compacted` | false |
| crypto_key_dir | directory with private keys, see `decrypting` | encrypted entries are undecodable |
| on_lost | `fail` ends the query if messages were lost and given up; `skip` omits them, with a warning | fail |
| slice_bytes | approximate size of a Spark task, which has two thirds to four thirds of it, see `cutting` | 96MiB |
| archive | URL of the archive for the executors, if their endpoint or keys differ | the broker's URL |
| key, keys, event_start, event_end | conditions for rows, see `filters` | all |
| tls_trust_certs | trusted authorities if service_url is https://, PEM; on every executor | the system's |
| tls_certificate, tls_key | client certificate, PEM; on every executor | none |
| token_file; user, password_file | credentials for brokers; on every executor | QUIRE_TOKEN … of the driver |
| sidecars | `use`: read sidecars of archived segments if that saves work; `ignore`: read only the objects | use |

A stream has no option `end`, and three more options:

| option | means | default |
|---|---|---|
| stream_name | subscription that records the stream's start, and holds back retention | see below |
| max_rows_per_trigger, max_bytes_per_trigger | approximate maximum size of one micro-batch | no limit |

`stream_name` is required if the start depends on the current state: with `latest`, a time or `starting_subscription`.
`earliest` and a position mean the same after a restart, and need no name. Without a name, nothing holds back retention.

A position is `LEDGER:ENTRY` or `LEDGER:ENTRY:BATCH_INDEX`, and can be used with a single partition only. A time is
ISO-8601 (UTC unless it has an offset) or epoch milliseconds. A pattern is a regular expression for the last part of
topic names, as in `persistent://public/default/orders-.*`. Names of options are case-insensitive, as always in Spark.
Unknown options are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from quire.runtime.credentials import NOBODY, Credentials, given_or_of_environment
from quire.runtime.credentials import OPTIONS as CREDENTIALS_OPTIONS
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MIB
from quire.runtime.rest import ANY_AUTHORITY
from quire.runtime.settings import parse_size
from quire.runtime.tls import ClientTls
from quire.spark_source import filters, schema
from quire.spark_source.broker import Broker
from quire.spark_source.filters import EVERYTHING, Filter, parse_filter
from quire.spark_source.positions import Bound, parse_bound
from quire.spark_source.topic_schema import TopicSchema

BATCH_ROWS_DEFAULT: Final = 8192
BATCH_ROWS_MAX: Final = 65_536
SLICE_BYTES_MIN: Final = 1 * MIB

TLS_OPTIONS: Final = ("tls_trust_certs", "tls_certificate", "tls_key")
_UNDECODABLE: Final = "on_undecodable"
_LOST: Final = "on_lost"
_DATA_LOSS: Final = "on_data_loss"
_OF_STREAMS: Final = ("stream_name", "max_rows_per_trigger", "max_bytes_per_trigger")
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
        "chunks",
        "value_schema",
        "on_bad_value",
        "compacted",
        "crypto_key_dir",
        "starting_subscription",
        _DATA_LOSS,
        "sidecars",
        *TLS_OPTIONS,
        *CREDENTIALS_OPTIONS,
        *filters.OPTIONS,
        *_OF_STREAMS,
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
    join_chunks: bool
    value_schema: str | None
    """`auto` or a version; None if values are returned as bytes."""
    null_bad_values: bool
    compacted: bool
    crypto_key_dir: str | None
    starting_subscription: str | None
    report_data_loss: bool
    stream_name: str | None
    max_rows_per_trigger: int | None
    max_bytes_per_trigger: int | None
    filter: Filter = EVERYTHING
    sidecars: bool = True
    tls: ClientTls = ANY_AUTHORITY
    credentials: Credentials = NOBODY
    typed: TopicSchema | None = None
    """The schema that `value_schema` selects; None until `values` has requested it from the broker."""

    @property
    def broker(self) -> Broker:
        return Broker(self.service_url, self.tls, self.credentials)

    @property
    def starts_at_beginning(self) -> bool:
        """True if the query starts at the oldest message."""
        return self.start == Bound() and self.starting_subscription is None


def for_batch(options: Mapping[str, str]) -> Options:
    """Parse the options of `spark.read`. Raises `ConfigurationError`."""
    found = parse(options)
    for name in _OF_STREAMS:
        if getattr(found, name) is not None:
            raise ConfigurationError(f"option {name} is for streams: use spark.readStream, or omit it")
    return found


def for_stream(options: Mapping[str, str]) -> Options:
    """Parse the options of `spark.readStream`. Raises `ConfigurationError`."""
    found = parse(options)
    if found.end != Bound(latest=True):
        raise ConfigurationError(
            "a stream has no end: omit the option, and use the trigger availableNow to read up to the present end"
        )
    if found.compacted:
        raise ConfigurationError("a stream cannot know the last message of a key: omit the option compacted")
    if not (found.stream_name or found.starts_at_beginning or found.start.position):
        raise ConfigurationError(
            "option stream_name is required: it is the subscription that records the stream's start, so that a restart "
            "before the first commit loses no messages; only start=earliest and positions do not need it"
        )
    return found


def parse(options: Mapping[str, str]) -> Options:
    """Parse and check a query's options. Raises `ConfigurationError` with a remedy."""
    given = known(options, _KNOWN, "reading")
    url = given.get("service_url", "")
    if not re.match(r"https?://[^/]+", url):
        raise ConfigurationError(
            f"option service_url={url!r} is not a broker's HTTP URL; write http://HOST:8080"
        )
    topics, pattern = _topics(given)
    keep_raw = one_of(given, _UNDECODABLE, ("fail", "raw")) == "raw"
    join_chunks = one_of(given, "chunks", ("join", "raw")) == "join"
    null_bad_values = one_of(given, "on_bad_value", ("fail", "null")) == "null"
    value_schema = _value_schema(given.get("value_schema", "none").lower())
    columns = _columns(given.get("columns"), keep_raw, null_bad_values and value_schema is not None)
    if value_schema is not None and (keep_raw or not join_chunks):
        raise ConfigurationError(
            "on_undecodable=raw and chunks=raw put bytes into the column value, so they do not go with "
            "value_schema"
        )
    start = parse_bound("start", given.get("start", "earliest"))
    end = parse_bound("end", given.get("end", "latest"))
    _check_range(given, start, end)
    return Options(
        service_url=url.rstrip("/"),
        topics=topics,
        pattern=pattern,
        start=start,
        end=end,
        columns=columns,
        batch_rows=_batch_rows(given.get("batch_rows", str(BATCH_ROWS_DEFAULT))),
        keep_raw=keep_raw,
        skip_lost=one_of(given, _LOST, ("fail", "skip")) == "skip",
        slice_bytes=max(parse_size(given.get("slice_bytes", "96MiB")), SLICE_BYTES_MIN),
        archive=given.get("archive"),
        join_chunks=join_chunks,
        value_schema=value_schema if {"key", "value"} & {*columns} else None,
        null_bad_values=null_bad_values,
        compacted=one_of(given, "compacted", ("false", "true")) == "true",
        crypto_key_dir=given.get("crypto_key_dir") or None,
        starting_subscription=_starting_subscription(given),
        report_data_loss=one_of(given, _DATA_LOSS, ("fail", "report")) == "report",
        stream_name=given.get("stream_name") or None,
        max_rows_per_trigger=_rows_per_trigger(given.get("max_rows_per_trigger")),
        max_bytes_per_trigger=_bytes_per_trigger(given.get("max_bytes_per_trigger")),
        filter=parse_filter({name.lower(): value for name, value in options.items()}),
        sidecars=one_of(given, "sidecars", ("use", "ignore")) == "use",
        tls=tls_of(given),
        credentials=given_or_of_environment(given),
    )


def tls_of(given: Mapping[str, str]) -> ClientTls:
    """Return the TLS options. Raises `ConfigurationError` for unusable files."""
    found = ClientTls(*(given.get(name, "") for name in TLS_OPTIONS))
    if found != ANY_AUTHORITY:
        found.context()
    return found


def full_name(topic: str) -> str:
    """Return a topic's full name, `persistent://tenant/namespace/topic`. Raises `ConfigurationError`."""
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


def _check_range(given: Mapping[str, str], start: Bound, end: Bound) -> None:
    """Reject a range that is empty for every topic, which is probably the user's error."""
    by_position = start.position and end.position and start.position > end.position
    by_time = start.time_ms is not None and end.time_ms is not None and start.time_ms > end.time_ms
    if by_position or by_time:
        raise ConfigurationError(
            f"option start={given['start']!r} comes after end={given['end']!r}: the range is empty"
        )


def _columns(text: str | None, keep_raw: bool, null_bad_values: bool) -> tuple[str, ...]:
    """Return the requested columns. Raises `ConfigurationError` if the column that marks bad rows is missing."""
    every = list(schema.COLUMNS)
    if keep_raw:
        every.append(schema.UNDECODED)
    if null_bad_values:
        every.append(schema.VALUE_ERROR)
    if text is None:
        return tuple(every)
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
    if null_bad_values and (schema.VALUE_ERROR in columns) != bool({"key", "value"} & {*columns}):
        raise ConfigurationError(
            "with on_bad_value=null, the columns key and value and the column value_error go together"
        )
    return columns


def _value_schema(text: str) -> str | None:
    if text not in ("auto", "none") and not text.isdigit():
        raise ConfigurationError(f"option value_schema={text!r} is not auto, none or the number of a version")
    return None if text == "none" else text


def _batch_rows(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= BATCH_ROWS_MAX:
        raise ConfigurationError(f"option batch_rows={text!r} is not a number from 1 to {BATCH_ROWS_MAX}")
    return int(text)


def _starting_subscription(given: Mapping[str, str]) -> str | None:
    if "starting_subscription" in given and "start" in given:
        raise ConfigurationError("give start or starting_subscription, not both")
    return given.get("starting_subscription") or None


def _rows_per_trigger(text: str | None) -> int | None:
    if text is not None and (not text.isdigit() or int(text) < 1):
        raise ConfigurationError(f"option max_rows_per_trigger={text!r} is not a number of rows")
    return None if text is None else int(text)


def _bytes_per_trigger(text: str | None) -> int | None:
    size = None if text is None else parse_size(text)
    if size is not None and size < 1:
        raise ConfigurationError(f"option max_bytes_per_trigger={text!r} is not a size such as 64MiB")
    return size


def known(options: Mapping[str, str], names: Iterable[str], use: str) -> dict[str, str]:
    """Return the options with their names in lower case. Raises `ConfigurationError` for names not in `names`."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    for name in sorted(given.keys() - {*names}):
        raise ConfigurationError(
            f"option {name} is not known to format quire; for {use} it has {', '.join(sorted(names))}"
        )
    return given


def one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """Return the value of option `name` in lower case, by default `values[0]`.

    Raises `ConfigurationError` if it is not one of `values`.
    """
    value = given.get(name, values[0]).lower()
    if value not in values:
        raise ConfigurationError(f"option {name}={value!r} is not one of {', '.join(values)}")
    return value
