"""Who is let in, and what for, by the stock client: right, wrong, expired and renewed credentials; permissions that
come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import bcrypt
import pulsar
import pytest
from msgspec.structs import replace
from pulsar.schema import JsonSchema, Record, String, StringSchema

from quire.metadata.records import Policies
from quire.process.listeners import listen
from quire.security.certs import Authority
from quire.security.configuration import AuthenticationConfiguration, Certificate, Tls
from quire.security.listener import TlsListener
from quire.security.tls import for_clients
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.session import login, revocation

from ..conftest import QUIET, BrokerHouse, in_thread
from ..security import PASSWORD, SECRET, audit, security, token

TOPIC = "persistent://public/default/orders"
Connect = Callable[..., pulsar.Client]


class Junk(Record):  # type: ignore[misc]
    junk = String(required=True)


@pytest.fixture
async def broker(house: BrokerHouse, tmp_path: Path) -> Broker:
    house.security = security(tmp_path)
    return await house.start()


@pytest.fixture
async def connect(broker: Broker) -> AsyncIterator[Connect]:
    made: list[pulsar.Client] = []

    def client(authentication: Any = None, seconds: int = 5) -> pulsar.Client:
        made.append(
            pulsar.Client(broker.service_url, authentication, logger=QUIET, operation_timeout_seconds=seconds)
        )
        return made[-1]

    yield client
    for one in made:
        await in_thread(one.close)


def by_token(role: str, **options: Any) -> pulsar.AuthenticationToken:
    return pulsar.AuthenticationToken(token(role, **options))


async def grant(broker: Broker, role: str, *permissions: str) -> None:
    def change(all: Policies) -> Policies:
        return replace(all, permissions={**all.permissions, role: permissions})

    await broker.admin.policies.change_namespace("public", "default", change)


async def produce(client: pulsar.Client, topic: str = TOPIC) -> None:
    def work() -> None:
        producer = client.create_producer(topic)
        producer.send(b"hello")
        producer.close()

    await in_thread(work)


async def consume(client: pulsar.Client, subscription: str = "s") -> None:
    await in_thread(lambda: client.subscribe(TOPIC, subscription).close())


# -- who is let in ---------------------------------------------------------------------------------------


async def test_a_right_token_and_a_right_password_let_in(connect: Connect, broker: Broker) -> None:
    await grant(broker, "app", "produce", "consume")
    for right in (by_token("app"), by_token("app", seconds=60), pulsar.AuthenticationBasic("app", PASSWORD)):
        client = connect(right)
        await produce(client)
        await consume(client)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        pulsar.AuthenticationToken(token("app", secret=SECRET[::-1])),
        pulsar.AuthenticationToken("no-token-at-all"),
        pulsar.AuthenticationToken(token("app", seconds=-1)),
        pulsar.AuthenticationBasic("app", "wrong"),
        pulsar.AuthenticationBasic("nobody", PASSWORD),
    ],
    ids=["nothing", "another key", "no token", "expired", "wrong password", "nobody"],
)
async def test_wrong_credentials_do_not(connect: Connect, broker: Broker, wrong: Any, tmp_path: Path) -> None:
    await grant(broker, "*", "produce")
    with pytest.raises((pulsar.AuthenticationError, pulsar.ConnectError, pulsar.Timeout)):
        await produce(connect(wrong, 1))  # the C++ client tries again until its time is over
    line = audit(tmp_path)[-1]
    assert (line["event"], line["action"], line["role"]) == ("login-failed", "CONNECT", "")
    assert line["address"].startswith("/127.0.0.1:")
    assert not broker.registry.in_namespace("public", "default")


# -- what for --------------------------------------------------------------------------------------------


async def test_who_was_granted_nothing_may_nothing(connect: Connect, broker: Broker, tmp_path: Path) -> None:
    client = connect(by_token("app"))
    with pytest.raises(pulsar.AuthorizationError):
        await produce(client)
    with pytest.raises(pulsar.AuthorizationError):
        await consume(client)
    assert not broker.registry.in_namespace("public", "default"), "nothing was made"
    assert {(line["event"], line["role"]) for line in audit(tmp_path)} == {("denied", "app")}


async def test_each_permission_allows_its_own(connect: Connect, broker: Broker) -> None:
    await grant(broker, "writer", "produce")
    await grant(broker, "reader-*", "consume")
    writer, reader = connect(by_token("writer")), connect(by_token("reader-1"))
    await produce(writer)
    await consume(reader)
    with pytest.raises(pulsar.AuthorizationError):
        await consume(writer)
    with pytest.raises(pulsar.AuthorizationError):
        await produce(reader)


async def test_a_schema_comes_from_who_may_produce(connect: Connect, broker: Broker) -> None:
    """A consumer alone does not decide what producers may write; it is let in all the same."""
    await grant(broker, "writer", "produce")
    await grant(broker, "reader", "consume")
    await grant(broker, "both", "produce", "consume")
    name = TopicName.parse(TOPIC)

    async def subscribe(role: str) -> None:
        client = connect(by_token(role))
        await in_thread(lambda: client.subscribe(TOPIC, role, schema=StringSchema()))

    await subscribe("reader")
    assert [one async for one in broker.registry.schemas.versions(name)] == []
    await subscribe("both")
    assert [one.definition.kind async for one in broker.registry.schemas.versions(name)] == ["STRING"]
    writer, reader = connect(by_token("writer")), connect(by_token("reader"))
    await in_thread(lambda: writer.create_producer(TOPIC, schema=StringSchema()))
    with pytest.raises(pulsar.IncompatibleSchema):
        await in_thread(lambda: reader.subscribe(TOPIC, "s", schema=JsonSchema(Junk)))


async def test_a_permission_of_one_topic_is_of_no_other(connect: Connect, broker: Broker) -> None:
    admin, app = connect(by_token("admin")), connect(by_token("app"))
    await produce(admin)
    await produce(admin, "persistent://public/default/other")
    name = next(one for one in broker.registry.in_namespace("public", "default") if one.local == "orders")
    await broker.admin.policies.change_topic(
        name, lambda all: replace(all, permissions={"app": ("produce",)})
    )
    await produce(app)
    for other in ("persistent://public/default/other", "non-persistent://public/default/orders"):
        with pytest.raises(pulsar.AuthorizationError):
            await produce(app, other)


async def test_subscriptions_of_others(connect: Connect, broker: Broker) -> None:
    await grant(broker, "*", "consume")
    await broker.admin.policies.change_namespace(
        "public", "default", lambda all: replace(all, subscription_permissions={"s": ("mine",)})
    )
    await consume(connect(by_token("mine")))
    other = connect(by_token("other"))
    await consume(other, "t")
    with pytest.raises(pulsar.AuthorizationError):
        await consume(other)


async def test_tenants_admins(connect: Connect, broker: Broker) -> None:
    tenant = await broker.namespaces.tenant("public")
    boss = connect(by_token("boss"))
    with pytest.raises(pulsar.AuthorizationError):
        await produce(boss)
    await broker.namespaces.update_tenant("public", replace(tenant, admin_roles=("boss",)))
    await produce(boss)
    with pytest.raises(pulsar.AuthorizationError):
        await produce(boss, "persistent://other/default/orders")


# -- what ends -------------------------------------------------------------------------------------------


async def test_a_revocation_holds_for_who_is_there(
    connect: Connect, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await grant(broker, "app", "produce", "consume")
    client = connect(by_token("app"))
    producer = await in_thread(lambda: client.create_producer(TOPIC, send_timeout_millis=2_000))
    consumer = await in_thread(lambda: client.subscribe(TOPIC, "s"))
    await in_thread(lambda: producer.send(b"before"))
    await grant(broker, "app")
    began = asyncio.get_running_loop().time()
    while any(one.producers or one.consumers for one in broker.sessions.connections):
        await asyncio.sleep(0.05)
        assert asyncio.get_running_loop().time() - began < 10
    with pytest.raises(pulsar.PulsarException):
        await in_thread(lambda: producer.send(b"after"))
    revoked = [line["action"] for line in audit(tmp_path) if line["event"] == "revoked"]
    assert sorted(revoked) == ["CONSUME", "PRODUCE"]
    await in_thread(consumer.close)


async def test_what_did_not_change_is_not_touched(connect: Connect, broker: Broker) -> None:
    await grant(broker, "app", "produce")
    client = connect(by_token("app"))
    producer = await in_thread(lambda: client.create_producer(TOPIC))
    await grant(broker, "other", "produce")
    assert broker.registry.guard is not None
    await revocation.revoke(broker.registry.guard, list(broker.sessions.connections))
    await in_thread(lambda: producer.send(b"still"))
    assert len(broker.registry.in_namespace("public", "default")) == 1


async def test_credentials_that_are_renewed_go_on(connect: Connect, broker: Broker) -> None:
    await grant(broker, "app", "produce")
    given: list[str] = []

    def supply() -> str:
        given.append(token("app", seconds=1.5))
        return given[-1]

    client = connect(pulsar.AuthenticationToken(supply))
    producer = await in_thread(lambda: client.create_producer(TOPIC))
    before = broker.sessions.connections.total
    while len(given) < 4:
        await in_thread(lambda: producer.send(b"hello"))
        await asyncio.sleep(0.1)
    assert broker.sessions.connections.total == before, "the same connection, challenged"


async def test_credentials_that_expire_end_the_session(
    connect: Connect, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "REFRESH_S", 0.5)
    await grant(broker, "app", "produce")
    client = connect(by_token("app", seconds=1.0))
    producer = await in_thread(lambda: client.create_producer(TOPIC, send_timeout_millis=2_000))
    await in_thread(lambda: producer.send(b"before"))
    session = next(iter(broker.sessions.connections))
    while session in broker.sessions.connections:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    with pytest.raises(pulsar.PulsarException):
        await in_thread(lambda: producer.send(b"after"))


async def until_gone(broker: Broker, session: Any) -> None:
    """Within ten seconds, plus what a slow machine takes."""
    async with asyncio.timeout(20):
        while session in broker.sessions.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("change", ["gone", "another password"])
async def test_a_user_who_is_taken_away_goes(
    connect: Connect, broker: Broker, tmp_path: Path, change: str
) -> None:
    await grant(broker, "app", "produce")
    await grant(broker, "other", "produce")
    hashed = bcrypt.hashpw(b"another", bcrypt.gensalt(4)).decode()
    users = (tmp_path / "users").read_text()
    (tmp_path / "users").write_text(users + f"other:{hashed}\n")
    clients = [connect(pulsar.AuthenticationBasic("app", PASSWORD))]
    producer = await in_thread(lambda: clients[0].create_producer(TOPIC, send_timeout_millis=2_000))
    leaving = set(broker.sessions.connections)
    clients += [connect(pulsar.AuthenticationBasic("other", "another")), connect(by_token("app"))]
    others = [await in_thread(partial(one.create_producer, TOPIC)) for one in clients[1:]]
    staying = set(broker.sessions.connections) - leaving
    left = "" if change == "gone" else f"app:{hashed}\n"
    (tmp_path / "users").write_text(f"{left}other:{hashed}\n")
    for session in leaving:
        await until_gone(broker, session)
    with pytest.raises(pulsar.PulsarException):
        await in_thread(lambda: producer.send(b"after"))
    for one in others:
        await in_thread(partial(one.send, b"still"))
    assert staying <= set(broker.sessions.connections) and len(staying) >= 2
    revoked = [line for line in audit(tmp_path) if line["event"] == "revoked"]
    assert {(line["role"], line["method"], line["action"]) for line in revoked} == {
        ("app", "basic", "CONNECT")
    }


async def test_a_key_that_is_replaced_ends_what_its_tokens_began(
    connect: Connect, broker: Broker, tmp_path: Path
) -> None:
    await grant(broker, "app", "produce")
    given = [token("app")]
    client = connect(pulsar.AuthenticationToken(lambda: given[-1]))
    producer = await in_thread(lambda: client.create_producer(TOPIC))
    (session, *_) = broker.sessions.connections
    (tmp_path / "secret.key").write_bytes(SECRET[::-1])
    given.append(token("app", secret=SECRET[::-1]))
    await until_gone(broker, session)
    await in_thread(lambda: producer.send(b"by a token of the new key"))


async def test_a_file_that_is_gone_for_a_moment_ends_nothing(
    connect: Connect, broker: Broker, tmp_path: Path
) -> None:
    await grant(broker, "app", "produce")
    client = connect(pulsar.AuthenticationBasic("app", PASSWORD))
    await in_thread(lambda: client.create_producer(TOPIC))
    before = list(broker.sessions.connections)
    assert broker.registry.guard is not None
    (tmp_path / "users").rename(tmp_path / "away")
    await revocation.end_withdrawn(broker.registry.guard, before)
    assert not any(session.is_closed for session in before)


async def test_a_certificate_that_expires_ends_its_connection(house: BrokerHouse, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    authority.sign_process("node", ["127.0.0.1"], 1)
    seconds = 4
    authority.sign_user("app", seconds / 86_400)
    files = {"certificate": str(tmp_path / "node.pem"), "key": str(tmp_path / "node-key.pem")}
    served = Tls(**files, authority=str(tmp_path / "authority.pem"), client_certificates="optional")
    providers = AuthenticationConfiguration(certificate=Certificate())
    house.security = security(tmp_path, authentication=providers, tls=served)
    broker = await house.start()
    await grant(broker, "app", "produce")
    listener = TlsListener(listen("127.0.0.1:0"), for_clients(served))
    await broker.sessions.listen(None, listener)
    shown = pulsar.AuthenticationTLS(str(tmp_path / "app.pem"), str(tmp_path / "app-key.pem"))
    client = pulsar.Client(
        f"pulsar+ssl://{listener.address}",
        shown,
        logger=QUIET,
        operation_timeout_seconds=3,
        tls_trust_certs_file_path=str(tmp_path / "authority.pem"),
    )
    producer = await in_thread(lambda: client.create_producer(TOPIC, send_timeout_millis=1_000))
    (session, *_) = broker.sessions.connections
    await until_gone(broker, session)
    with pytest.raises(pulsar.PulsarException):
        await in_thread(lambda: producer.send(b"after"))
    await in_thread(client.close)
    assert {line["event"] for line in audit(tmp_path)} == {"login-failed"}


async def test_a_producer_that_names_no_topic_keeps_no_revocation_from_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there for a turn of the loop, until it is refused."""
    guard, seen = broker.registry.guard, []
    assert guard is not None

    def ends(_: object) -> Any:
        yield from ((None, "a/b"), (None, TOPIC))

    async def look(*arguments: Any) -> None:
        seen.append(arguments[-1])

    monkeypatch.setattr(revocation, "_ends", ends)
    monkeypatch.setattr(revocation, "_asked", lambda topic: (revocation.place_of(topic), None))
    monkeypatch.setattr(revocation, "_look_at", look)
    guard.look_again("public", "default")
    await revocation.revoke(guard, [])
    assert [place.topic for place in seen] == [TOPIC]


async def test_namespaces_that_are_not_there_are_not_watched(broker: Broker, connect: Connect) -> None:
    """Anybody who is let in may name as many as he likes."""
    client = connect(by_token("stranger"))
    for number in range(3):
        with pytest.raises(pulsar.PulsarException):
            await produce(client, f"persistent://public/made-up-{number}/t")
    assert not [path for path in broker.namespaces._watched if "made-up" in path]
