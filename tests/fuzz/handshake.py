"""What somebody sends to a broker where people log in, from the first byte on."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from functools import cache
from typing import Any

from quire.runtime.clock import SystemClock
from quire.runtime.errors import ProtocolError
from quire.security.configuration import (
    AuthenticationConfiguration,
    AuthorizationConfiguration,
    Configuration,
    Token,
)
from quire.security.identity import is_role
from quire.security.security import make_security
from quire.serving.broker import Broker
from quire.serving.session.session import Session
from quire.serving.settings import BrokerSettings
from quire.serving.topic.services import Services
from quire.testing.cluster import MemoryCluster
from quire.testing.objects import MemoryObjectStore
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.frame import FrameCutter
from tests.fuzz.security import SECRET

TURNS_MAX = 10_000
_LOOP = asyncio.new_event_loop()


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 4711) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(list_of_data)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


@cache
def _broker() -> Broker:
    return _LOOP.run_until_complete(_made())


async def _made() -> Broker:
    """In memory, with connections that are fed by hand."""
    clock, ledgers = SystemClock(), MemoryCluster(3).join()
    key = "data:;base64," + base64.b64encode(SECRET).decode()
    security = make_security(
        Configuration(
            authentication=AuthenticationConfiguration(token=Token(secret_key=key)),
            authorization=AuthorizationConfiguration(proxies=("gateway",)),
        ),
        clock,
    )
    settings, archive = (
        BrokerSettings(listen="127.0.0.1:0"),
        Archive(TrustedPlace(MemoryObjectStore()), clock),
    )
    broker = Broker(Services(settings, ledgers.store, ledgers, archive, clock, security=security))
    await broker.start()
    return broker


def handshake(data: bytes) -> None:
    """Whoever is let in has a role; whoever is not is told so and closed; nobody waits, and nothing breaks."""
    if not data:
        return
    _LOOP.run_until_complete(_fed(_broker(), data[1:], 1 + data[0]))


async def _fed(broker: Broker, data: bytes, piece_bytes: int) -> None:
    connection, transport = broker.sessions.accept(), _Transport()
    connection.connection_made(transport)
    try:
        for at in range(0, len(data), piece_bytes):
            _feed(connection, transport, data[at : at + piece_bytes])
            for _ in range(TURNS_MAX):
                if not connection.requests.pending:
                    break
                await asyncio.sleep(0)
            assert not connection.requests.pending, "something waits"
        cut = [one for one in FrameCutter().feed(transport.written) if isinstance(one, Command)]
        answers = [one for one in cut if one.kind != pb.BaseCommand.PING]
        for answer in answers:
            if isinstance(answer.body, pb.CommandError):
                assert answer.body.message != "internal error" and len(answer.body.message) < 1_000
        if connection.login is not None:
            identity = connection.peer.identity
            assert identity is not None and is_role(identity.role) and connection.peer.is_connected

        else:
            assert not connection.peer.is_connected and len(answers) <= 1
            assert not answers or (answers[0].kind == pb.BaseCommand.ERROR and transport.is_closed)
    except ProtocolError as error:
        raise AssertionError("the broker wrote what is no frame") from error
    finally:
        connection.connection_lost(None)


def _feed(connection: Session, transport: _Transport, data: bytes) -> None:
    while data and not transport.is_closed:
        room = connection.get_buffer(-1)
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        connection.buffer_updated(taken)
        data = data[taken:]
