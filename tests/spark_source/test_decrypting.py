"""Entries that producers encrypted, opened with the user's keys: all forms of them, and all that may be wrong."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from quire.client.crypto import Encryption, Encryptor
from quire.client.sealing import Sealer
from quire.runtime.errors import ConfigurationError
from quire.spark_source import plain
from quire.spark_source.options import for_batch
from quire.spark_source.plain import UndecodableEntry
from quire.spark_source.source import QuireReader
from quire.wire import message
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_one

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"
NAMES = ("alice", "bob", "../mallory")


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[bytes, bytes]]:
    """By name, a public and a private key."""
    made = {}
    for name in NAMES:
        key = rsa.generate_private_key(65537, 2048)
        encoding, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
        private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no_password)
        public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
        made[name] = public, private
    return made


@pytest.fixture
def keys(pairs: dict[str, tuple[bytes, bytes]], tmp_path: Path) -> Path:
    """Alice's private key is there, and Mallory's beside the directory."""
    directory = tmp_path / "keys"
    directory.mkdir()
    (directory / "alice.pem").write_bytes(pairs["alice"][1])
    (directory / "../mallory").write_bytes(pairs["../mallory"][1])
    return directory


def sealer(
    pairs: dict[str, tuple[bytes, bytes]], *names: str, codec: int = pb.NONE, size: int = 1 << 20
) -> Sealer:
    encryption = Encryption(names, lambda name: pairs[name][0])
    return Sealer(codec, size, chunking=True, encryptor=Encryptor(encryption))


def numbered(first: int, count: int) -> list[OutgoingMessage]:
    return [
        OutgoingMessage(b"%d" % n, key=f"k{n % 3}", properties={"n": str(n)})
        for n in range(first, first + count)
    ]


def read(broker: Any, **options: str) -> list[dict[str, Any]]:
    rows = QuireReader(for_batch({"service_url": broker.url, "topic": "t"} | options))
    return [row for part in rows.partitions() for batch in rows.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("codec", [pb.NONE, pb.ZSTD])
def test_single_messages_and_batches_beside_plain_ones(
    broker: Any, archivist: Any, pairs: Any, keys: Path, monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    for_both, for_alice = (sealer(pairs, *names, codec=codec) for names in (("bob", "alice"), ("alice",)))
    entries, counts = [], []
    for number in range(0, 400, 4):
        entries += for_both.seal(numbered(number, 1), "p", number, TIME_MS)
        entries += for_alice.seal(numbered(number + 1, 2), "p", number + 1, TIME_MS)
        entries.append(encode_one(numbered(number + 3, 1)[0], "p", number + 3, TIME_MS))
        counts += [1, 2, 1]
    broker.topics[TOPIC] = [broker.segment(7, entries, counts)]
    archivist.archive(broker.topics[TOPIC][0])
    slow: list[int] = []
    monkeypatch.setattr(plain, "rows", lambda *_: slow.append(1))
    rows = read(broker, crypto_key_dir=str(keys))
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(400)]
    assert [row["message_index"] for row in rows] == [row["sequence"] for row in rows] == list(range(400))
    assert all(row["properties"] == [("n", row["value"].decode())] for row in rows)
    assert all(row["key"] == b"k%d" % (row["sequence"] % 3) for row in rows)
    assert not slow, "what was opened is decoded by columns"


@pytest.mark.parametrize("start", ["earliest", "7:3"])
def test_a_message_in_chunks(broker: Any, pairs: Any, keys: Path, start: str) -> None:
    payload = random.Random(1).randbytes(30_000)
    chunks = sealer(pairs, "alice", size=10_000).seal([OutgoingMessage(payload, key="k")], "p", 1, TIME_MS)
    assert len(chunks) == 4
    broker.topics[TOPIC] = [broker.segment(7, chunks)]
    (row,) = read(broker, crypto_key_dir=str(keys), start=start)
    assert (row["value"], row["entry"], row["key"]) == (payload, 3, b"k")


def test_compacted_reading_looks_into_encrypted_batches(broker: Any, pairs: Any, keys: Path) -> None:
    entries = sealer(pairs, "alice").seal(numbered(0, 9), "p", 0, TIME_MS)
    broker.topics[TOPIC] = [broker.segment(7, entries, [9])]
    rows = read(broker, crypto_key_dir=str(keys), compacted="true")
    assert [row["value"] for row in rows] == [b"6", b"7", b"8"]


def test_who_has_no_key(broker: Any, pairs: Any, keys: Path) -> None:
    (secret,) = sealer(pairs, "bob").seal(numbered(0, 2), "p", 0, TIME_MS)
    (ours,) = sealer(pairs, "alice").seal(numbered(2, 1), "p", 2, TIME_MS)
    broker.topics[TOPIC] = [broker.segment(7, [secret, ours], [2, 1])]
    with pytest.raises(
        UndecodableEntry,
        match=f"entry 7:0 of {TOPIC} .* with the keys 'bob', and this consumer has no private key",
    ):
        read(broker, crypto_key_dir=str(keys))
    with pytest.raises(
        UndecodableEntry, match=f"entry 7:0 of {TOPIC} .* set option crypto_key_dir to the directory"
    ):
        read(broker)
    rows = read(broker, crypto_key_dir=str(keys), on_undecodable="raw")
    assert [row["value"] for row in rows] == [secret, b"2"]
    assert "keys 'bob'" in rows[0]["undecoded"] and rows[1]["undecoded"] is None


def test_only_the_directory_itself_is_looked_into(broker: Any, pairs: Any, keys: Path) -> None:
    (entry,) = sealer(pairs, "../mallory").seal(numbered(0, 1), "p", 0, TIME_MS)
    broker.topics[TOPIC] = [broker.segment(7, [entry])]
    with pytest.raises(UndecodableEntry, match="no private key that can decrypt it"):
        read(broker, crypto_key_dir=str(keys))


def test_what_was_changed_since_and_wrong_keys(broker: Any, pairs: Any, keys: Path) -> None:
    (entry,) = sealer(pairs, "alice").seal(numbered(0, 1), "p", 0, TIME_MS)
    metadata, payload = message.read_metadata(entry)
    changed = message.seal(metadata, bytes(payload[:-1]) + bytes([payload[-1] ^ 1]))
    broker.topics[TOPIC] = [broker.segment(7, [changed])]
    with pytest.raises(UndecodableEntry, match=r"entry 7:0 .* was modified after its encryption"):
        read(broker, crypto_key_dir=str(keys))
    broker.topics[TOPIC] = [broker.segment(7, [entry])]
    for content in (pairs["bob"][1], b"no key"):
        (keys / "alice").write_bytes(content)  # before alice.pem
        with pytest.raises(
            UndecodableEntry,
            match="with the keys 'alice', and this consumer has no private key that can decrypt it",
        ):
            read(broker, crypto_key_dir=str(keys))


def test_no_directory(broker: Any, keys: Path) -> None:
    broker.topics[TOPIC] = [broker.segment(7, [encode_one(OutgoingMessage(b"x"), "p", 0, TIME_MS)])]
    with pytest.raises(
        ConfigurationError, match=r"crypto_key_dir=.*/nowhere' is not a directory on every executor"
    ):
        read(broker, crypto_key_dir=str(keys / "nowhere"))
