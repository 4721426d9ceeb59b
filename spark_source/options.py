"""What a user may say to `spark.read.format("quire")`, checked before anything is read.

| option | means | default |
|---|---|---|
| service_url | the broker's HTTP URL, such as `http://localhost:8080`; nothing else is needed | required |
| topic, topics, topics_pattern | one; several with commas; a regular expression (see below) | one is required |
| start, end | half-open range: `earliest`, `latest`, a position, a publish time | earliest, latest |
| starting_subscription | begin where this durable subscription stands, instead of `start` | |
| on_data_loss | `fail` ends the query where retention took what it was to read; `report` goes on and warns | fail |
| columns | which columns, with commas, in this order: the others cost nothing | all |
| batch_rows | most rows in one Arrow batch | 8192 |
| on_undecodable | `fail` ends the query and names the entry; `raw` keeps it, see `schema` | fail |
| chunks | `join`: a message that was sent in chunks is one row, its last chunk's; `raw`: each chunk is one | join |
| value_schema | `auto`: values, and keys, have the types of the topic's newest schema; VERSION; `none`: bytes | none |
| on_bad_value | `fail` ends the query where a value does not fit its schema; `null`: it is null, see `schema` | fail |
| compacted | `true`: of each key only its last message in the range, see `compacted` | false |
| crypto_key_dir | a directory with private keys, see `decrypting` | encrypted entries are undecodable |
| on_lost | `fail` ends the query where messages were lost and given up; `skip` leaves them out, with a warning | fail |
| slice_bytes | about how much one Spark task reads: two thirds to four thirds of it, see `cutting` | 96MiB |
| archive | URL of the archive as the executors reach it (another endpoint, keys) | as the broker says |
| key, keys, event_start, event_end | which rows, see `filters` | all |
| tls_trust_certs | authorities to trust where service_url is https://, PEM; on every executor | those of the system |
| tls_certificate, tls_key | what to show there, PEM; on every executor | nothing |
| token_file; user, password_file | what to present to brokers; on every executor | QUIRE_TOKEN … of the driver |
| sidecars | `use`: an archived segment's sidecar spares what it can; `ignore`: only the objects are read | use |

A stream takes no `end`, and has three more:

| option | means | default |
|---|---|---|
| stream_name | the subscription that keeps where the stream began, and holds retention back | see below |
| max_rows_per_trigger, max_bytes_per_trigger | about how much one micro-batch has at most | no limit |

`stream_name` is required where the start is another one every time it is asked for: with `latest`, a time and
`starting_subscription`. `earliest` and a position mean the same after a restart, and need none; then nothing holds back
retention.

A position is `LEDGER:ENTRY` or `LEDGER:ENTRY:BATCH_INDEX`, and goes with one partition only. A time is ISO-8601 (UTC
unless it says otherwise) or epoch milliseconds. A pattern is for the last part of the names, as in
`persistent://public/default/orders-.*`. Options' names are not case-sensitive, as always in Spark. An option that is
not here is refused.
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
    """`auto` or a version; None: values are bytes."""
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
    """What `value_schema` stands for, once it was looked up (`values`)."""

    @property
    def broker(self) -> Broker:
        return Broker(self.service_url, self.tls, self.credentials)

    @property
    def starts_at_beginning(self) -> bool:
        """At the first message there is."""
        return self.start == Bound() and self.starting_subscription is None


def for_batch(options: Mapping[str, str]) -> Options:
    """`parse`, for `spark.read`."""
    found = parse(options)
    for name in _OF_STREAMS:
        if getattr(found, name) is not None:
            raise ConfigurationError(f"option {name} is for streams: use spark.readStream, or leave it out")
    return found


def for_stream(options: Mapping[str, str]) -> Options:
    """`parse`, for `spark.readStream`."""
    found = parse(options)
    if found.end != Bound(latest=True):
        raise ConfigurationError(
            "a stream has no end: leave the option out, and use the trigger availableNow to read what is there"
        )
    if found.compacted:
        raise ConfigurationError(
            "a stream never knows which message is the last of its key: leave the option compacted out"
        )
    if not (found.stream_name or found.starts_at_beginning or found.start.position):
        raise ConfigurationError(
            "option stream_name is required: it names the subscription that keeps where the stream began, so that a "
            "restart before the first commit loses nothing; only start=earliest and a position do without"
        )
    return found


def parse(options: Mapping[str, str]) -> Options:
    """Check a query's options. Raises `ConfigurationError` with what to write instead."""
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
            "on_undecodable=raw and chunks=raw put bytes into the column value, so they do not go with value_schema"
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
    """Raises `ConfigurationError` for files that cannot be used here."""
    found = ClientTls(*(given.get(name, "") for name in TLS_OPTIONS))
    if found != ANY_AUTHORITY:
        found.context()
    return found


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


def _check_range(given: Mapping[str, str], start: Bound, end: Bound) -> None:
    """What is known to be empty whatever the topic has is rather a mistake."""
    by_position = start.position and end.position and start.position > end.position
    by_time = start.time_ms is not None and end.time_ms is not None and start.time_ms > end.time_ms
    if by_position or by_time:
        raise ConfigurationError(
            f"option start={given['start']!r} comes after end={given['end']!r}: nothing lies between"
        )


def _columns(text: str | None, keep_raw: bool, null_bad_values: bool) -> tuple[str, ...]:
    """Those that are asked for; the one that tells good rows from bad ones cannot be left out."""
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
            "with on_bad_value=null the columns key and value and the column value_error go together"
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
    """Options by their names in small letters. Raises `ConfigurationError` for one that is not for this use."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    for name in sorted(given.keys() - {*names}):
        raise ConfigurationError(
            f"option {name} is not known to format quire; for {use} it has {', '.join(sorted(names))}"
        )
    return given


def one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """The option's value in small letters; the first of `values` without it. Raises `ConfigurationError`."""
    value = given.get(name, values[0]).lower()
    if value not in values:
        raise ConfigurationError(f"option {name}={value!r} is not one of {', '.join(values)}")
    return value
