"""Handlers of lookups: PARTITIONED_METADATA, LOOKUP, GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST.

Clients number lookups and the requests of producers and consumers by different counters, so their request ids may
collide on one connection. Therefore each lookup has its own type of response, also for errors.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from quire.runtime.errors import ConfigurationError, LimitExceeded, NotAuthorized
from quire.runtime.limits import TOPIC_WATCHERS_PER_CONNECTION_MAX
from quire.serving.model.ports import NotAllowed
from quire.serving.model.topics_pattern import TopicsPattern, topics_hash
from quire.serving.names import check_name
from quire.serving.session.lane import Lane
from quire.serving.session.permissions import permit, permit_in_namespace
from quire.serving.session.session import Handler, Session
from quire.serving.session.topic_watch import TopicWatcher, matching, namespace_of
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.error_codes import NO_TRANSACTIONS

_Mode = pb.CommandGetTopicsOfNamespace

_log = logging.getLogger(__name__)

_COORDINATORS: Final = "persistent://pulsar/system/transaction_coordinator_assign"
"""Topic that a client with transactions looks up first; NotFound would not explain what is missing."""


def partitioned_metadata(session: Session, body: pb.CommandPartitionedTopicMetadata) -> None:
    refusal = partial(commands.partitions_failed, body.request_id)
    work = session.answer("PARTITIONED_METADATA", partial(_partitions, session, body), refusal)
    session.requests.start(work, "PARTITIONED_METADATA")


async def _partitions(session: Session, body: pb.CommandPartitionedTopicMetadata) -> bytes:
    if body.topic == _COORDINATORS:
        raise NotAllowed(NO_TRANSACTIONS)
    try:
        await permit(session, pb.BaseCommand.PARTITIONED_METADATA, body)
    except NotAuthorized as error:  # clients match Pulsar's words
        raise NotAuthorized(f"Client is not authorized to Get Partition Metadata: {error}") from None
    topics = session.context.topics
    count = await topics.partitions(body.topic, create=body.metadata_auto_creation_enabled)
    return commands.partitions(body.request_id, count)


def lookup(session: Session, body: pb.CommandLookupTopic) -> None:
    refusal = partial(commands.lookup_failed, body.request_id)
    session.requests.start(session.answer("LOOKUP", partial(_lookup, session, body), refusal), "LOOKUP")


async def _lookup(session: Session, body: pb.CommandLookupTopic) -> bytes:
    await permit(session, pb.BaseCommand.LOOKUP, body)
    check_name("the listener's name", body.advertised_listener_name)
    owner = await session.context.topics.look_up(body.topic, take=body.authoritative)
    urls = owner.urls_for(body.advertised_listener_name)
    # A redirected client sends `authoritative` to the other broker, which then becomes the owner.
    return commands.lookup_found(body.request_id, *urls, redirect=not owner.owns, authoritative=True)


def topics_of_namespace(session: Session, body: pb.CommandGetTopicsOfNamespace) -> None:
    if session.lists is None:
        session.lists = Lane(session)
    refusal = partial(commands.error, body.request_id)
    work = session.answer("GET_TOPICS_OF_NAMESPACE", partial(_topics, session, body), refusal)
    session.lists.run_exclusively(work, "GET_TOPICS_OF_NAMESPACE")


async def _topics(session: Session, body: pb.CommandGetTopicsOfNamespace) -> bytes:
    tenant, namespace = namespace_of(body.namespace)
    await permit_in_namespace(session, pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, body, tenant, namespace)
    names: list[str] = []
    for domain, other in (("persistent", _Mode.NON_PERSISTENT), ("non-persistent", _Mode.PERSISTENT)):
        if body.mode != other:
            names += await session.context.topics.names(tenant, namespace, domain)
    return await _matching(session, body, names)


async def _matching(session: Session, body: pb.CommandGetTopicsOfNamespace, names: list[str]) -> bytes:
    """Return a response with the names that match the pattern, or without names if the client's hash matches.

    If the broker does not support the pattern, all names are returned, and the client filters them itself.
    """
    filtered = False
    if body.topics_pattern:
        try:
            names = await matching(TopicsPattern(body.topics_pattern), names, session.context.clock)
            filtered = True
        except (ConfigurationError, LimitExceeded) as error:
            _log.info(
                "cannot match a topics pattern, the client filters: connection=%s reason=%s",
                session.peer.name,
                error,
            )
    elif not body.topics_hash:
        return commands.topics_of_namespace(body.request_id, names)
    now = topics_hash(names)
    if now == body.topics_hash:
        return commands.topics_of_namespace(body.request_id, (), now, filtered=filtered, changed=False)
    return commands.topics_of_namespace(body.request_id, names, now, filtered=filtered)


def watch(session: Session, body: pb.CommandWatchTopicList) -> None:
    watcher = session.watchers.get(body.watcher_id)
    if watcher is None:
        if len(session.watchers) >= TOPIC_WATCHERS_PER_CONNECTION_MAX:
            refusal = NotAllowed(
                f"this connection has {TOPIC_WATCHERS_PER_CONNECTION_MAX} topic watchers, which is the limit"
            )
            session.refuse_request("WATCH_TOPIC_LIST", body.request_id, refusal)
            return
        watcher = session.watchers[body.watcher_id] = TopicWatcher(session, body.watcher_id)
    watcher.lane.run_exclusively(watcher.open(body), "WATCH_TOPIC_LIST")


def watch_no_more(session: Session, body: pb.CommandWatchTopicListClose) -> None:
    watcher = session.watchers.get(body.watcher_id)
    if watcher is None:
        session.write(commands.success(body.request_id))
    else:
        watcher.close_on_request(body.request_id)


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.PARTITIONED_METADATA: partitioned_metadata,
    pb.BaseCommand.LOOKUP: lookup,
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: topics_of_namespace,
    pb.BaseCommand.WATCH_TOPIC_LIST: watch,
    pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE: watch_no_more,
}
