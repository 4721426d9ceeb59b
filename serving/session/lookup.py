"""Where things are: PARTITIONED_METADATA, LOOKUP, GET_TOPICS_OF_NAMESPACE.

Request ids of these come from another counter than those of producers and consumers and may collide with them on
one connection; each is answered by its own type of response, also when it fails.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from quire.runtime.errors import ConfigurationError, LimitExceeded
from quire.serving.model.ports import NotAllowed
from quire.serving.model.topics_pattern import TopicsPattern, topics_hash
from quire.serving.names import check_name
from quire.serving.session.connection import Connection, Handler
from quire.serving.session.lane import Lane
from quire.serving.session.permissions import permit, permit_in_namespace
from quire.serving.session.topic_watch import matching, namespace_of
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.error_codes import NO_TRANSACTIONS

_Mode = pb.CommandGetTopicsOfNamespace

_log = logging.getLogger(__name__)

_COORDINATORS: Final = "persistent://pulsar/system/transaction_coordinator_assign"
"""What a client that wants transactions asks for first; that it is not there would tell its user nothing."""


def partitioned_metadata(connection: Connection, body: pb.CommandPartitionedTopicMetadata) -> None:
    refusal = partial(commands.partitions_failed, body.request_id)
    work = connection.answer("PARTITIONED_METADATA", partial(_partitions, connection, body), refusal)
    connection.requests.start(work, "PARTITIONED_METADATA")


async def _partitions(connection: Connection, body: pb.CommandPartitionedTopicMetadata) -> bytes:
    if body.topic == _COORDINATORS:
        raise NotAllowed(NO_TRANSACTIONS)
    await permit(connection, pb.BaseCommand.PARTITIONED_METADATA, body)
    topics = connection.host.topics
    count = await topics.partitions(body.topic, create=body.metadata_auto_creation_enabled)
    return commands.partitions(body.request_id, count)


def lookup(connection: Connection, body: pb.CommandLookupTopic) -> None:
    refusal = partial(commands.lookup_failed, body.request_id)
    connection.requests.start(
        connection.answer("LOOKUP", partial(_lookup, connection, body), refusal), "LOOKUP"
    )


async def _lookup(connection: Connection, body: pb.CommandLookupTopic) -> bytes:
    await permit(connection, pb.BaseCommand.LOOKUP, body)
    check_name("the listener's name", body.advertised_listener_name)
    owner = await connection.host.topics.look_up(body.topic, take=body.authoritative)
    urls = owner.urls_for(body.advertised_listener_name)
    # Whoever is sent on asks there with the `authoritative` that we say here, and so makes that broker the owner.
    return commands.lookup_found(body.request_id, *urls, redirect=not owner.owns, authoritative=True)


def topics_of_namespace(connection: Connection, body: pb.CommandGetTopicsOfNamespace) -> None:
    if connection.lists is None:
        connection.lists = Lane(connection)
    refusal = partial(commands.error, body.request_id)
    work = connection.answer("GET_TOPICS_OF_NAMESPACE", partial(_topics, connection, body), refusal)
    connection.lists.run_exclusively(work, "GET_TOPICS_OF_NAMESPACE")


async def _topics(connection: Connection, body: pb.CommandGetTopicsOfNamespace) -> bytes:
    tenant, namespace = namespace_of(body.namespace)
    await permit_in_namespace(connection, pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, body, tenant, namespace)
    names: list[str] = []
    for domain, other in (("persistent", _Mode.NON_PERSISTENT), ("non-persistent", _Mode.PERSISTENT)):
        if body.mode != other:
            names += await connection.host.topics.names(tenant, namespace, domain)
    return await _matching(connection, body, names)


async def _matching(connection: Connection, body: pb.CommandGetTopicsOfNamespace, names: list[str]) -> bytes:
    """What matches, and nothing if that is what the client knows. Who asks for what we cannot match filters itself."""
    filtered = False
    if body.topics_pattern:
        try:
            names = await matching(TopicsPattern(body.topics_pattern), names, connection.host.clock)
            filtered = True
        except (ConfigurationError, LimitExceeded) as error:
            _log.info("%s gets all topics and filters itself: %s", connection.peer.name, error)
    elif not body.topics_hash:
        return commands.topics_of_namespace(body.request_id, names)
    now = topics_hash(names)
    if now == body.topics_hash:
        return commands.topics_of_namespace(body.request_id, (), now, filtered=filtered, changed=False)
    return commands.topics_of_namespace(body.request_id, names, now, filtered=filtered)


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.PARTITIONED_METADATA: partitioned_metadata,
    pb.BaseCommand.LOOKUP: lookup,
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: topics_of_namespace,
}
