"""End-to-end encryption: keys, batches, chunks, who cannot read; beside the stock client, both ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec.structs import replace

from quire.client import (
    EARLIEST,
    Client,
    ConsumerSettings,
    Encryption,
    MessageUndecodable,
    ProducerSettings,
    keys_from,
)
from quire.client.crypto import DATA_KEY_S, Decryptor, Encryptor
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MIB
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import Encrypted
from tests.serving.conftest import in_thread

PLAIN = b"nobody else reads this"
TOPIC = "persistent://public/default/t"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of RSA pairs: `alice.pub`, `alice.key`, and so on."""
    made = tmp_path_factory.mktemp("keys")
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    for name in ("alice", "bob", "eve"):
        key = rsa.generate_private_key(65537, 2048)
        private = key.private_bytes(encoding, serialization.PrivateFormat.TraditionalOpenSSL, plain)
        public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
        (made / f"{name}.key").write_bytes(private)
        (made / f"{name}.pub").write_bytes(public)
    return made


@pytest.fixture
def public(folder: Path) -> Callable[[str], bytes]:
    return keys_from({name: folder / f"{name}.pub" for name in ("alice", "bob")})


@pytest.fixture
def private(folder: Path) -> Callable[[str], Callable[[str], bytes]]:
    """The private keys of one person."""
    return lambda name: keys_from({name: folder / f"{name}.key"})


Private = Callable[[str], Callable[[str], bytes]]


# -- The core ------------------------------------------------------------------------------------------


def test_who_has_a_key_reads_and_nobody_else(public: Callable[[str], bytes], private: Private) -> None:
    encryptor = Encryptor(Encryption(["alice", "bob"], public))
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    sealed = encryptor.encrypt(metadata, PLAIN)
    assert len(metadata.encryption_param) == 12 and len(sealed) == len(PLAIN) + 16
    for name in ("alice", "bob"):
        assert bytes(Decryptor(private(name)).decrypt(metadata, sealed)) == PLAIN
    with pytest.raises(Encrypted, match="'alice', 'bob'"):
        Decryptor(private("eve")).decrypt(metadata, sealed)
    changed = bytes([sealed[0] ^ 1]) + sealed[1:]
    with pytest.raises(Encrypted, match="modified"):
        Decryptor(private("bob")).decrypt(metadata, changed)


def test_no_nonce_is_used_twice_and_data_keys_are_renewed(
    public: Callable[[str], bytes], private: Private
) -> None:
    encryptor = Encryptor(Encryption(["alice"], public))
    decryptor = Decryptor(private("alice"))
    nonces, keys = set(), set()
    for hour in range(9):
        encryptor.renew(hour * 3600.0)
        metadata = pb.MessageMetadata()
        sealed = encryptor.encrypt(metadata, PLAIN)
        nonces.add(metadata.encryption_param)
        keys.add(metadata.encryption_keys[0].value)
        assert bytes(decryptor.decrypt(metadata, sealed)) == PLAIN
    assert (len(nonces), len(keys), DATA_KEY_S) == (9, 3, 4 * 3600)


def test_keys_that_are_none(public: Callable[[str], bytes], folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="the public key 'eve'"):
        Encryptor(Encryption(["eve"], public))
    with pytest.raises(ConfigurationError, match="at least one"):
        Encryptor(Encryption([], public))
    (folder / "bad.pub").write_text("no key")
    with pytest.raises(ConfigurationError, match="'bad'"):
        Encryptor(Encryption(["bad"], keys_from({"bad": folder / "bad.pub"})))


# -- A real broker -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_batches_and_single_messages(
    ours: Client, public: Callable[[str], bytes], private: Private, codec: str
) -> None:
    settings = ProducerSettings(compression=codec, batch_messages_max=5)
    sealed = Encryption(["alice", "bob"], public)
    async with ours.producer("t", encryption=sealed, settings=settings) as producer:
        for i in range(11):
            producer.send_nowait(b"%d" % i + PLAIN, key="k", properties={"n": str(i)})
    for name in ("alice", "bob"):
        async with ours.consumer("t", name, start=EARLIEST, keys=private(name)) as consumer:
            found = [await consumer.receive(10) for _ in range(11)]
            assert [one.payload for one in found] == [b"%d" % i + PLAIN for i in range(11)]
            assert found[3].properties == {"n": "3"}


async def test_what_is_stored_is_sealed(ours: Client, real: Broker, public: Callable[[str], bytes]) -> None:
    async with ours.producer("t", encryption=Encryption(["alice"], public)) as producer:
        await producer.send(PLAIN)
    settings = ConsumerSettings(crypto_failure="consume")
    async with ours.reader("t", start=EARLIEST, settings=settings) as reader:
        payload = (await reader.read(10)).payload
    assert payload is not None and PLAIN not in payload and len(payload) == len(PLAIN) + 16


async def test_without_a_key_it_is_as_the_settings_say(
    ours: Client, real: Broker, public: Callable[[str], bytes], private: Private
) -> None:
    async with ours.producer("t", encryption=Encryption(["alice"], public)) as sealed:
        await sealed.send(PLAIN)
    async with ours.producer("t") as producer:
        await producer.send(b"open")
    async with ours.consumer("t", "fail", start=EARLIEST, keys=private("eve")) as consumer:
        with pytest.raises(MessageUndecodable, match="no private key"):
            await consumer.receive(10)
        await consumer.ack(await consumer.receive(10))
        await consumer.flush_acks()
    settings = ConsumerSettings(crypto_failure="discard")
    async with ours.consumer("t", "discard", start=EARLIEST, settings=settings) as consumer:
        message = await consumer.receive(10)
        assert message.payload == b"open"
        await consumer.ack(message)
        await consumer.flush_acks()
    found = (await real.admin.statistics.stats(TopicName.parse(TOPIC))).subscriptions
    assert (found["fail"].msg_backlog, found["discard"].msg_backlog) == (1, 0)
    with pytest.raises(ConfigurationError, match="crypto_failure"):
        ConsumerSettings(crypto_failure="hope").validate()


async def test_chunks_are_encrypted_each(
    ours: Client, public: Callable[[str], bytes], private: Private
) -> None:
    large = bytes(range(256)) * (11 * MIB // 256)
    settings = ProducerSettings(chunking=True)
    async with ours.producer("t", encryption=Encryption(["alice"], public), settings=settings) as producer:
        await producer.send(large)
    async with ours.reader("t", start=EARLIEST, keys=private("alice")) as reader:
        assert (await reader.read(10)).payload == large


# -- The stock client ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 20])
async def test_the_stock_client_reads_ours(
    ours: Client, stock: pulsar.Client, folder: Path, public: Callable[[str], bytes], count: int
) -> None:
    settings = ProducerSettings(batch_messages_max=count, compression="lz4", chunking=True)
    large = PLAIN * (6 * MIB // len(PLAIN)) if count == 1 else PLAIN
    async with ours.producer("t", encryption=Encryption(["alice"], public), settings=settings) as producer:
        for i in range(count):
            producer.send_nowait(b"%d" % i + large)

    def read() -> list[bytes]:
        keys = pulsar.CryptoKeyReader(str(folder / "alice.pub"), str(folder / "alice.key"))
        consumer = stock.subscribe(
            "t", "s", initial_position=pulsar.InitialPosition.Earliest, crypto_key_reader=keys
        )
        return [consumer.receive(10_000).data() for _ in range(count)]

    assert await in_thread(read) == [b"%d" % i + large for i in range(count)]


async def test_both_clients_publish_where_encryption_is_required(
    real: Broker,
    ours: Client,
    stock: pulsar.Client,
    folder: Path,
    public: Callable[[str], bytes],
    private: Private,
) -> None:
    """Batches, chunks and single messages: each entry names its keys."""
    await real.admin.policies.change_namespace(
        "public", "default", lambda old: replace(old, encryption_required=True)
    )
    large = PLAIN * (6 * MIB // len(PLAIN))

    def write() -> None:
        keys = pulsar.CryptoKeyReader(str(folder / "alice.pub"), str(folder / "alice.key"))
        for batching in (True, False):
            producer = stock.create_producer(
                "t",
                encryption_key="alice",
                crypto_key_reader=keys,
                batching_enabled=batching,
                chunking_enabled=not batching,
            )
            producer.send(PLAIN if batching else large)

    await in_thread(write)
    async with ours.producer("t", encryption=Encryption(["alice"], public)) as producer:
        await producer.send(PLAIN + b"!")
    async with ours.reader("t", start=EARLIEST, keys=private("alice")) as reader:
        assert [(await reader.read(10)).payload for _ in range(3)] == [PLAIN, large, PLAIN + b"!"]


@pytest.mark.parametrize("batching", [True, False])
async def test_we_read_the_stock_clients(
    ours: Client, stock: pulsar.Client, folder: Path, private: Private, batching: bool
) -> None:
    def write() -> None:
        keys = pulsar.CryptoKeyReader(str(folder / "alice.pub"), str(folder / "alice.key"))
        producer = stock.create_producer(
            "t",
            encryption_key="alice",
            crypto_key_reader=keys,
            batching_enabled=batching,
            chunking_enabled=not batching,
            compression_type=pulsar.CompressionType.ZSTD,
        )
        for i in range(20):
            producer.send_async(b"%d" % i + PLAIN, None)
        producer.flush()
        if not batching:
            producer.send(bytes(range(256)) * (6 * MIB // 256))

    await in_thread(write)
    async with ours.consumer("t", "s", start=EARLIEST, keys=private("alice")) as consumer:
        assert [(await consumer.receive(10)).payload for _ in range(20)] == [
            b"%d" % i + PLAIN for i in range(20)
        ]
        if not batching:
            assert (await consumer.receive(10)).payload == bytes(range(256)) * (6 * MIB // 256)
