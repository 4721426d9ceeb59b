"""Handlers of CONNECT, of pings, and of commands that the broker always rejects.

With authentication, the broker sends CONNECTED after a successful login (`login`). Without it, credentials are ignored.
Proxied connections and transactions are not supported. They are rejected explicitly, so that no client waits in vain.
"""

from __future__ import annotations

from typing import Final

from quire import __version__
from quire.runtime.errors import ProtocolError, QuireError, TooMany
from quire.serving.policy.guard import Guard
from quire.serving.session.login import log_in
from quire.serving.session.session import Handler, Session
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.error_codes import NO_TRANSACTIONS

SERVER_VERSION: Final = f"Quire {__version__}"


def connect(session: Session, body: pb.CommandConnect) -> None:
    if session.peer.is_connected or session.requests.pending:
        raise ProtocolError("the client sent CONNECT twice")
    if body.proxy_to_broker_url:
        raise ProtocolError("this broker is not a proxy; connect to the broker that a lookup returns")
    guard = session.context.guard
    if guard is None:
        session.connections.logged_in(session, None)
        _welcome(session, body)
    else:
        session.requests.start(_log_in(session, guard, body), "CONNECT")


async def _log_in(session: Session, guard: Guard, body: pb.CommandConnect) -> None:
    try:
        login = await log_in(session, guard, body)
    except QuireError as error:
        session.refuse(error)
        return
    if session.is_closed:
        login.end()
        return
    session.login = login
    try:
        session.connections.logged_in(session, session.peer.identity)
    except TooMany as error:
        session.refuse(error)
        return
    _welcome(session, body)


def _welcome(session: Session, body: pb.CommandConnect) -> None:
    settings, flags = session.context.settings, body.feature_flags
    wants_index = flags.supports_broker_entry_metadata and settings.broker_entry_metadata
    session.peer.connected(body.client_version, wants_index=wants_index)
    session.inbound.allow_messages()
    session.write(commands.connected(SERVER_VERSION, body.protocol_version, settings.message_bytes_max))


def ping(session: Session, _: pb.CommandPing) -> None:
    session.write(commands.PONG)


def ignore(_session: Session, _body: object) -> None:
    """Ignore a PONG, because `Peer.was_heard` already records that the client sent something."""


def auth_response(session: Session, body: pb.CommandAuthResponse) -> None:
    if session.login is not None:
        session.login.refresh(body)


def refuse_coordinator(session: Session, body: pb.CommandTcClientConnectRequest) -> None:
    answer = pb.CommandTcClientConnectResponse(
        request_id=body.request_id, error=pb.NotAllowedError, message=NO_TRANSACTIONS
    )
    kind = pb.BaseCommand.TC_CLIENT_CONNECT_RESPONSE
    session.write(commands.frame(pb.BaseCommand(type=kind, tcClientConnectResponse=answer)))


def refuse_transaction(session: Session, body: pb.CommandNewTxn) -> None:
    answer = pb.CommandNewTxnResponse(
        request_id=body.request_id, error=pb.NotAllowedError, message=NO_TRANSACTIONS
    )
    session.write(commands.frame(pb.BaseCommand(type=pb.BaseCommand.NEW_TXN_RESPONSE, newTxnResponse=answer)))


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.CONNECT: connect,
    pb.BaseCommand.PING: ping,
    pb.BaseCommand.PONG: ignore,
    pb.BaseCommand.AUTH_RESPONSE: auth_response,
    pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST: refuse_coordinator,
    pb.BaseCommand.NEW_TXN: refuse_transaction,
}
