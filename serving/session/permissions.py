"""Permissions that commands require, and functions with which handlers check them.

The table has a row for every command that a client may send. `None` means that the command concerns a producer,
consumer or watcher of this connection. Its permission was checked when it was created, and is checked again when
permissions change (`revocation`).

Permissions are checked when producers, consumers and watchers are created, and for each request about a topic, but not
for each message.
"""

from __future__ import annotations

from typing import Any, Final

from quire.security.audit import Caller
from quire.security.authorization import Action, Place
from quire.serving.policy.guard import place_of
from quire.serving.session.connection import Connection
from quire.wire import pulsar_pb2 as pb

_Type = pb.BaseCommand

PERMISSIONS: Final[dict[int, Action | None]] = {
    _Type.CONNECT: Action.OPEN,
    _Type.AUTH_RESPONSE: Action.OPEN,
    _Type.PING: Action.OPEN,
    _Type.PONG: Action.OPEN,
    _Type.TC_CLIENT_CONNECT_REQUEST: Action.OPEN,  # always rejected
    _Type.NEW_TXN: Action.OPEN,
    _Type.PARTITIONED_METADATA: Action.LOOKUP,
    _Type.LOOKUP: Action.LOOKUP,
    _Type.GET_TOPICS_OF_NAMESPACE: Action.LIST_TOPICS,
    _Type.WATCH_TOPIC_LIST: Action.LIST_TOPICS,
    _Type.WATCH_TOPIC_LIST_CLOSE: None,
    _Type.GET_SCHEMA: Action.LOOKUP,
    _Type.GET_OR_CREATE_SCHEMA: Action.PRODUCE,
    _Type.PRODUCER: Action.PRODUCE,
    _Type.SEND: None,
    _Type.CLOSE_PRODUCER: None,
    _Type.SUBSCRIBE: Action.CONSUME,
    _Type.FLOW: None,
    _Type.ACK: None,
    _Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: None,
    _Type.CLOSE_CONSUMER: None,
    _Type.UNSUBSCRIBE: None,
    _Type.SEEK: None,
    _Type.GET_LAST_MESSAGE_ID: None,
    _Type.CONSUMER_STATS: None,
}


async def permit(connection: Connection, kind: _Type.Type, body: Any, subscription: str = "") -> None:
    """Check that this connection may send the command, whose `body` contains a topic.

    Raises `NotAuthorized`, `Unavailable`.
    """
    if connection.context.guard is not None:
        await _check(connection, kind, place_of(body.topic, subscription), body.request_id)


async def may_produce(connection: Connection, topic: str) -> bool:
    """Return whether this connection may produce to `topic`, without writing an audit record. Raises `Unavailable`."""
    guard, identity = connection.context.guard, connection.peer.identity
    if guard is None:
        return True
    assert identity is not None
    return (await guard.decide(identity, Action.PRODUCE, place_of(topic))).allowed


async def permit_in_namespace(
    connection: Connection, kind: _Type.Type, body: Any, tenant: str, namespace: str
) -> None:
    """Check a command whose body contains a namespace; see `permit`."""
    if connection.context.guard is not None:
        await _check(connection, kind, Place(tenant, namespace), body.request_id)


async def _check(connection: Connection, kind: _Type.Type, place: Place, request_id: int) -> None:
    guard, identity, action = connection.context.guard, connection.peer.identity, PERMISSIONS[kind]
    assert guard is not None and identity is not None and action is not None
    name, address = _Type.Type.Name(kind), connection.peer.address
    await guard.check(Caller(identity, address, name, str(request_id)), action, place)
