"""Whose credentials a gateway shows brokers: what reaches them, field by field."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quire.security.authentication import REQUEST_ID
from quire.security.configuration import AuthorizationConfiguration, Credentials
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.security import security, token

from .conftest import Front
from .raw import Raw, ScriptedBroker
from .test_paths import BEARER, Recorder, ask, port_of

OWN = token("gateway")


@pytest.fixture
async def broker(script: Any) -> ScriptedBroker:
    made: ScriptedBroker = await script()
    return made


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    made = Recorder()
    yield made
    await made.stop()


@pytest.fixture
async def proxy(broker: ScriptedBroker, recorder: Recorder, tmp_path: Path) -> AsyncIterator[Front]:
    rules = AuthorizationConfiguration(proxies=("gateway",))
    front = Front(security(tmp_path, client=Credentials(method="token", token=OWN), authorization=rules))
    await front.start()
    await front.register("only", broker.url, await recorder.start())
    yield front
    await front.stop()


def hello(role: str, proxy_to: str, **more: Any) -> bytes:
    body = pb.CommandConnect(
        client_version="test", auth_method_name="token", auth_data=token(role).encode(), **more
    )
    if proxy_to:
        body.proxy_to_broker_url = proxy_to
    return commands.frame(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=body))


@pytest.mark.parametrize("is_relay", [True, False])
async def test_nothing_that_a_client_says_of_itself_reaches_a_broker(
    proxy: Front, broker: ScriptedBroker, is_relay: bool
) -> None:
    client = await Raw.open(proxy.service_url)
    said = {"original_auth_data": "x", "original_auth_method": "token", "auth_method": pb.AuthMethodAthens}
    client.write(hello("app", broker.url if is_relay else "", **said))
    assert (await client.next()).kind == pb.BaseCommand.CONNECTED
    (command,) = broker.received
    told = command.body
    assert isinstance(told, pb.CommandConnect)
    assert (told.auth_method_name, told.auth_data, told.original_principal) == ("token", OWN.encode(), "app")
    assert not any(told.HasField(name) for name in said)  # type: ignore[arg-type]
    client.close()


@pytest.mark.parametrize(("role", "more"), [("gateway", {}), ("app", {"original_principal": "admin"})])
@pytest.mark.parametrize("is_relay", [True, False])
async def test_who_speaks_for_others_reaches_no_broker(
    proxy: Front, broker: ScriptedBroker, recorder: Recorder, role: str, more: dict[str, str], is_relay: bool
) -> None:
    client = await Raw.open(proxy.service_url)
    client.write(hello(role, broker.url if is_relay else "", **more))
    refusal = await client.next()
    assert refusal.kind == pb.BaseCommand.ERROR and "cannot act for other roles" in refusal.body.message  # type: ignore[union-attr]
    original = "".join(f"X-Original-Principal: {name}\r\n" for name in more.values())
    status, _ = await ask(port_of(proxy), "/quire/v1/whoami", BEARER.format(token(role)) + original)
    assert status == 403 and broker.received == [] and recorder.asked == []
    client.close()


@pytest.mark.parametrize(("given", "expected"), [("mine-1", "mine-1"), ("a b", "[0-9a-f]{16}")])
async def test_a_broker_calls_a_request_what_it_is_called_here(
    proxy: Front, recorder: Recorder, given: str, expected: str
) -> None:
    more = BEARER.format(token("app")) + f"{REQUEST_ID}: {given}\r\n"
    assert (await ask(port_of(proxy), "/quire/v1/whoami", more))[0] == 200
    assert re.fullmatch(expected, recorder.asked[0].headers[REQUEST_ID])
