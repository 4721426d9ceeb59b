"""What the sink asks a broker over HTTP before it writes: on the driver what holds for the topic, in a task where
it is.

GET  /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions
     {"partitions": n}
GET  /admin/v2/persistent/{tenant}/{namespace}/{topic}/deduplicationEnabled?applied=true
     true or false: whether it drops duplicates, by its own policy or its namespace's
GET  …/{topic}/maxMessageSize?applied=true
     bytes, 0 or nothing: no limit but the broker's
POST …/{topic}/deduplicationEnabled
     true
PUT  /admin/v2/persistent/{tenant}/{namespace}/{topic}
GET  /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema
POST the same, {"type": "AVRO", "schema": the definition, "properties": {}}
     {"version": n, "type": "AVRO", "data": the definition, …}; {"version": n}
GET  /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}
     {"brokerUrl": "pulsar://…", …}
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
    """The topic, as the driver saw it; all tasks of a write see it so."""

    partitions: int
    """0: it has none."""
    entry_bytes_max: int | None
    """What its policies allow, below what every broker does."""
    schema: TopicSchema | None = None
    """Of typed values."""


def prepare(options: SinkOptions) -> Target:
    """See that the topic can be written as the options say.

    Raises `ConfigurationError` where it keeps duplicates, and what `Admin` raises.
    """
    admin = _admin(options)
    path = topic_name.path(options.topic)
    try:
        partitions = int(admin.get(f"/admin/v2/{path}/partitions")["partitions"])
    except NotFound:
        partitions = 0
    if options.exactly_once:
        _drop_duplicates(admin, options, f"/admin/v2/{path}")
        return Target(partitions, admin.get(f"/admin/v2/{path}/maxMessageSize?applied=true") or None)
    return Target(partitions, None)


def _drop_duplicates(admin: Admin, options: SinkOptions, path: str) -> None:
    if options.topic.startswith("non-persistent:"):
        raise ConfigurationError(
            f"{options.topic} keeps nothing, so nothing can be in it exactly once: write delivery=at_least_once"
        )
    policy = f"{path}/deduplicationEnabled"
    try:
        drops = bool(admin.get(f"{policy}?applied=true"))
    except NotFound:
        if not options.enable_deduplication:
            raise NotFound(
                f"there is no topic {options.topic}: create it with quire topics create {options.topic}, or write "
                "option enable_deduplication=true, which makes one that drops duplicates"
            ) from None
        admin.put(path)
        drops = False
    if drops:
        return
    if options.enable_deduplication:
        admin.post(policy, True)
        return
    raise ConfigurationError(
        f"topic {options.topic} keeps duplicates, so rows of tasks that are run again would be in it twice: write "
        f"option enable_deduplication=true, or curl -X POST -H 'Content-Type: application/json' -d true "
        f"{options.service_url}{policy}, or write delivery=at_least_once"
    )


def value_schema(options: SinkOptions, struct: pa.StructType) -> TopicSchema:
    """The schema by which values of this type are written: the topic's newest, or one that is registered now.

    Raises `ConfigurationError` where there is none that fits, and what `Admin` raises.
    """
    admin, path = _admin(options), topic_name.path(options.topic).partition("/")[2]
    place = f"/admin/v2/schemas/{path}/schema"
    remedy = "write option register_schema=true, which makes the rows' own the next version of it"
    try:
        answer = admin.get(place)
    except NotFound:
        if not options.register_schema:
            raise ConfigurationError(
                f"topic {options.topic} has no schema by which the struct value could be written: {remedy}, or "
                "value as to_json(value)"
            ) from None
        return _register(admin, place, options, options.schema_type, struct)
    kind = str(answer["type"])
    if kind not in ("AVRO", "JSON"):
        raise ConfigurationError(
            f"the schema of topic {options.topic} is {kind}, and structs are written by AVRO and JSON: write value as "
            "binary or string"
        )
    found = TopicSchema(kind, str(answer["data"]))
    reason = misfit(json.loads(found.definition), struct)
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
    """Where clients of the topic go: its broker first, then the others, for when that one has gone.

    Only superusers may know of the others; a task of another role that loses its broker is run again by Spark.
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
                f"the broker of {options.topic} has no port with TLS to publish to; name one with broker_url"
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
