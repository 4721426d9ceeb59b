"""The stock Python client in every mode it knows: `program.py SERVICE_URL HTTP_URL KEYS SCENARIO...`.

Each scenario uses topics of its own and prints one JSON line, `{"scenario": NAME, "facts": {...}}` or `{"scenario":
NAME, "error": TEXT}`. What the facts must be is said once, for all languages, in `tests/clients/scenarios.py`; a
program only observes. Scenarios run side by side, because most of them mostly wait. KEYS is a folder with
`public.pem` and `private.pem`.

`kill` is for a cluster: it prints `{"event": "running"}`, publishes until a line comes in on stdin, and then some more.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar
from pulsar.schema import Integer, JsonSchema, Record, String

AT_ONCE = 6
PATIENCE_MS = 20_000
QUIET_MS = 300
LARGE_BYTES = 11 << 20
"""More than two of the largest messages that a server takes."""


class World:
    """What a scenario has: a client, an admin interface, keys, and topics named after it."""

    def __init__(self, service_url: str, http_url: str, keys: Path, scenario: str) -> None:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        self.http_url = http_url
        self.keys = pulsar.CryptoKeyReader(str(keys / "public.pem"), str(keys / "private.pem"))
        self.name = f"python-{scenario}"
        self.client = pulsar.Client(service_url, logger=quiet, operation_timeout_seconds=60)

    def topic(self, suffix: str = "", domain: str = "persistent") -> str:
        return f"{domain}://public/default/{self.name}{suffix}"

    def producer(self, suffix: str = "", **options: Any) -> pulsar.Producer:
        return self.client.create_producer(self.topic(suffix), **options)

    def subscribe(self, suffix: str = "", kind: str = "Exclusive", **options: Any) -> pulsar.Consumer:
        options = {"initial_position": pulsar.InitialPosition.Earliest, **options}
        topic = options.pop("topic", self.topic(suffix))
        return self.client.subscribe(topic, "s", pulsar.ConsumerType.__members__[kind], **options)

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """`path` follows the topic's name."""
        url = f"{self.http_url}/admin/v2/persistent/public/default/{self.name}{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None


def text(message: pulsar.Message) -> str:
    return message.data().decode()


def publish(producer: pulsar.Producer, values: Iterable[object], **options: Any) -> None:
    for value in values:
        producer.send(str(value).encode(), **options)


def publish_at_once(producer: pulsar.Producer, values: Iterable[tuple[str, str]]) -> None:
    """(key, value): as few batches as the producer makes of them."""
    for key, value in values:
        producer.send_async(value.encode(), None, partition_key=key or None)
    producer.flush()


def take(consumer: pulsar.Consumer, count: int) -> list[str]:
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        consumer.acknowledge(message)
        found.append(text(message))
    return found


def rest(consumer: pulsar.Consumer) -> list[str]:
    """What comes until nothing comes any more."""
    found = []
    while (message := maybe(consumer)) is not None:
        consumer.acknowledge(message)
        found.append(text(message))
    return found


def maybe(consumer: pulsar.Consumer) -> pulsar.Message | None:
    try:
        return consumer.receive(QUIET_MS)
    except pulsar.Timeout:
        return None


def refusal(attempt: Callable[[], object]) -> str:
    """What the error says; empty when nobody refused."""
    try:
        attempt()
    except pulsar.PulsarException as error:
        return f"{type(error).__name__}: {error}"
    return ""


def everything(world: World, suffix: str = "", **options: Any) -> list[str]:
    reader = world.client.create_reader(world.topic(suffix), pulsar.MessageId.earliest, **options)
    found = []
    while reader.has_message_available():
        found.append(text(reader.read_next(PATIENCE_MS)))
    reader.close()
    return found


# -- subscription types ------------------------------------------------------------------------------------


def exclusive(world: World) -> dict[str, Any]:
    consumer = world.subscribe()
    second = refusal(world.subscribe)
    publish(world.producer(), range(20))
    return {"received": take(consumer, 20), "second": second}


def failover(world: World) -> dict[str, Any]:
    active = world.subscribe(kind="Failover", consumer_name="a")
    standby = world.subscribe(kind="Failover", consumer_name="b")
    producer = world.producer()
    publish(producer, range(10))
    first, idle = take(active, 10), rest(standby)
    active.close()
    publish(producer, range(10, 20))
    return {"first": first, "idle": idle, "second": take(standby, 10)}


def shared(world: World) -> dict[str, Any]:
    both = [world.subscribe(kind="Shared", receiver_queue_size=5) for _ in range(2)]
    publish(world.producer(), range(40))
    found = turns(both, 40)
    return {
        "received": sorted(int(value) for _, value in found),
        "consumers": len({place for place, _ in found}),
    }


def turns(consumers: list[pulsar.Consumer], count: int) -> list[tuple[int, str]]:
    """(which consumer, value) of `count` messages, taken from the consumers by turns."""
    found: list[tuple[int, str]] = []
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while len(found) < count and time.monotonic() < deadline:
        for place, consumer in enumerate(consumers):
            if (message := maybe(consumer)) is not None:
                consumer.acknowledge(message)
                found.append((place, text(message)))
    return found


def by_key(consumers: list[pulsar.Consumer], producer: pulsar.Producer) -> dict[str, Any]:
    """Ten keys, five messages each: every key stays with one consumer, in order."""
    for number in range(5):
        for key in "abcdefghij":
            producer.send(f"{key}{number}".encode(), partition_key=key)
    found = turns(consumers, 50)
    homes: dict[str, set[int]] = {}
    order: dict[str, str] = {}
    for place, value in found:
        homes.setdefault(value[0], set()).add(place)
        order[value[0]] = order.get(value[0], "") + value[1]
    return {
        "count": len(found),
        "orders": sorted(set(order.values())),
        "apart": all(len(one) == 1 for one in homes.values()),
        "consumers": len({place for place, _ in found}),
    }


def key_shared(world: World) -> dict[str, Any]:
    return by_key([world.subscribe(kind="KeyShared", consumer_name=name) for name in "ab"], world.producer())


def sticky(world: World) -> dict[str, Any]:
    def member(first: int, last: int) -> pulsar.Consumer:
        policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, [(first, last)])
        return world.subscribe(kind="KeyShared", key_shared_policy=policy)

    both = [member(0, 32767), member(32768, 65535)]
    overlap = refusal(lambda: member(30000, 40000))
    return {**by_key(both, world.producer()), "overlap": overlap}


# -- publishing ----------------------------------------------------------------------------------------------


def batching(world: World) -> dict[str, Any]:
    options = {"batching_enabled": True, "batching_max_publish_delay_ms": 5000}
    publish_at_once(world.producer(**options), [("", str(number)) for number in range(20)])
    return received_in_entries(world.subscribe(), 20)


def received_in_entries(consumer: pulsar.Consumer, count: int) -> dict[str, Any]:
    values, entries = [], set()
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        consumer.acknowledge(message)
        values.append(text(message))
        entries.add(message.message_id().entry_id())
    return {"received": values, "entries": len(entries)}


def key_batching(world: World) -> dict[str, Any]:
    options = {
        "batching_enabled": True,
        "batching_max_publish_delay_ms": 5000,
        "batching_type": pulsar.BatchingType.KeyBased,
    }
    mixed = [(key, f"{key}{number}") for number in range(5) for key in "ab"]
    publish_at_once(world.producer(**options), mixed)
    found = received_in_entries(world.subscribe(kind="KeyShared"), 10)
    return {"received": sorted(found["received"]), "entries": found["entries"]}


def compression(world: World) -> dict[str, Any]:
    facts = {}
    for name in ("LZ4", "ZLib", "ZSTD", "SNAPPY"):
        kind = pulsar.CompressionType.__members__[name]
        producer = world.producer(f"-{name}", compression_type=kind, batching_enabled=True)
        values = [f"{number} " + "quire " * 100 for number in range(20)]
        publish_at_once(producer, [("", value) for value in values])
        facts[name.lower()] = everything(world, f"-{name}") == values
    return facts


def chunking(world: World) -> dict[str, Any]:
    large = bytes(range(256)) * (LARGE_BYTES // 256)
    consumer = world.subscribe()
    producer = world.producer(chunking_enabled=True)
    producer.send(large)
    producer.send(b"small")
    first, second = consumer.receive(PATIENCE_MS), consumer.receive(PATIENCE_MS)
    consumer.acknowledge(first)
    consumer.acknowledge(second)
    return {"size": len(first.data()), "same": first.data() == large, "then": text(second)}


def encryption(world: World) -> dict[str, Any]:
    publish(world.producer(encryption_key="key", crypto_key_reader=world.keys), ["secret"])
    without = world.client.create_reader(
        world.topic(),
        pulsar.MessageId.earliest,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    sealed = b"secret" not in without.read_next(PATIENCE_MS).data()
    return {"received": take(world.subscribe(crypto_key_reader=world.keys), 1), "sealed": sealed}


def deduplication(world: World) -> dict[str, Any]:
    world.admin("PUT", "")
    world.admin("POST", "/deduplicationEnabled", True)
    first = world.producer(producer_name="p")
    for number in (0, 1, 1, 2):
        first.send(b"%d" % number, sequence_id=number)
    first.close()
    second = world.producer(producer_name="p")
    for number in (2, 3):
        second.send(b"%d" % number, sequence_id=number)
    return {"received": everything(world)}


def last_sequence(world: World) -> dict[str, Any]:
    world.admin("PUT", "")
    world.admin("POST", "/deduplicationEnabled", True)
    first = world.producer(producer_name="p")
    publish(first, range(3))
    first.close()
    return {"last": world.producer(producer_name="p").last_sequence_id()}


def access_modes(world: World) -> dict[str, Any]:
    modes = pulsar.ProducerAccessMode
    first = world.producer(access_mode=modes.Exclusive)
    facts = {
        "exclusive": refusal(lambda: world.producer(access_mode=modes.Exclusive)),
        "shared": refusal(lambda: world.producer()),
    }
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(world.producer, access_mode=modes.WaitForExclusive)
        publish(first, ["first"])
        first.close()
        second = waiting.result(PATIENCE_MS / 1000)
    publish(second, ["second"])
    return {**facts, "received": everything(world)}


def fencing(world: World) -> dict[str, Any]:
    modes = pulsar.ProducerAccessMode
    old = world.producer(access_mode=modes.Exclusive)
    publish(old, ["old"])
    taker = world.producer(access_mode=modes.ExclusiveWithFencing)
    fenced = refusal(lambda: publish(old, ["late"]))
    publish(taker, ["new"])
    return {"fenced": bool(fenced), "received": everything(world)}


def non_persistent(world: World) -> dict[str, Any]:
    topic = world.topic(domain="non-persistent")
    consumer = world.subscribe(topic=topic)
    publish(world.client.create_producer(topic), range(20))
    return {"received": take(consumer, 20)}


def http_lookup(world: World) -> dict[str, Any]:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(world.http_url, logger=quiet)
    publish(client.create_producer(world.topic()), ["looked up"])
    client.close()
    return {"received": everything(world)}


# -- acknowledgements and redelivery -------------------------------------------------------------------------


def cumulative(world: World) -> dict[str, Any]:
    publish(world.producer(), range(10))
    consumer = world.subscribe()
    messages = [consumer.receive(PATIENCE_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    return {"left": take(world.subscribe(), 3)}


def batch_index(world: World) -> dict[str, Any]:
    options = {"batching_enabled": True, "batching_max_publish_delay_ms": 5000}
    publish_at_once(world.producer(**options), [("", str(number)) for number in range(10)])
    consumer = world.subscribe(kind="Shared", batch_index_ack_enabled=True)
    for number in range(10):
        message = consumer.receive(PATIENCE_MS)
        if number % 2 == 0:
            consumer.acknowledge(message)
    consumer.close()
    again = world.subscribe(kind="Shared", batch_index_ack_enabled=True)
    return {"left": sorted(take(again, 5) + rest(again))}


def negative(world: World) -> dict[str, Any]:
    publish(world.producer(), range(5))
    consumer = world.subscribe(kind="Shared", negative_ack_redelivery_delay_ms=100)
    for _ in range(5):
        message = consumer.receive(PATIENCE_MS)
        if text(message) == "2":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = consumer.receive(PATIENCE_MS)
    return {"again": text(again), "count": again.redelivery_count()}


def ack_timeout(world: World) -> dict[str, Any]:
    """What is not acknowledged in time comes again, and nothing else; the client takes no shorter time."""
    publish(world.producer(), range(5))
    consumer = world.subscribe(kind="Shared", unacked_messages_timeout_ms=10_000)
    for _ in range(5):
        message = consumer.receive(PATIENCE_MS)
        if text(message) != "2":
            consumer.acknowledge(message)
    again = consumer.receive(PATIENCE_MS)
    consumer.acknowledge(again)
    return {"again": text(again), "count": again.redelivery_count(), "more": rest(consumer)}


def dead_letter(world: World) -> dict[str, Any]:
    policy = pulsar.ConsumerDeadLetterPolicy(2, world.topic("-dead"), "s")
    consumer = world.subscribe(kind="Shared", negative_ack_redelivery_delay_ms=100, dead_letter_policy=policy)
    publish(world.producer(), ["poison"])
    counts = []
    for _ in range(3):
        message = consumer.receive(PATIENCE_MS)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    return {"counts": counts, "dead": take(world.subscribe("-dead", kind="Shared"), 1)}


def delayed(world: World) -> dict[str, Any]:
    consumer = world.subscribe(kind="Shared")
    producer = world.producer()
    start = time.time()
    publish(producer, ["later"], deliver_at=int(start * 1000) + 1000)
    publish(producer, ["now"])
    order = take(consumer, 2)
    return {"order": order, "early": time.time() - start < 1.0}


# -- positions and topics ------------------------------------------------------------------------------------


def seek(world: World) -> dict[str, Any]:
    producer = world.producer()
    ids = [producer.send(b"%d" % number) for number in range(5)]
    time.sleep(0.05)
    between_ms = int(time.time() * 1000)
    time.sleep(0.05)
    publish(producer, range(5, 10))
    consumer = world.subscribe(start_message_id_inclusive=True)
    facts = {"all": take(consumer, 10)}
    consumer.seek(ids[3])
    facts["from_id"] = take(consumer, 7)
    consumer.seek(between_ms)
    facts["from_time"] = take(consumer, 5)
    consumer.seek(pulsar.MessageId.earliest)
    return {**facts, "from_start": take(consumer, 10)}


def reader(world: World) -> dict[str, Any]:
    producer = world.producer()
    ids = [producer.send(b"%d" % number) for number in range(5)]
    one = world.client.create_reader(world.topic(), ids[1])
    after = [text(one.read_next(PATIENCE_MS)) for _ in range(3)]
    end = one.has_message_available()
    one.seek(pulsar.MessageId.earliest)
    head = text(one.read_next(PATIENCE_MS))
    late = world.client.create_reader(world.topic(), pulsar.MessageId.latest)
    publish(producer, ["5"])
    facts = {"after": after, "more": end, "head": head, "late": text(late.read_next(PATIENCE_MS))}
    return {**facts, "all": everything(world)}


def pattern(world: World) -> dict[str, Any]:
    for name in "ab":
        publish(world.producer(f"-{name}"), [name])
    consumer = world.subscribe(topic=re.compile(world.topic("-.*")))
    return {"received": sorted(take(consumer, 2))}


def partitions(world: World) -> dict[str, Any]:
    world.admin("PUT", "/partitions", 3)
    consumer = world.subscribe()
    publish(world.producer(), range(30))
    messages = [consumer.receive(PATIENCE_MS) for _ in range(30)]
    return {
        "received": sorted(int(text(message)) for message in messages),
        "partitions": len({message.topic_name() for message in messages}),
    }


def compaction(world: World) -> dict[str, Any]:
    producer = world.producer()
    for key, value in (("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("c", "")):
        producer.send(value.encode(), partition_key=key)
    world.admin("PUT", "/compaction")
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while world.admin("GET", "/compaction")["status"] != "SUCCESS" and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"view": take(world.subscribe(is_read_compacted=True), 2)}


def terminated(world: World) -> dict[str, Any]:
    producer = world.producer()
    publish(producer, range(3))
    world.admin("POST", "/terminate")
    refused = refusal(lambda: world.producer())
    return {"refused": refused, "received": take(world.subscribe(), 3)}


def schemas(world: World) -> dict[str, Any]:
    class Order(Record):  # type: ignore[misc]
        item = String(required=True)

    class Priced(Record):  # type: ignore[misc]
        item = String(required=True)
        cents = Integer(required_default=True)

    class Strict(Record):  # type: ignore[misc]
        item = String(required=True)
        euros = Integer(required=True)

    world.producer(schema=JsonSchema(Order)).send(Order(item="paper"))
    world.producer(schema=JsonSchema(Priced)).send(Priced(item="ink", cents=7))
    refused = refusal(lambda: world.producer(schema=JsonSchema(Strict)))
    consumer = world.subscribe(schema=JsonSchema(Priced))
    return {
        "received": [consumer.receive(PATIENCE_MS).value().item for _ in range(2)],
        "refused": refused,
    }


# -- a cluster -----------------------------------------------------------------------------------------------

KILL_TOPICS = 4
ROUNDS = 50


def kill(world: World) -> dict[str, Any]:
    for number in range(KILL_TOPICS):
        world.admin("PUT", f"-{number}")
        world.admin("POST", f"-{number}/deduplicationEnabled", True)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    with ThreadPoolExecutor(KILL_TOPICS) as beside:
        following = [beside.submit(follow, world.subscribe(f"-{number}")) for number in range(KILL_TOPICS)]
        producers = [world.producer(f"-{number}", send_timeout_millis=0) for number in range(KILL_TOPICS)]
        count, after = 0, 0
        while after < ROUNDS:
            for producer in producers:
                producer.send(b"%d" % count)
            count += 1
            after += told.is_set()
            if count == ROUNDS:
                tell({"event": "running"})
        for producer in producers:
            producer.send(b"end")
        found = [one.result() for one in following]
    want = list(range(count))
    return {"exact": [one == want for one in found], "enough": count >= 2 * ROUNDS}


def follow(consumer: pulsar.Consumer) -> list[int]:
    """The numbers up to the end, each where it came first."""
    seen: dict[int, None] = {}
    while True:
        message = consumer.receive()
        consumer.acknowledge(message)
        if text(message) == "end":
            return list(seen)
        seen.setdefault(int(text(message)))


def tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def play(service_url: str, http_url: str, keys: Path, scenario: str) -> None:
    try:
        world = World(service_url, http_url, keys, scenario)
        tell({"scenario": scenario, "facts": globals()[scenario](world)})
        world.client.close()
    except Exception as error:
        tell({"scenario": scenario, "error": f"{type(error).__name__}: {error}"})


def main() -> None:
    service_url, http_url, keys, *scenarios = sys.argv[1:]
    with ThreadPoolExecutor(AT_ONCE) as beside:
        for scenario in scenarios:
            beside.submit(play, service_url, http_url, Path(keys), scenario)


if __name__ == "__main__":
    main()
