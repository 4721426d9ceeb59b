"""Topics of all that producers may write, and queries of them, from a seed."""

from __future__ import annotations

import random
from typing import Any

from quire.client.chunks import cut
from quire.spark_source.broker import Broker
from quire.spark_source.sidecar.archive import Built, build_all
from quire.wire import pulsar_pb2 as pb
from quire.wire.compression import compress
from quire.wire.message import OutgoingMessage, encode_batch, encode_one, seal

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"
CODECS = [pb.NONE, pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY]
KEYS = [None, "", "a", "b", "ü", "k" * 255, "long" * 64, "long" * 64 + "!", "long" * 64 + "?"]
"""`long` four times 64 is as long as a sidecar keeps; two are longer, and begin alike."""

METADATA = {"producer_name": "p", "sequence_id": 1, "publish_time": TIME_MS}
ENCRYPTED = seal(
    pb.MessageMetadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")], **METADATA), b"x"
)
GARBAGE = b"\x0e\x02nothing that anybody wrote"
HIDDEN = seal(
    pb.MessageMetadata(num_messages_in_batch=2, **METADATA),
    b"\0\0\0\x04\x18\x01\x20\x01a" + b"\0\0\0\x02\x18\x01b",
)
ALL_HIDDEN = seal(pb.MessageMetadata(num_messages_in_batch=1, **METADATA), b"\0\0\0\x04\x18\x01\x20\x01a")


def random_entries(rng: random.Random, *, odd: bool, keys: list[str | None]) -> tuple[list[bytes], list[int]]:
    """Entries and how many messages each has; `odd`: chunks, encrypted ones and garbage among them."""
    entries: list[bytes] = []
    counts: list[int] = []
    waiting: list[bytes] = []
    now = TIME_MS
    for number in range(rng.randint(20, 60)):
        now += rng.choice([0, 1, 1000, 60_000])
        published = now - rng.choice([0, 0, 5, 100_000])
        messages = [message(rng, keys, published) for _ in range(rng.randint(1, 12))]
        codec, sequence = rng.choice(CODECS), rng.choice([number, 2**32, 2**64 - 1 - number])
        kind = rng.random()
        if odd and waiting and kind < 0.2:
            entries.append(waiting.pop(0))
            counts.append(1)
        elif odd and kind < 0.35:
            entries.append(rng.choice([ENCRYPTED, GARBAGE, HIDDEN, ALL_HIDDEN]))
            counts.append(1 + (entries[-1] is HIDDEN))
        elif odd and not waiting and kind < 0.5:
            waiting = chunks(rng, number, published)
        elif kind < 0.7:
            entries.append(encode_one(messages[0], f"p{rng.randrange(3)}", sequence, published, codec))
            counts.append(1)
        else:
            entries.append(encode_batch(messages, "batches", sequence % 2**63, published, codec))
            counts.append(len(messages))
    return entries, counts


def message(rng: random.Random, keys: list[str | None], published: int) -> OutgoingMessage:
    return OutgoingMessage(
        rng.choice([None, b"", rng.randbytes(rng.randrange(300))]),
        key=rng.choice(keys),
        properties={rng.choice("ab"): rng.choice(["x", "ü" * 9]) for _ in range(rng.randrange(3))},
        event_time_ms=rng.choice([0, published - 3_600_000, published + rng.randrange(10**7)]),
    )


def chunks(rng: random.Random, number: int, published: int) -> list[bytes]:
    payload = rng.randbytes(900)
    metadata = pb.MessageMetadata(
        producer_name="chunks",
        sequence_id=number,
        publish_time=published,
        compression=pb.LZ4,
        uncompressed_size=len(payload),
        partition_key=rng.choice("ab"),
        event_time=published,
    )
    return [seal(metadata, part) for part in cut(metadata, compress(pb.LZ4, payload), 400)]


def random_options(rng: random.Random, columns: list[str]) -> dict[str, str]:
    """Of a query; mostly without values."""
    chosen = rng.sample(columns, rng.randint(1, len(columns)))
    if rng.random() < 0.5 and "value" in chosen and len(chosen) > 1:
        chosen.remove("value")
    options = {"batch_rows": rng.choice(["3", "8192"])}
    if rng.random() < 0.8:
        options["on_undecodable"] = "raw"
        chosen.append("undecoded")
    options["columns"] = ",".join(chosen)
    if rng.random() < 0.3:
        options["chunks"] = "raw"
    for name in ("start", "end", "event_start", "event_end"):
        if rng.random() < 0.3:
            options[name] = str(TIME_MS + rng.randrange(-(10**6), 2 * 10**6))
    if rng.random() < 0.2:
        options["start"] = f"{rng.choice([3, 5])}:{rng.randrange(40)}:{rng.randrange(4)}"
    if rng.random() < 0.2:
        options["end"] = f"{rng.choice([3, 5])}:{rng.randrange(40)}:{rng.randrange(4)}"
    if rng.random() < 0.3:
        options["key"] = rng.choice([key for key in KEYS if key is not None])
    elif rng.random() < 0.2:
        options["keys"] = "a, b,nobody"
    return options


def build(broker: Any, **more: Any) -> Built:
    return build_all(Broker(broker.url), ["t"], **more)
