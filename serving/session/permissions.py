"""Which command needs which permission, and the questions that handlers ask by it.

Every command that a client may send has a row. `None`: it is about a producer or a consumer of this connection, which
was let in by PRODUCER or SUBSCRIBE and is looked at again when permissions change (`revocation`).

Permissions are asked for where producers, consumers and watchers are made, and for each question about a topic; never
for a message.
"""

from __future__ import annotations

from typing import Any, Final

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
    _Type.TC_CLIENT_CONNECT_REQUEST: Action.OPEN,  # refused whoever asks
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
    """`body` is of the command, and names a topic. Raises `NotAuthorized` when this connection may not do this to it;
    `Unavailable`.
    """
    if connection.host.guard is not None:
        await _check(connection, kind, place_of(body.topic, subscription), body.request_id)


async def permit_in_namespace(
    connection: Connection, kind: _Type.Type, body: Any, tenant: str, namespace: str
) -> None:
    """As `permit`, of a namespace."""
    if connection.host.guard is not None:
        await _check(connection, kind, Place(tenant, namespace), body.request_id)


async def _check(connection: Connection, kind: _Type.Type, place: Place, request_id: int) -> None:
    guard, login, action = connection.host.guard, connection.peer.login, PERMISSIONS[kind]
    assert guard is not None and login is not None and action is not None
    name, address = _Type.Type.Name(kind), connection.peer.address
    await guard.check(login.identity, action, place, address=address, what=name, request=str(request_id))
