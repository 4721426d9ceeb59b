"""CONNECT, and the pings that keep a connection alive.

Where people log in, CONNECTED follows when it is known who it is (`login`). Where they do not, a client that sends
credentials is let in like one that does not: the broker listens where only friends are. Proxies of another kind and
transactions are refused by name, so that nobody waits for an answer.
"""

from __future__ import annotations

from typing import Final

from quire import __version__
from quire.runtime.errors import ProtocolError, QuireError, TooMany
from quire.serving.policy.guard import Guard
from quire.serving.session.connection import Connection, Handler
from quire.serving.session.login import log_in
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.error_codes import NO_TRANSACTIONS

SERVER_VERSION: Final = f"Quire {__version__}"


def connect(connection: Connection, body: pb.CommandConnect) -> None:
    if connection.peer.is_connected or connection.requests.pending:
        raise ProtocolError("CONNECT came twice")
    if body.proxy_to_broker_url:
        raise ProtocolError("this broker is no proxy; connect to the broker that a lookup names")
    guard = connection.host.guard
    if guard is None:
        connection.host.connections.logged_in(connection, None)
        _welcome(connection, body)
    else:
        connection.requests.start(_log_in(connection, guard, body), "CONNECT")


async def _log_in(connection: Connection, guard: Guard, body: pb.CommandConnect) -> None:
    try:
        login = await log_in(connection, guard, body)
    except QuireError as error:
        connection.refuse(error)
        return
    if connection.is_closed:
        login.end()
        return
    connection.peer.login = login
    try:
        connection.host.connections.logged_in(connection, login.identity)
    except TooMany as error:
        connection.refuse(error)
        return
    _welcome(connection, body)


def _welcome(connection: Connection, body: pb.CommandConnect) -> None:
    settings, flags = connection.host.settings, body.feature_flags
    wants_index = flags.supports_broker_entry_metadata and settings.broker_entry_metadata
    connection.peer.connected(body.client_version, wants_index=wants_index)
    connection.inbound.allow_messages()
    connection.write(commands.connected(SERVER_VERSION, body.protocol_version, settings.message_bytes_max))


def ping(connection: Connection, _: pb.CommandPing) -> None:
    connection.write(commands.PONG)


def ignore(_connection: Connection, _body: object) -> None:
    """A PONG: that it came is all there is to know."""


def auth_response(connection: Connection, body: pb.CommandAuthResponse) -> None:
    if connection.peer.login is not None:
        connection.peer.login.refresh(body)


def refuse_coordinator(connection: Connection, body: pb.CommandTcClientConnectRequest) -> None:
    answer = pb.CommandTcClientConnectResponse(
        request_id=body.request_id, error=pb.NotAllowedError, message=NO_TRANSACTIONS
    )
    kind = pb.BaseCommand.TC_CLIENT_CONNECT_RESPONSE
    connection.write(commands.frame(pb.BaseCommand(type=kind, tcClientConnectResponse=answer)))


def refuse_transaction(connection: Connection, body: pb.CommandNewTxn) -> None:
    answer = pb.CommandNewTxnResponse(
        request_id=body.request_id, error=pb.NotAllowedError, message=NO_TRANSACTIONS
    )
    connection.write(
        commands.frame(pb.BaseCommand(type=pb.BaseCommand.NEW_TXN_RESPONSE, newTxnResponse=answer))
    )


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.CONNECT: connect,
    pb.BaseCommand.PING: ping,
    pb.BaseCommand.PONG: ignore,
    pb.BaseCommand.AUTH_RESPONSE: auth_response,
    pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST: refuse_coordinator,
    pb.BaseCommand.NEW_TXN: refuse_transaction,
}
