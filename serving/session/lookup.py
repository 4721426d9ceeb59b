"""Where things are: PARTITIONED_METADATA, LOOKUP, GET_TOPICS_OF_NAMESPACE.

Request ids of these come from another counter than those of producers and consumers and may collide with them on
one connection; each is answered by its own type of response, also when it fails.
"""

from __future__ import annotations

from typing import Final

from quire.runtime.errors import ConfigurationError, QuireError
from quire.serving.ports import NotAllowed
from quire.serving.session.connection import Connection, Handler
from quire.serving.session.errors import NO_TRANSACTIONS, code_of
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

_Mode = pb.CommandGetTopicsOfNamespace

_COORDINATORS: Final = "persistent://pulsar/system/transaction_coordinator_assign"
"""What a client that wants transactions asks for first; that it is not there would tell its user nothing."""


def partitioned_metadata(connection: Connection, body: pb.CommandPartitionedTopicMetadata) -> None:
    connection.start(_partitions(connection, body), "PARTITIONED_METADATA")


async def _partitions(connection: Connection, body: pb.CommandPartitionedTopicMetadata) -> None:
    try:
        if body.topic == _COORDINATORS:
            raise NotAllowed(NO_TRANSACTIONS)
        count = await connection.host.client_partitions(
            body.topic, create=body.metadata_auto_creation_enabled
        )
    except QuireError as error:
        connection.write(commands.partitions_failed(body.request_id, code_of(error), str(error)))
    else:
        connection.write(commands.partitions(body.request_id, count))


def lookup(connection: Connection, body: pb.CommandLookupTopic) -> None:
    connection.start(_lookup(connection, body), "LOOKUP")


async def _lookup(connection: Connection, body: pb.CommandLookupTopic) -> None:
    try:
        owner = await connection.host.look_up(body.topic, take=body.authoritative)
    except QuireError as error:
        connection.write(commands.lookup_failed(body.request_id, code_of(error), str(error)))
    else:
        # Whoever is sent on asks there with the `authoritative` that we say here, and so makes that broker the owner.
        connection.write(
            commands.lookup_found(
                body.request_id, owner.service_url, redirect=not owner.owns, authoritative=True
            )
        )


def topics_of_namespace(connection: Connection, body: pb.CommandGetTopicsOfNamespace) -> None:
    connection.start(_topics(connection, body), "GET_TOPICS_OF_NAMESPACE")


async def _topics(connection: Connection, body: pb.CommandGetTopicsOfNamespace) -> None:
    try:
        tenant, _, namespace = body.namespace.partition("/")
        if not tenant or not namespace:
            raise ConfigurationError(f"{body.namespace!r} is no namespace; write tenant/namespace")
        names: list[str] = []
        for domain, other in (("persistent", _Mode.NON_PERSISTENT), ("non-persistent", _Mode.PERSISTENT)):
            if body.mode != other:
                names += await connection.host.list_topics(tenant, namespace, domain)
    except QuireError as error:
        connection.write(commands.error(body.request_id, code_of(error), str(error)))
    else:
        connection.write(commands.topics_of_namespace(body.request_id, names))


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.PARTITIONED_METADATA: partitioned_metadata,
    pb.BaseCommand.LOOKUP: lookup,
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: topics_of_namespace,
}
