"""Client of the HTTP endpoints that the sink needs before it writes.

The driver reads the topic's policies. A task looks up the topic's broker.

GET  /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions
     {"partitions": n}
GET  /admin/v2/persistent/{tenant}/{namespace}/{topic}/deduplicationEnabled?applied=true
     true or false: whether the topic drops duplicates, by its own policy or its namespace's
GET  …/{topic}/maxMessageSize?applied=true
     bytes; 0 or null: no limit except the broker's
POST …/{topic}/deduplicationEnabled
     true
PUT  /admin/v2/persistent/{tenant}/{namespace}/{topic}
GET  /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema
POST the same, {"type": "AVRO", "schema": the definition, "properties": {}}
     {"version": n, "type": "AVRO", "data": the definition, …}; {"version": n}
GET  /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}
     {"brokerUrl": "pulsar://…", …}
GET  /quire/v1/topics/{domain}/{tenant}/{namespace}/{topic}/growth
     {"partitions": n, "grewFrom": number before the last addition of partitions, 0: no addition}
GET  /quire/v1/brokers
     [{"serviceUrl": "pulsar://…", …}, …]
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

import pyarrow as pa

from quire.client.routing import partition_name
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotAuthorized, NotFound
from quire.runtime.rest import Admin
from quire.spark_source.sink.options import SinkOptions
from quire.spark_source.sink.values import Encoder, TopicSchema, definition_of, misfit
from quire.wire import topic_name

TIMEOUT_S: Final = 30
ATTEMPTS: Final = 4


class Target(NamedTuple):
    """State of the topic, which the driver reads for all tasks of a write."""

    partitions: int
    """Number of partitions; 0 for an unpartitioned topic."""
    entry_bytes_max: int | None
    """Maximum entry size by the topic's policies, if any. The broker's own limit applies, too."""
    schema: TopicSchema | None = None
    """Topic's schema for typed values; None if values are bytes."""
    grew_from: int = 0
    """Number of partitions before partitions were last added; 0 if none were ever added."""


def prepare(options: SinkOptions) -> Target:
    """Check that the topic can be written with these options.

    Raises `ConfigurationError` if the topic does not drop duplicates, and the errors of `Admin`.
    """
    admin = _admin(options)
    path = topic_name.path(options.topic)
    try:
        partitions = int(admin.get(f"/admin/v2/{path}/partitions")["partitions"])
    except NotFound:
        partitions = 0
    if options.exactly_once:
        _drop_duplicates(admin, options, f"/admin/v2/{path}")
        entry_bytes_max = admin.get(f"/admin/v2/{path}/maxMessageSize?applied=true") or None
        return Target(partitions, entry_bytes_max, grew_from=_grew_from(admin, path) if partitions else 0)
    return Target(partitions, None)


def _grew_from(admin: Admin, path: str) -> int:
    try:
        return int(admin.get(f"/quire/v1/topics/{path}/growth")["grewFrom"])
    except NotFound:
        return 0  # a broker of an older version


def _drop_duplicates(admin: Admin, options: SinkOptions, path: str) -> None:
    if options.topic.startswith("non-persistent:"):
        raise ConfigurationError(
            f"{options.topic} is not persistent, so exactly-once delivery is impossible: set delivery=at_least_once"
        )
    policy = f"{path}/deduplicationEnabled"
    try:
        drops = bool(admin.get(f"{policy}?applied=true"))
    except NotFound:
        if not options.enable_deduplication:
            raise NotFound(
                f"topic {options.topic} does not exist: create it with quire topics create {options.topic}, or set "
                "option enable_deduplication=true, which creates one that drops duplicates"
            ) from None
        admin.put(path)
        drops = False
    if drops:
        return
    if options.enable_deduplication:
        admin.post(policy, True)
        return
    raise ConfigurationError(
        f"topic {options.topic} keeps duplicates, so it would have rows of repeated tasks twice: write "
        f"option enable_deduplication=true, or curl -X POST -H 'Content-Type: application/json' -d true "
        f"{options.service_url}{policy}, or write delivery=at_least_once"
    )


def value_schema(options: SinkOptions, struct: pa.StructType) -> TopicSchema:
    """Return the schema for values of this type: the topic's newest one, or one that is registered now.

    Raises `ConfigurationError` if no schema fits, and the errors of `Admin`.
    """
    admin, path = _admin(options), topic_name.path(options.topic).partition("/")[2]
    place = f"/admin/v2/schemas/{path}/schema"
    remedy = "write option register_schema=true, which registers the rows' own schema as the next version"
    try:
        answer = admin.get(place)
    except NotFound:
        if not options.register_schema:
            raise ConfigurationError(
                f"topic {options.topic} has no schema for the struct value: {remedy}, or write to_json(value) AS value"
            ) from None
        return _register(admin, place, options, options.schema_type, struct)
    kind = str(answer["type"])
    if kind not in ("AVRO", "JSON"):
        raise ConfigurationError(
            f"the schema of topic {options.topic} is {kind}, but structs need AVRO or JSON: write value as binary or "
            "string"
        )
    found = TopicSchema(kind, str(answer["data"]))
    reason = misfit(found, struct)
    if reason and options.register_schema:
        return _register(admin, place, options, kind, struct)
    if reason:
        raise ConfigurationError(
            f"the column value does not fit version {answer['version']} of the schema of {options.topic}: {reason}; "
            f"{remedy}, or select what fits"
        )
    Encoder(found)
    return found


def _register(
    admin: Admin, place: str, options: SinkOptions, kind: str, struct: pa.StructType
) -> TopicSchema:
    made = TopicSchema(kind, json.dumps(definition_of(struct)))
    try:
        admin.post(place, {"type": kind, "schema": made.definition, "properties": {}})
    except (ConfigurationError, AlreadyExists) as error:
        raise ConfigurationError(
            f"the schema of the column value cannot be registered for {options.topic}: {error}"
        ) from None
    return made


def publish_url(options: SinkOptions, partitions: int) -> str:
    """Return the URL for publishing. It lists the topic's broker first, then all other brokers as a fallback.

    Only superusers may list brokers. If a task of another role loses its broker, Spark retries the task.
    """
    if options.broker_url:
        return options.broker_url
    admin = _admin(options)
    name = partition_name(options.topic, 0) if partitions else options.topic
    owner: dict[str, str] = admin.get(f"/lookup/v2/topic/{topic_name.path(name)}")
    try:
        rows: list[dict[str, str]] = admin.get("/quire/v1/brokers")
    except NotAuthorized:
        rows = []
    if options.service_url.startswith("https://"):
        urls = [owner["brokerUrlTls"], *(row["serviceUrlTls"] for row in rows)]
        if not urls[0]:
            raise ConfigurationError(
                f"the broker of {options.topic} has no TLS port for publishing; set one with broker_url"
            )
    else:
        urls = [owner["brokerUrl"], *(row["serviceUrl"] for row in rows)]
    scheme = urls[0].partition("://")[0]
    hosts = [url.partition("://")[2] for url in urls if url.startswith(f"{scheme}://")]
    return f"{scheme}://{','.join(dict.fromkeys(hosts))}"


def _admin(options: SinkOptions) -> Admin:
    return Admin(
        options.service_url,
        TIMEOUT_S,
        attempts=ATTEMPTS,
        is_neighbour=True,
        tls=options.tls,
        credentials=options.credentials,
    )
