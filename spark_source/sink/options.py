"""Options of `df.write.format("quire")` and `writeStream`, validated before anything is written.

| option | means | default |
|---|---|---|
| service_url | a broker's HTTP URL, as for reading; the URL for publishing is looked up | required |
| tls_trust_certs, tls_certificate, tls_key | for https:// and pulsar+ssl://, as for reading | the system's, nothing |
| token_file; user, password_file | credentials for brokers, as for reading | QUIRE_TOKEN … of the driver |
| broker_url | `pulsar://HOST:PORT` for Spark's tasks, if it differs from the broker's advertised address | looked up |
| topic | topic of all rows; without it each row's column `topic` names one | required without that column |
| delivery | `exactly_once` (the topic must drop duplicates) or `at_least_once` | exactly_once |
| enable_deduplication | `true`: turn the topic's deduplication on | false |
| row_order | `given`, or `content`: a task's rows are sorted by their content first | given |
| producer_name | prefix of the producers' names; must be the same if the same rows are written again | generated |
| epoch | number of a batch write with `producer_name`; it must grow from write to write | 0 |
| batching | `false`, or `by_key`: an entry has rows of one key only, as Key_Shared subscriptions require | true |
| batch_messages_max, batch_bytes_max | maximum numbers of rows and bytes in one entry | 1000, 128KiB |
| compression | none, lz4, zlib, zstd or snappy | none |
| chunking | `true`: a value that is too large for one entry (5 MiB) is sent in chunks | false |
| register_schema | `true`: register the schema of typed values if the topic has none that fits | false |
| schema_type | type of the registered schema: avro or json | avro |
| hashing | hash of keys that chooses a partition: `java` (as in stock clients) or `murmur3` | java |
| send_timeout | time for which a task waits for a broker before it fails | 2min |

Names of options are case-insensitive, as always in Spark. Unknown options are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quire.client import ProducerSettings
from quire.client.routing import full_name
from quire.runtime.credentials import NOBODY, Credentials, given_or_of_environment
from quire.runtime.credentials import OPTIONS as CREDENTIALS_OPTIONS
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import ANY_AUTHORITY
from quire.runtime.settings import parse_duration_ms, parse_size
from quire.runtime.tls import ClientTls
from quire.spark_source.options import TLS_OPTIONS, known, one_of, tls_of
from quire.spark_source.sink.sequence_ids import EPOCH_MAX

_OF_SPARK: Final = frozenset(("checkpointlocation", "queryname", "path"))
"""Spark's own options, which it also passes to the source."""

_KNOWN: Final = (
    "service_url", "broker_url", "topic", "delivery", "enable_deduplication", "row_order", "producer_name", "epoch",
    "batching", "batch_messages_max", "batch_bytes_max", "compression", "chunking", "hashing", "send_timeout",
    "register_schema", "schema_type", *TLS_OPTIONS, *CREDENTIALS_OPTIONS,
)  # fmt: skip
_NEVER_MS: Final = 10 * 365 * 24 * 3_600_000
"""Time-out of the producer, practically infinite: it must not give up a message (rule 4 of the package)."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of one write. `producer_name` is "" if the user gave none."""

    service_url: str
    broker_url: str
    topic: str
    """Topic of all rows; "" if each row names its own topic."""
    exactly_once: bool
    enable_deduplication: bool
    sorts: bool
    producer_name: str
    epoch: int
    send_timeout_s: float
    by_key: bool
    register_schema: bool
    schema_type: str
    """AVRO or JSON."""
    producer: ProducerSettings
    tls: ClientTls = ANY_AUTHORITY
    credentials: Credentials = NOBODY


def parse(options: Mapping[str, str], *, rows_name_topics: bool = False) -> SinkOptions:
    """Parse a write's options. Raises `ConfigurationError` with a remedy.

    With `rows_name_topics`, the option topic may be omitted.
    """
    own = {name: value for name, value in options.items() if name.lower() not in _OF_SPARK}
    given = known(own, _KNOWN, "writing")
    if not given.get("topic") and not (rows_name_topics and "topic" not in given):
        raise ConfigurationError("option topic is missing: set it to the topic to be written")
    if "epoch" in given and "producer_name" not in given:
        raise ConfigurationError("option epoch requires producer_name, whose writes it counts")
    return SinkOptions(
        service_url=_url(given, "service_url", "https?", "a broker's HTTP URL; write http://HOST:8080"),
        broker_url=_url(
            given, "broker_url", r"pulsar(\+ssl)?", "an address for clients; write pulsar://HOST:6650", ""
        ),
        topic=full_name(given["topic"]) if "topic" in given else "",
        exactly_once=one_of(given, "delivery", ("exactly_once", "at_least_once")) == "exactly_once",
        enable_deduplication=_flag(given, "enable_deduplication"),
        sorts=one_of(given, "row_order", ("given", "content")) == "content",
        producer_name=given.get("producer_name", ""),
        epoch=_number(given, "epoch", 0, EPOCH_MAX),
        send_timeout_s=parse_duration_ms(given.get("send_timeout", "2min")) / 1000,
        by_key=_batching(given) == "by_key",
        register_schema=_flag(given, "register_schema"),
        schema_type=one_of(given, "schema_type", ("avro", "json")).upper(),
        producer=_producer(given),
        tls=tls_of(given),
        credentials=given_or_of_environment(given),
    )


def _producer(given: Mapping[str, str]) -> ProducerSettings:
    defaults = ProducerSettings()
    settings = ProducerSettings(
        compression=given.get("compression", defaults.compression).lower(),
        batch_messages_max=(
            1
            if _batching(given) == "false"
            else _number(given, "batch_messages_max", defaults.batch_messages_max, 1_000_000)
        ),
        batch_bytes_max=parse_size(given.get("batch_bytes_max", str(defaults.batch_bytes_max))),
        chunking=_flag(given, "chunking"),
        send_timeout_ms=_NEVER_MS,
        hashing=given.get("hashing", defaults.hashing).lower(),
    )
    settings.validate()
    return settings


def _batching(given: Mapping[str, str]) -> str:
    return one_of(given, "batching", ("true", "false", "by_key"))


def _url(given: Mapping[str, str], name: str, scheme: str, what: str, default: str | None = None) -> str:
    url = given.get(name, default)
    if url == default == "":
        return ""
    if url is None or not re.fullmatch(rf"{scheme}://[^/]+/?", url):
        raise ConfigurationError(f"option {name}={url or ''!r} is not {what}")
    return url.rstrip("/")


def _flag(given: Mapping[str, str], name: str) -> bool:
    return one_of(given, name, ("false", "true")) == "true"


def _number(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name, str(default))
    if not text.isdigit() or int(text) > most:
        raise ConfigurationError(f"option {name}={text!r} is not a number from 0 to {most}")
    return int(text)
