"""Every door of a broker, from the code's own tables: who comes without credentials, with wrong or expired ones, with
right ones but without the permission, and with it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quire.metadata.records import Policies, TenantRecord
from quire.runtime import probes
from quire.security.authorization import Action
from quire.serving.admin.app import make_app
from quire.serving.admin.resources import routes
from quire.serving.admin.route import Route
from quire.serving.broker import Broker
from quire.serving.console import pages
from quire.serving.session.permissions import PERMISSIONS
from quire.serving.session.sessions import TABLE
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.frame import FrameCutter
from tests.frames import ask_schema, bring_schema

from .conftest import BrokerHouse
from .security import security, token

LESSER = {
    Action.LOOKUP: ["nobody"],
    Action.PRODUCE: ["nobody", "reader"],
    Action.CONSUME: ["nobody", "writer"],
    Action.LIST_TOPICS: ["nobody"],
    Action.ADMINISTER: ["nobody", "reader", "writer", "other-boss"],
    Action.SUPERUSER: ["nobody", "reader", "writer", "boss"],
    Action.OPEN: [],
}
"""Roles that may not, by what is asked for."""

ENOUGH = {
    Action.LOOKUP: ["reader", "writer", "boss", "admin"],
    Action.PRODUCE: ["writer", "boss", "admin"],
    Action.CONSUME: ["reader", "boss", "admin"],
    Action.LIST_TOPICS: ["reader", "writer", "boss", "admin"],
    Action.ADMINISTER: ["boss", "admin"],
    Action.SUPERUSER: ["admin"],
    Action.OPEN: ["nobody", "admin"],
}

NAMES = {
    "domain": "persistent",
    "tenant": "public",
    "namespace": "default",
    "topic": "orders",
    "subscription": "s",
    "cluster": "standalone",
    "bundle": "0x00000000_0xffffffff",
}
TOPIC = "persistent://public/default/orders"


@pytest.fixture
async def broker(house: BrokerHouse, tmp_path: Path) -> Broker:
    house.security = security(tmp_path)
    broker = await house.start()
    tenant = TenantRecord(name="other", admin_roles=("other-boss",))
    await broker.namespaces.create_tenant("other", tenant)
    await grant(broker)
    return broker


async def grant(broker: Broker) -> None:
    """What the roles may, whatever was done before."""
    await broker.namespaces.ensure_defaults()
    tenant = TenantRecord(name="public", admin_roles=("boss",))
    await broker.namespaces.update_tenant("public", tenant)
    granted = {"reader": ("consume",), "writer": ("produce",), "nobody": ("functions",)}
    await broker.namespaces.change("public", "default", lambda _: Policies(permissions=granted))


# -- REST ------------------------------------------------------------------------------------------------


@pytest.fixture
async def url(broker: Broker) -> AsyncIterator[str]:
    runner = web.AppRunner(make_app(broker), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield "http://{}:{}".format(*runner.addresses[0][:2])
    await runner.cleanup()


def path_of(route: Route) -> str:
    return re.sub(r"\{(\w+)(?::(?:[^{}]|\{[^{}]*\})*)?\}", lambda found: NAMES.get(found[1], "1"), route.path)


async def status(session: aiohttp.ClientSession, route: Route, url: str, credentials: str) -> int:
    headers = {"Authorization": f"Bearer {credentials}"} if credentials else {}
    async with session.request(
        route.method, url + path_of(route), headers=headers, allow_redirects=False
    ) as answer:
        return answer.status


def test_whatever_is_served_over_http_is_a_row_or_a_probe_or_a_file_of_the_console(broker: Broker) -> None:
    rows = {(one.method, re.sub(r":[^{}]*(?=\})", "", one.path)) for one in routes(broker)}
    for found in make_app(broker).router.routes():
        if found.resource is None or found.method == "HEAD":
            continue
        path = found.resource.canonical
        is_for_all = path in probes.PATHS or (pages.is_here(path) and found.method == "GET")
        assert is_for_all or isinstance(getattr(found.handler, "__self__", None), Route), (
            f"{found.method} {path} asks nobody who he is"
        )
    assert rows


async def test_each_route_lets_in_whom_it_says(broker: Broker, url: str) -> None:
    wrong = [
        "",
        "no-token",
        token("admin", secret=b"another secret of more than 32 bytes..."),
        token("admin", seconds=-5),
    ]
    async with aiohttp.ClientSession() as session:
        for route in routes(broker):
            name = f"{route.method} {path_of(route)}"
            for credentials in wrong:
                assert await status(session, route, url, credentials) == 401, name
            for role in LESSER[route.may]:
                assert await status(session, route, url, token(role)) == 403, f"{name} as {role}"
        tenants = await broker.namespaces.tenants()
        assert sorted(tenants) == ["other", "public"], "nothing was changed"
        assert not broker.registry.in_namespace("public", "default")


async def test_who_administers_a_tenant_does_not_lift_its_limits(broker: Broker, url: str) -> None:
    path = f"{url}/admin/v2/namespaces/public"
    asked = [
        ("PUT", f"{path}/new", {"max_topics_per_namespace": 5}),
        ("POST", f"{path}/default/maxTopicsPerNamespace", 5),
        ("DELETE", f"{path}/default/maxTopicsPerNamespace", None),
    ]
    async with aiohttp.ClientSession() as session:
        for method, where, body in asked:
            for role, expected in (("boss", 403), ("admin", 204)):
                headers = {"Authorization": f"Bearer {token(role)}"}
                async with session.request(method, where, json=body, headers=headers) as answer:
                    assert answer.status == expected, f"{method} {where} as {role}"
        headers = {"Authorization": f"Bearer {token('boss')}"}
        unsaid = {"max_topics_per_namespace": None, "max_producers_per_topic": 0}
        async with session.put(f"{path}/newer", json=unsaid, headers=headers) as answer:
            assert answer.status == 204


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_each_route_lets_in_who_may(broker: Broker, url: str, method: str) -> None:
    async with aiohttp.ClientSession() as session:
        for route in [one for one in routes(broker) if one.method == method]:
            for role in ENOUGH[route.may]:
                await grant(broker)
                found = await status(session, route, url, token(role))
                assert found not in (401, 403), f"{method} {path_of(route)} as {role}: {found}"


# -- the binary protocol ---------------------------------------------------------------------------------


class Client:
    """One connection that writes frames and reads commands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._cutter = FrameCutter()
        self._commands: list[Command] = []

    @classmethod
    async def open(cls, broker: Broker) -> Client:
        host, _, port = broker.service_url.rpartition("/")[2].rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def log_in(self, credentials: str) -> Command | None:
        method = "token" if credentials else "none"
        self.writer.write(commands.connect("test", method, credentials.encode()))
        return await self.read()

    async def read(self) -> Command | None:
        """The next command; None at the end."""
        async with asyncio.timeout(10):
            while not self._commands:
                data = await self._reader.read(1 << 16)
                if not data:
                    return None
                while data:
                    room = self._cutter.get_buffer(len(data))
                    count = min(len(room), len(data))
                    room[:count] = data[:count]
                    found = self._cutter.received(count)
                    self._commands += [one for one in found if isinstance(one, Command)]
                    data = data[count:]
            return self._commands.pop(0)

    async def ask(self, frame: bytes) -> Command | None:
        self.writer.write(frame)
        while (answer := await self.read()) is not None:
            if answer.kind != pb.BaseCommand.PING:
                return answer
        return None


def frame(**body: object) -> bytes:
    ((name, message),) = body.items()
    kind = next(field.number for field in pb.BaseCommand.DESCRIPTOR.fields if field.name == name)
    return commands.frame(pb.BaseCommand(type=kind, **{name: message}))  # type: ignore[arg-type]


FRAMES = {
    pb.BaseCommand.PARTITIONED_METADATA: frame(
        partitionMetadata=pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1)
    ),
    pb.BaseCommand.LOOKUP: frame(lookupTopic=pb.CommandLookupTopic(topic=TOPIC, request_id=1)),
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: frame(
        getTopicsOfNamespace=pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=1)
    ),
    pb.BaseCommand.WATCH_TOPIC_LIST: frame(
        watchTopicList=pb.CommandWatchTopicList(
            namespace="public/default", request_id=1, watcher_id=1, topics_pattern=".*"
        )
    ),
    pb.BaseCommand.GET_SCHEMA: ask_schema(1, TOPIC),
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: bring_schema(1, TOPIC, pb.Schema.String, b""),
    pb.BaseCommand.PRODUCER: frame(producer=pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)),
    pb.BaseCommand.SUBSCRIBE: frame(
        subscribe=pb.CommandSubscribe(
            topic=TOPIC, subscription="s", subType=pb.CommandSubscribe.Exclusive, consumer_id=1, request_id=1
        )
    ),
}
"""A question of each kind that asks for a permission."""


def test_each_command_says_what_it_needs() -> None:
    assert set(TABLE) | {pb.BaseCommand.SEND} == set(PERMISSIONS)
    asking = {kind for kind, action in PERMISSIONS.items() if action not in (None, Action.OPEN)}
    assert asking == set(FRAMES)


def refusal(answer: Command | None) -> int | None:
    """The code of an answer that is a refusal."""
    body = None if answer is None else answer.body
    for field in ("error", "error_code"):
        if body is not None and field in body.DESCRIPTOR.fields_by_name and body.HasField(field):
            return int(getattr(body, field))
    return None


@pytest.mark.parametrize(
    "credentials",
    [
        "",
        "no-token",
        token("admin", secret=b"another secret of more than 32 bytes..."),
        token("admin", seconds=-5),
    ],
    ids=["none", "wrong", "another key", "expired"],
)
async def test_who_is_not_let_in_is_told_so_and_closed(broker: Broker, credentials: str) -> None:
    client = await Client.open(broker)
    answer = await client.log_in(credentials)
    assert refusal(answer) == pb.AuthenticationError
    assert await client.read() is None


def least_of(kind: int) -> bytes:
    """A command of that kind with nothing but what must be there."""
    made = pb.BaseCommand(type=kind)  # type: ignore[arg-type]
    body = getattr(made, pb.BaseCommand.DESCRIPTOR.fields_by_number[kind].name)
    body.SetInParent()
    for field in body.DESCRIPTOR.fields:
        if field.message_type is not None and field.is_required:
            body.schema.CopyFrom(pb.Schema(name="", type=pb.Schema.String, schema_data=b""))
        elif field.is_required:
            value: object = "x" if field.type == field.TYPE_STRING else 1
            setattr(body, field.name, field.enum_type.values[0].number if field.enum_type else value)
    return commands.frame(made)


@pytest.mark.parametrize("kind", [*TABLE, pb.BaseCommand.SEND], ids=pb.BaseCommand.Type.Name)
async def test_no_command_is_heard_before_log_in(broker: Broker, kind: int) -> None:
    if kind == pb.BaseCommand.CONNECT:
        return
    client = await Client.open(broker)
    client.writer.write(least_of(kind))
    answer = await client.read()
    assert refusal(answer) is not None
    assert await client.read() is None
    assert not broker.registry.in_namespace("public", "default")


@pytest.mark.parametrize("kind", FRAMES, ids=pb.BaseCommand.Type.Name)
async def test_each_command_is_for_whom_it_says(broker: Broker, kind: int) -> None:
    action = PERMISSIONS[kind]
    assert action is not None
    for role in LESSER[action]:
        client = await Client.open(broker)
        await client.log_in(token(role))
        answer = await client.ask(FRAMES[kind])
        assert answer is not None and refusal(answer) == pb.AuthorizationError, role
        if kind == pb.BaseCommand.PARTITIONED_METADATA:
            assert answer.body.message.startswith("Client is not authorized to Get Partition Metadata")
        client.writer.close()
    assert not broker.registry.in_namespace("public", "default"), "nothing was made"
    for role in ENOUGH[action]:
        client = await Client.open(broker)
        welcome = await client.log_in(token(role))
        assert welcome is not None and welcome.kind == pb.BaseCommand.CONNECTED
        code = refusal(await client.ask(FRAMES[kind]))
        assert code not in (pb.AuthorizationError, pb.AuthenticationError), role
        client.writer.close()


async def test_an_original_principal_is_believed_from_proxies_alone(broker: Broker) -> None:
    def hello(role: str, original: str) -> bytes:
        body = pb.CommandConnect(
            client_version="test",
            protocol_version=19,
            auth_method_name="token",
            auth_data=token(role).encode(),
            original_principal=original,
        )
        return frame(connect=body)

    for role, original in (("writer", "admin"), ("gateway", ""), ("gateway", "gateway"), ("gateway", "a/b")):
        client = await Client.open(broker)
        assert refusal(await client.ask(hello(role, original))) == pb.AuthorizationError, (role, original)
        assert await client.read() is None
    client = await Client.open(broker)
    welcome = await client.ask(hello("gateway", "admin"))
    assert welcome is not None and welcome.kind == pb.BaseCommand.CONNECTED
    answer = await client.ask(FRAMES[pb.BaseCommand.PRODUCER])
    assert refusal(answer) == pb.AuthorizationError, "the gateway itself may not produce"


async def test_a_command_while_credentials_are_looked_at_breaks_the_protocol(broker: Broker) -> None:
    client = await Client.open(broker)
    client.writer.write(
        commands.connect("test", "token", token("admin").encode()) + FRAMES[pb.BaseCommand.PRODUCER]
    )
    answer = await client.read()
    assert refusal(answer) == pb.UnsupportedVersionError
    assert await client.read() is None
    assert not broker.registry.in_namespace("public", "default")
