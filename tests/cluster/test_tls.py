"""A cluster whose every link is TLS: ZooKeeper, and in this process a bookie, two brokers, a gateway, clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pulsar
import pytest

from quire.client import EARLIEST, Client
from quire.ledger.bookie_client import BookieClient
from quire.metadata import paths
from quire.metadata.open import open_store
from quire.metadata.records import BookieRecord, BrokerRecord, decode
from quire.metadata.zookeeper import ZooKeeperStore
from quire.process.bookie import KINDS, bookie
from quire.process.broker import broker
from quire.process.broker import load as load_broker
from quire.process.gateway import KINDS as GATEWAY_KINDS
from quire.process.gateway import gateway
from quire.process.settings import Given
from quire.runtime.errors import ConfigurationError, QuireError, Unavailable
from quire.runtime.tls import ClientTls
from quire.security.certs import Authority
from quire.security.configuration import load
from quire.security.tls import FollowedContext, between_processes
from quire.serving.broker import Broker
from quire.testing.zookeeper_server import ServerTls, ZooKeeperServer, classpath, free_port, java
from quire.wire.bookie import BookieId, LedgerInfoRequest, Status

pytestmark = pytest.mark.timeout(120)

SMALL = {
    "journal_segment_bytes": "16MiB",
    "journal_group_bytes_max": "8MiB",
    "memtable_bytes": "16MiB",
    "entry_log_bytes": "32MiB",
    "disk_reserve_bytes": "1MiB",
}


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority.make(directory)
    authority.sign_process("node", ["127.0.0.1", "localhost"], 1)
    authority.sign_user("alice", 1)
    both = (directory / "node.pem").read_text() + (directory / "node-key.pem").read_text()
    (directory / "zookeeper.pem").write_text(both)
    (directory / "password").write_text("of ZooKeeper")
    for name, plain, required in (("closed", "false", "true"), ("open", "true", "false")):
        (directory / f"{name}.toml").write_text(
            f"""
            [tls]
            certificate = "node.pem"
            key = "node-key.pem"
            authority = "authority.pem"
            listen = "127.0.0.1:0"
            http = "127.0.0.1:0"
            plain = {plain}
            [internal]
            required = {required}
            [metadata]
            user = "quire"
            password_file = "password"
            """
        )
    (directory / "inside.toml").write_text(
        """
        [internal]
        certificate = "node.pem"
        key = "node-key.pem"
        authority = "authority.pem"
        """
    )
    return directory


@pytest.fixture(scope="module")
def secure_zookeeper(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL, by TLS."""
    try:
        java(), classpath()
    except QuireError as error:
        pytest.skip(str(error))
    tls = ServerTls(free_port(), certs / "zookeeper.pem", certs / "authority.pem")
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), tls=tls)
    server.start()
    yield f"zk+ssl://localhost:{tls.port}"
    server.kill()


def node(certs: Path) -> ClientTls:
    return ClientTls(*(str(certs / name) for name in ("authority.pem", "node.pem", "node-key.pem")))


@asynccontextmanager
async def cluster(
    directory: Path, metadata: str, security: Path | str, of_gateway: Path | None = None
) -> AsyncIterator[tuple[list[Broker], Any]]:
    """One bookie, two brokers, a gateway; the brokers and the gateway's URLs."""
    common = {"metadata": metadata, "security": str(security)}
    places = {"journal": str(directory / "journal"), "entry_log": str(directory / "entries")}
    flags = {**common, **places, **SMALL, "listen": "127.0.0.1:0", "new_cluster": "true"}
    one = {"write_quorum": "1", "ack_quorum": "1", "namespace_bundles": "8"}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bookie(Given(flags, None).load_all(KINDS)))
        brokers = []
        for _ in range(2):
            free = {"listen": f"127.0.0.1:{free_port()}", "http": "127.0.0.1:0"}
            loaded = load_broker(Given({**common, **one, **free}, None))
            brokers.append(await stack.enter_async_context(broker(loaded)))
        at = {"security": str(of_gateway or security), "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
        front = Given({"metadata": metadata, **at}, None).load_all(GATEWAY_KINDS)
        yield brokers, await stack.enter_async_context(gateway(front))


def stock_to_and_fro(url: str, authority: Path, log: Path) -> None:
    """As `to_and_fro`, with the stock client; blocks."""
    client = pulsar.Client(
        url,
        tls_trust_certs_file_path=str(authority),
        tls_validate_hostname=True,
        operation_timeout_seconds=20,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log)),
    )
    consumer = client.subscribe("stock", "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer("stock")
    for number in range(50):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    assert [consumer.receive(20_000).data() for _ in range(50)] == [b"%d" % number for number in range(50)]
    client.close()


async def to_and_fro(url: str, tls: ClientTls | None, topics: int, begin: str) -> None:
    async with Client(url, tls=tls) as client:
        for number in range(topics):
            async with client.producer(f"{begin}-{number}") as producer:
                await producer.send(b"x" * 50_000)
            async with client.consumer(f"{begin}-{number}", "s", start=EARLIEST) as consumer:
                async with asyncio.timeout(20):
                    assert (await consumer.receive()).value == b"x" * 50_000


async def test_with_all_plain_ports_closed(secure_zookeeper: str, certs: Path, tmp_path: Path) -> None:
    metadata = f"{secure_zookeeper}/closed"
    async with cluster(tmp_path, metadata, certs / "closed.toml") as (brokers, urls):
        service_url, http_url = urls
        assert service_url.startswith("pulsar+ssl://") and http_url.startswith("https://")
        trusted = ClientTls(str(certs / "authority.pem"))
        for broker in brokers:
            assert broker.addresses.service_url == broker.addresses.http_url == ""
            assert broker.addresses.service_url_tls.startswith("pulsar+ssl://127.0.0.1:")
        await to_and_fro(brokers[0].addresses.service_url_tls, trusted, 6, "direct")
        await to_and_fro(service_url, trusted, 6, "through")
        await asyncio.to_thread(stock_to_and_fro, service_url, certs / "authority.pem", tmp_path / "log")
        owners = {len(broker.registry) for broker in brokers}
        assert 0 not in owners, "both brokers serve topics, so clients were sent from one to the other"

        async with aiohttp.ClientSession() as session:
            for base in (http_url, *(broker.addresses.http_url_tls for broker in brokers)):
                for number in range(6):
                    stats = f"{base}/admin/v2/persistent/public/default/direct-{number}/stats"
                    async with session.get(stats, ssl=trusted.context()) as answer:
                        assert answer.status == 200, await answer.text()
            made = f"{http_url}/admin/v2/persistent/public/default/parts/partitions"
            async with session.put(made, json=6, ssl=trusted.context()) as answer:
                assert answer.status == 204
            url = f"{http_url}/admin/v2/persistent/public/default/parts/partitioned-stats"
            async with session.get(url, ssl=trusted.context()) as answer:
                assert answer.status == 200, "brokers ask one another by TLS"
            async with session.get(f"{http_url}/metrics", ssl=trusted.context()) as answer:
                assert (await answer.text()).count("quire_serving_tls_handshakes_total{") == 2

        strange = await open_store(metadata, node(certs).context)
        with pytest.raises(ConfigurationError, match="ZooKeeper denies access"):
            await strange.children(paths.BROKERS)
        await strange.close()
        login = load(str(certs / "closed.toml")).metadata.login
        store = await open_store(metadata, node(certs).context, login)
        for name in await store.children(paths.BROKERS):
            path = f"{paths.BROKERS}/{name}"
            record = decode(BrokerRecord, (await store.get(path)).value, path)
            assert record.service_url == record.http_url == ""
            assert record.service_url_tls and record.http_url_tls.startswith("https://127.0.0.1:")
        (uuid,) = await store.children(paths.BOOKIES_AVAILABLE)
        path = paths.bookie_available(uuid)
        bookie = decode(BookieRecord, (await store.get(path)).value, path)
        await store.close()
        assert bookie.tls
        assert await status_of_nothing(bookie, node(certs)) is not Status.UNREACHABLE
        assert await status_of_nothing(bookie, None) is Status.UNREACHABLE
        assert await status_of_nothing(bookie, trusted) is Status.UNREACHABLE, (
            "who shows no certificate is nobody"
        )
        alice = ClientTls(trusted.authority, str(certs / "alice.pem"), str(certs / "alice-key.pem"))
        assert await status_of_nothing(bookie, alice) is Status.UNREACHABLE, "a user is no process"


async def status_of_nothing(bookie: BookieRecord, tls: ClientTls | None) -> Status:
    """Of a ledger that is not there."""
    context = None if tls is None else FollowedContext(tls.context, tls.files)
    client = BookieClient(bookie.address, tls=context)
    try:
        answer = await client.ask(LedgerInfoRequest(BookieId(bookie.uuid, bookie.incarnation), 999_999))
        return answer.status
    finally:
        await client.close()


async def test_plain_and_tls_side_by_side(secure_zookeeper: str, certs: Path, tmp_path: Path) -> None:
    metadata = f"{secure_zookeeper}/open"
    async with cluster(tmp_path, metadata, certs / "open.toml") as (brokers, urls):
        plain, _, by_tls, _ = urls
        trusted = ClientTls(str(certs / "authority.pem"))
        await to_and_fro(plain, None, 3, "plain")
        await to_and_fro(by_tls, trusted, 3, "tls")
        await to_and_fro(brokers[0].addresses.service_url, None, 3, "direct-plain")
        await to_and_fro(brokers[1].addresses.service_url_tls, trusted, 3, "direct-tls")


async def test_a_gateway_with_tls_before_brokers_without(
    secure_zookeeper: str, certs: Path, tmp_path: Path
) -> None:
    metadata = f"{secure_zookeeper}/front"
    async with cluster(tmp_path, metadata, certs / "inside.toml", certs / "closed.toml") as (brokers, urls):
        assert not any(broker.addresses.service_url_tls for broker in brokers)
        service_url, _ = urls
        await to_and_fro(service_url, ClientTls(str(certs / "authority.pem")), 3, "through")
        await asyncio.to_thread(stock_to_and_fro, service_url, certs / "authority.pem", tmp_path / "log")


async def test_a_zookeeper_that_is_not_trusted_is_told(secure_zookeeper: str, tmp_path: Path) -> None:
    Authority.make(tmp_path)
    strange = ClientTls(str(tmp_path / "authority.pem"))
    with pytest.raises(Unavailable, match="its certificate is not accepted"):
        await ZooKeeperStore.open(secure_zookeeper, strange.context, connect_timeout_s=2)


def test_a_bookie_that_says_nothing_of_tls_is_called_by_it_only_where_that_is_required(certs: Path) -> None:
    record = BookieRecord(uuid="u", incarnation=1, address="127.0.0.1:1")
    for name, expected in (("closed", True), ("open", False)):
        inside = between_processes(load(str(certs / f"{name}.toml")))
        assert (BookieClient.of(record, inside)._tls is not None) is expected
