"""What a connection may become after CONNECT, and that it is nobody before: by frames, for stock clients hide it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quire.serving.broker import Broker
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_one

from ..conftest import BrokerHouse
from ..security import PASSWORD, security, token
from .test_connection import Client, producer

ENTRY = encode_one(OutgoingMessage(b"x"), "p", 0, 1)


@pytest.fixture
async def broker(house: BrokerHouse, tmp_path: Path) -> Broker:
    house.security = security(tmp_path)
    return await house.start()


def hello(role: str, seconds: float | None = None) -> bytes:
    return commands.connect("test", "token", token(role, seconds=seconds).encode())


def renewal(role: str, seconds: float | None = 3_600) -> bytes:
    return commands.auth_response("test", "token", token(role, seconds=seconds).encode())


async def challenged(broker: Broker, seconds: float = 0.5) -> Client:
    """A session of `app` whose credentials have expired, and that was asked for new ones."""
    client = Client(broker)
    client.send(hello("app", seconds))
    first, second = await client.answers(2)
    assert (first.kind, second.kind) == (pb.BaseCommand.CONNECTED, pb.BaseCommand.AUTH_CHALLENGE)
    return client


def role(client: Client) -> str:
    identity = client.connection.peer.identity
    assert identity is not None
    return identity.role


async def goes_on(client: Client) -> bool:
    client.send(commands.PING)
    (answer,) = await client.answers(1)
    return answer.kind == pb.BaseCommand.PONG and not client.transport.closed


@pytest.mark.parametrize(
    "answer", [renewal("app"), commands.auth_response("test", "basic", f"app:{PASSWORD}".encode())]
)
async def test_credentials_of_the_same_role_renew_a_session(broker: Broker, answer: bytes) -> None:
    client = await challenged(broker)
    client.send(answer)
    async with asyncio.timeout(30):
        while client.connection.requests.pending:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert role(client) == "app" and await goes_on(client)
    client.connection.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (renewal("other"), "cannot change"),
        (renewal("admin"), "cannot change"),
        (renewal("app", -5), "expired"),
        (commands.auth_response("test", "token", b"no token"), "not a signed"),
        (commands.auth_response("test", "basic", b"app:wrong"), "password"),
        (commands.auth_response("test", "", b""), "log in"),
    ],
)
async def test_other_credentials_end_a_session(broker: Broker, answer: bytes, said: str) -> None:
    client = await challenged(broker)
    client.send(answer)
    (refusal,) = await client.answers(1)
    assert said in refusal.body.message  # type: ignore[union-attr]
    assert client.transport.closed and role(client) == "app"


async def test_credentials_that_nobody_asked_for_change_nothing(broker: Broker) -> None:
    client = Client(broker)
    client.send(hello("app"))
    await client.answers(1)
    client.send(renewal("admin"))
    assert await goes_on(client) and role(client) == "app"
    client.connection.close()


async def test_a_client_that_cannot_renew_is_not_asked(broker: Broker) -> None:
    body = pb.CommandConnect(
        client_version="old", auth_method_name="token", auth_data=token("app", seconds=0.5).encode()
    )
    client = Client(broker)
    client.send(commands.frame(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=body)))
    _, refusal = await client.answers(2)
    assert "expired" in refusal.body.message and client.transport.closed  # type: ignore[union-attr]


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_a_second_connect_ends_the_connection(broker: Broker, is_awaited: bool) -> None:
    client = Client(broker)
    client.send(hello("app"))
    if is_awaited:
        await client.answers(1)
    client.send(hello("admin"))
    (refusal,) = await client.answers(1)
    assert refusal.kind == pb.BaseCommand.ERROR and client.transport.closed
    await asyncio.sleep(0.1)
    assert client.received() == [], "also when its credentials have been looked at"


MARKER = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, marker_type=1)
SENDS = {
    "a run": b"".join(part for at in range(3) for part in commands.send(1, at, 1, ENTRY)),
    "a special one": b"".join(commands.send(1, 0, 1, message.seal(MARKER, b"x"))),
    "a damaged one": b"".join(commands.send(1, 0, 1, ENTRY[:-1] + b"y")),
    "a producer": producer(1),
}


@pytest.mark.parametrize("what", SENDS)
@pytest.mark.parametrize("is_logging_in", [True, False])
async def test_nothing_is_taken_before_log_in(broker: Broker, what: str, is_logging_in: bool) -> None:
    client = Client(broker)
    if is_logging_in:
        client.send(hello("app"))
    client.send(SENDS[what])
    (refusal,) = await client.answers(1)
    assert "CONNECT" in refusal.body.message and client.transport.closed  # type: ignore[union-attr]


@pytest.mark.parametrize("what", SENDS)
async def test_nothing_is_taken_before_connect_where_nobody_logs_in(house: BrokerHouse, what: str) -> None:
    client = Client(await house.start())
    client.send(SENDS[what])
    (refusal,) = await client.answers(1)
    assert "CONNECT" in refusal.body.message and client.transport.closed  # type: ignore[union-attr]


async def test_a_proxys_session_is_not_asked_for_new_credentials(broker: Broker) -> None:
    """New credentials would be those of the proxy, and would say nothing new of its client."""
    body = pb.CommandConnect(
        client_version="proxy",
        auth_method_name="token",
        auth_data=token("gateway", seconds=0.5).encode(),
        original_principal="app",
        feature_flags=pb.FeatureFlags(supports_auth_refresh=True),
    )
    client = Client(broker)
    client.send(commands.frame(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=body)))
    first, second = await client.answers(2)
    assert (first.kind, second.kind) == (pb.BaseCommand.CONNECTED, pb.BaseCommand.ERROR)
    assert client.transport.closed
