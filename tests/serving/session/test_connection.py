"""One connection with a transport in memory: what it answers, in which order, and when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from quire.runtime.limits import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.pump import Pump
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.frame import FrameCutter
from tests.serving.conftest import BrokerHouse

TOPIC = "persistent://public/default/session"
NAME = TopicName.parse(TOPIC)


class MemoryTransport(asyncio.Transport):
    """Keeps what is written, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 4711) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.writes.append(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Client:
    """A client that speaks frames to one connection."""

    def __init__(self, broker: Broker) -> None:
        self.connection = broker.sessions.accept()
        self.transport = MemoryTransport()
        self.connection.connection_made(self.transport)
        self._cutter = FrameCutter()
        self._seen = 0

    def send(self, *parts: bytes) -> None:
        data = memoryview(b"".join(parts))
        while data:
            room = self.connection.get_buffer(-1)
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            self.connection.buffer_updated(taken)
            data = data[taken:]

    def received(self) -> list[Any]:
        """What came since the last call."""
        found: list[Any] = []
        for data in self.transport.writes[self._seen :]:
            found += self._cutter.feed(data)
        self._seen = len(self.transport.writes)
        return found

    async def answers(self, count: int) -> list[Command]:
        """The next `count` commands."""
        found: list[Command] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                await asyncio.sleep(0)
                found += self.received()
        assert len(found) == count, found
        return found

    async def connect(self, client_version: str = "test") -> None:
        self.send(commands.connect(client_version))
        (answer,) = await self.answers(1)
        assert answer.kind == pb.BaseCommand.CONNECTED


def producer(request_id: int, producer_id: int = 1, topic: str = TOPIC, **more: Any) -> bytes:
    body = pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=request_id, **more)
    return commands.producer(body)


def subscribe(request_id: int, consumer_id: int = 1, subscription: str = "s") -> bytes:
    return commands.subscribe(
        pb.CommandSubscribe(
            topic=TOPIC,
            subscription=subscription,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=consumer_id,
            request_id=request_id,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
    )


def entry(payload: bytes = b"payload") -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    return message.seal(metadata, payload)


def kinds(answers: list[Command]) -> list[str]:
    return [pb.BaseCommand.Type.Name(answer.kind) for answer in answers]


@pytest.fixture
async def peer(broker: Broker) -> Client:
    made = Client(broker)
    await made.connect()
    return made


async def test_connect_tells_versions_and_size(broker: Broker) -> None:
    client = Client(broker)
    client.send(commands.connect("test"))
    (answer,) = await client.answers(1)
    assert answer.body.protocol_version == commands.PROTOCOL_VERSION  # type: ignore[attr-defined]
    assert answer.body.max_message_size == MESSAGE_BYTES_MAX  # type: ignore[attr-defined]


async def test_sends_that_did_not_wait_for_their_producer_keep_their_order(peer: Client) -> None:
    """A client may send everything at once; nothing overtakes the PRODUCER that it rests on."""
    parts = [producer(1)]
    for sequence in range(5):
        parts += commands.send(1, sequence, 1, entry())
    parts.append(commands.close_producer(1, 2))
    peer.send(*parts)
    answers = await peer.answers(7)
    assert kinds(answers) == ["PRODUCER_SUCCESS", *["SEND_RECEIPT"] * 5, "SUCCESS"]
    assert [one.body.sequence_id for one in answers[1:6]] == list(range(5))  # type: ignore[attr-defined]
    assert [one.body.message_id.entryId for one in answers[1:6]] == list(range(5))  # type: ignore[attr-defined]


async def test_request_ids_may_collide_over_kinds(peer: Client) -> None:
    peer.send(commands.ask_partitions(7, TOPIC), commands.ask_lookup(7, TOPIC), producer(7), subscribe(7))
    answers = await peer.answers(4)
    assert sorted(kinds(answers)) == [
        "LOOKUP_RESPONSE",
        "PARTITIONED_METADATA_RESPONSE",
        "PRODUCER_SUCCESS",
        "SUCCESS",
    ]
    assert {one.body.request_id for one in answers} == {7}  # type: ignore[attr-defined]


async def test_who_looks_for_transactions_is_told_that_there_are_none(peer: Client) -> None:
    peer.send(commands.ask_partitions(7, "persistent://pulsar/system/transaction_coordinator_assign"))
    (answer,) = await peer.answers(1)
    assert answer.body.error == pb.NotAllowedError  # type: ignore[attr-defined]
    assert answer.body.message == "this broker has no transactions"  # type: ignore[attr-defined]


async def test_java_producers_may_ask_for_new_partitions() -> None:
    """They never do where the broker does not say that the question creates nothing."""
    (connected,) = FrameCutter().feed(commands.connected("x", 21, MESSAGE_BYTES_MAX))
    flags = connected.body.feature_flags  # type: ignore[union-attr]
    assert flags.supports_get_partitioned_metadata_without_auto_creation


async def test_what_a_turn_says_leaves_in_one_write(peer: Client) -> None:
    before = len(peer.transport.writes)
    peer.send(*[commands.PING] * 50)
    assert kinds(await peer.answers(50)) == ["PONG"] * 50
    assert len(peer.transport.writes) == before + 1


async def test_a_damaged_entry_is_told_and_the_next_is_taken(peer: Client) -> None:
    peer.send(producer(1))
    await peer.answers(1)
    damaged = bytearray(entry())
    damaged[-1] ^= 1
    peer.send(*commands.send(1, 0, 1, bytes(damaged)), *commands.send(1, 1, 1, entry()))
    error, receipt = await peer.answers(2)
    assert kinds([error, receipt]) == ["SEND_ERROR", "SEND_RECEIPT"]
    assert error.body.error == pb.ChecksumError  # type: ignore[attr-defined]
    assert receipt.body.message_id.entryId == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "bad",
    [
        commands.PING,
        b"GET / HTTP/1.1\r\n\r\n",
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big") + bytes(10),
        bytes(8),
        b"\xff" * 100,
    ],
    ids=["no CONNECT", "another protocol", "oversized", "empty", "noise"],
)
async def test_a_broken_peer_is_told_and_closed(broker: Broker, bad: bytes) -> None:
    client, other = Client(broker), Client(broker)
    client.send(bad)
    assert client.transport.closed
    (error,) = client.received()
    assert error.kind == pb.BaseCommand.ERROR
    assert error.body.request_id == commands.NO_REQUEST
    client.send(commands.connect("late"))
    assert client.received() == []
    await other.connect()


async def test_a_command_that_only_brokers_send_closes(peer: Client) -> None:
    peer.send(commands.success(1))
    assert peer.transport.closed


async def test_transactions_are_refused_by_name(peer: Client) -> None:
    peer.send(producer(1, txn_enabled=True))
    (answer,) = await peer.answers(1)
    assert answer.body.error == pb.NotAllowedError  # type: ignore[attr-defined]
    assert not peer.transport.closed


@pytest.mark.parametrize("bits", [{"txnid_least_bits": 1}, {"txnid_most_bits": 0}])
async def test_an_ack_within_a_transaction_is_refused_and_changes_nothing(
    broker: Broker, peer: Client, bits: dict[str, int]
) -> None:
    peer.send(subscribe(1), producer(1), *commands.send(1, 0, 1, entry()))
    assert sorted(kinds(await peer.answers(3))) == ["PRODUCER_SUCCESS", "SEND_RECEIPT", "SUCCESS"]
    topic = await broker.registry.open_persistent(TopicName.parse(TOPIC))
    (subscription,) = topic.subscriptions
    before = subscription.mark_delete
    body = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=5, **bits)
    body.message_id.add(ledgerId=topic.log.last_confirmed.ledger_id, entryId=0)
    peer.send(commands.frame(pb.BaseCommand(type=pb.BaseCommand.ACK, ack=body)))
    (answer,) = await peer.answers(1)
    assert (answer.body.error, answer.body.message) == (  # type: ignore[attr-defined]
        pb.NotAllowedError,
        "this broker has no transactions",
    )
    assert not peer.transport.closed
    body.ClearField("request_id")
    peer.send(commands.frame(pb.BaseCommand(type=pb.BaseCommand.ACK, ack=body)))
    assert peer.transport.closed, "there is no other answer"
    assert subscription.mark_delete == before


async def test_an_empty_subscription_name_is_refused(peer: Client) -> None:
    peer.send(subscribe(1, subscription=""))
    (answer,) = await peer.answers(1)
    assert answer.body.error == pb.ProducerBusy, "as Pulsar"  # type: ignore[attr-defined]
    assert answer.body.message.startswith("Empty subscription name")  # type: ignore[attr-defined]


async def test_requests_for_consumers_that_are_not_there_are_answered(peer: Client) -> None:
    peer.send(
        commands.seek(9, 1, commands.message_id(-1, -1)),
        commands.unsubscribe(9, 2),
        commands.ask_last_message_id(9, 3),
        commands.ack(9, [commands.message_id(1, 1)], request_id=4),
        commands.close_consumer(9, 5),
        commands.close_producer(9, 6),
        commands.flow(9, 100),
    )
    answers = await peer.answers(6)
    assert sorted(one.body.request_id for one in answers) == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]


async def test_the_budget_stops_reading_from_publishers_only(broker: Broker, peer: Client) -> None:
    idle = Client(broker)
    await idle.connect()
    peer.send(producer(1))
    await peer.answers(1)
    broker.services.budget.take(broker.services.budget.limit_bytes)
    peer.send(*commands.send(1, 0, 1, entry()))
    idle.send(commands.PING)
    assert (peer.transport.reading, idle.transport.reading) == (False, True)
    await peer.answers(1)
    assert not peer.transport.reading
    broker.services.budget.give_back(broker.services.budget.limit_bytes)
    assert peer.transport.reading


async def test_silence_is_pinged_and_then_closed(peer: Client) -> None:
    peer.connection.keep_alive()
    peer.connection.keep_alive()
    (ping,) = await peer.answers(1)
    assert ping.kind == pb.BaseCommand.PING
    peer.send(commands.PONG)
    peer.connection.keep_alive()
    peer.connection.keep_alive()
    assert not peer.transport.closed
    peer.connection.keep_alive()
    assert peer.transport.closed


async def test_a_lost_connection_frees_its_names(broker: Broker, peer: Client) -> None:
    peer.send(producer(1, producer_name="mine"), subscribe(2))
    await peer.answers(2)
    peer.connection.connection_lost(None)
    again = Client(broker)
    await again.connect()
    again.send(producer(1, producer_name="mine"), subscribe(2))
    assert sorted(kinds(await again.answers(2))) == ["PRODUCER_SUCCESS", "SUCCESS"]


async def test_a_connection_lost_while_it_subscribes_leaves_nobody_behind(
    broker: Broker, peer: Client
) -> None:
    peer.send(subscribe(1), producer(1))
    peer.connection.connection_lost(None)
    again = Client(broker)
    await again.connect()
    again.send(subscribe(1), producer(1, producer_access_mode=1))
    assert sorted(kinds(await again.answers(2))) == ["PRODUCER_SUCCESS", "SUCCESS"]


async def test_who_waits_for_exclusive_access_hears_of_it(broker: Broker, peer: Client) -> None:
    waiting = Client(broker)
    await waiting.connect()
    peer.send(producer(1))
    await peer.answers(1)
    waiting.send(producer(1, producer_access_mode=2))
    (not_yet,) = await waiting.answers(1)
    assert not not_yet.body.producer_ready  # type: ignore[attr-defined]
    peer.send(commands.close_producer(1, 2))
    (ready,) = await waiting.answers(1)
    assert ready.body.producer_ready  # type: ignore[attr-defined]


async def test_java_s_consumers_hear_when_they_have_read_a_terminated_topic(house: BrokerHouse) -> None:
    """Others would close the connection. A restart keeps the end."""
    broker = await house.start()
    java, other = Client(broker), Client(broker)
    for peer, version in ((java, "Pulsar-Java-v4.1.0"), (other, "Pulsar-CPP-v4.2.0")):
        peer.send(commands.connect(version))
        await peer.answers(1)
    java.send(producer(1))
    await java.answers(1)
    java.send(*commands.send(1, 0, 1, entry()))
    (receipt,) = await java.answers(1)
    java.send(subscribe(2, subscription="a"))
    other.send(subscribe(2, subscription="b"))
    await java.answers(1)
    await other.answers(1)
    last = await broker.admin.topics.terminate(NAME)
    assert last == await broker.admin.topics.terminate(NAME) == commands.position(receipt.body.message_id)
    assert kinds(await java.answers(1)) == ["CLOSE_PRODUCER"], "not yet: a message is left"
    for peer in (java, other):
        peer.send(commands.ack(1, [receipt.body.message_id], request_id=3))
    assert sorted(kinds(await java.answers(2))) == ["ACK_RESPONSE", "REACHED_END_OF_TOPIC"]
    assert kinds(await other.answers(1)) == ["ACK_RESPONSE"]
    await house.stop(broker)
    again = Client(await house.start())
    again.send(commands.connect("Pulsar-Java-v4.1.0"))
    await again.answers(1)
    again.send(producer(1), subscribe(2, subscription="a"))
    answers = await again.answers(3)
    assert [one.body.error for one in answers if isinstance(one.body, pb.CommandError)] == [
        pb.TopicTerminatedError
    ]
    assert sorted(kinds(answers)) == ["ERROR", "REACHED_END_OF_TOPIC", "SUCCESS"]


async def test_two_thousand_idle_connections_cost_little_memory(broker: Broker) -> None:
    clients = [Client(broker) for _ in range(2000)]
    for client in clients:
        client.send(commands.connect("idle"))
    assert sum(client.connection.inbound._cutter.buffer_bytes for client in clients) <= 2000 * 16 * 1024
    assert broker.metrics()["quire_serving_connections"] == 2000
    for client in clients:
        client.connection.connection_lost(None)


async def test_an_ack_behind_what_closes_its_consumer_is_answered(peer: Client) -> None:
    """A seek closes the consumer while the acknowledgement waits behind it."""
    ids = [commands.message_id(1, 1)]
    peer.send(subscribe(1), commands.seek(1, 2, publish_time_ms=1), commands.ack(1, ids, request_id=3))
    answers = await peer.answers(4)
    assert sorted(kinds(answers)) == ["ACK_RESPONSE", "CLOSE_CONSUMER", "SUCCESS", "SUCCESS"]
    (told,) = [one.body for one in answers if one.kind == pb.BaseCommand.ACK_RESPONSE]
    assert told.request_id == 3 and told.HasField("error")  # type: ignore[attr-defined]


async def test_a_producer_may_ask_for_the_subscription_that_will_read_it(
    broker: Broker, peer: Client
) -> None:
    """As producers of dead letters do, so that none is lost before somebody looks."""
    for number in (1, 2):
        peer.send(producer(number, number, initial_subscription_name="later"))
        assert kinds(await peer.answers(1)) == ["PRODUCER_SUCCESS"]
    assert await broker.admin.subscriptions.names(NAME) == ["later"]
    peer.send(producer(3, 3, f"non-{TOPIC}", initial_subscription_name="later"))
    (refused,) = await peer.answers(1)
    assert refused.body.error == pb.NotAllowedError  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "more",
    [
        {"producer_name": "p" * 600},
        {"initial_subscription_name": "s" * 600},
        {"metadata": [pb.KeyValue(key="k", value="v" * 70_000)]},
        {"txn_enabled": True},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_a_producer_that_cannot_be_is_refused_and_costs_nothing(
    broker: Broker, peer: Client, more: dict[str, Any]
) -> None:
    peer.send(producer(1, **more))
    (refused,) = await peer.answers(1)
    assert kinds([refused]) == ["ERROR"]
    assert refused.body.error == pb.NotAllowedError and refused.body.message  # type: ignore[attr-defined]
    assert not peer.transport.closed and not peer.connection.producers
    peer.send(producer(2))
    assert kinds(await peer.answers(1)) == ["PRODUCER_SUCCESS"]


async def test_sends_of_no_producer_change_nothing(broker: Broker, peer: Client) -> None:
    """They may come behind a producer that was closed from here, so they are passed over."""
    peer.send(*commands.send(7, 0, 1, entry()), producer(1))
    assert kinds(await peer.answers(1)) == ["PRODUCER_SUCCESS"]
    peer.send(commands.close_producer(9, 5), *commands.send(2, 0, 1, entry()), commands.PING)
    assert sorted(kinds(await peer.answers(2))) == ["PONG", "SUCCESS"]
    assert broker.services.budget.held_bytes == 0
    assert (await broker.admin.statistics.stats(NAME)).msg_in_counter == 0


def entry_metadata_in(raw: bytes) -> list[tuple[int, int]]:
    """(index, broker's time) of each entry in frames that were sent, as clients read them."""
    found, at = [], 0
    while at < len(raw):
        total, size = int.from_bytes(raw[at : at + 4], "big"), int.from_bytes(raw[at + 4 : at + 8], "big")
        rest = raw[at + 8 + size : at + 4 + total]
        if commands.parse(raw[at + 8 : at + 8 + size]).kind == pb.BaseCommand.MESSAGE:
            if rest.startswith(b"\x0e\x02"):
                stop = 6 + int.from_bytes(rest[2:6], "big")
                said = pb.BrokerEntryMetadata.FromString(rest[6:stop])
                found.append((said.index, said.broker_timestamp))
                rest = rest[stop:]
            assert rest.startswith(b"\x0e\x01") and message.checksum_ok(rest)
        at += 4 + total
    return found


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("takes_it", [True, False])
async def test_who_takes_broker_entry_metadata_is_told_the_index_of_each_last_message(
    house: BrokerHouse, is_on: bool, takes_it: bool
) -> None:
    broker = await house.start(broker_entry_metadata=is_on)
    peer = Client(broker)
    flags = pb.FeatureFlags(supports_broker_entry_metadata=takes_it)
    body = pb.CommandConnect(client_version="test", protocol_version=19, feature_flags=flags)
    peer.send(commands.frame(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=body)), producer(1))
    await peer.answers(2)
    batch = [message.OutgoingMessage(b"x")] * 3
    peer.send(*commands.send(1, 0, 1, entry()))
    peer.send(*commands.send(1, 1, 3, message.encode_batch(batch, "p", 1, 1), 3))
    peer.send(*commands.send(1, 4, 1, entry(bytes(5000))))
    await peer.answers(3)
    before_ms = broker.services.clock.now_ms()
    peer.send(subscribe(2), commands.flow(1, 100))
    async with asyncio.timeout(60):
        while b"".join(peer.transport.writes).count(b"\x0e\x01") < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
    told = entry_metadata_in(b"".join(peer.transport.writes))
    if not (is_on and takes_it):
        assert told == []
        return
    assert [index for index, _ in told] == [0, 3, 4]
    assert all(before_ms - 60_000 <= time_ms <= before_ms for _, time_ms in told)
    part = commands.message_id(0, 0)
    (consumer,) = peer.connection.consumers.values()
    assert consumer.topic is not None
    part.ledgerId, part.entryId, part.batch_size = consumer.topic.log.segments()[-1].ledger_id, 1, 3
    part.ack_set.append(0b100)
    peer.transport.writes.clear()
    peer.send(commands.ack(1, [part]), commands.redeliver(1))
    async with asyncio.timeout(60):
        while b"".join(peer.transport.writes).count(b"\x0e\x01") < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
    again = entry_metadata_in(b"".join(peer.transport.writes))
    assert [index for index, _ in again] == [0, 3, 4], "also of a batch that is partly acknowledged"


async def test_acknowledgements_of_one_read_are_told_as_one_before_what_follows_them(
    peer: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.send(producer(1), subscribe(2))
    await peer.answers(2)
    for number in range(6):
        peer.send(*commands.send(1, number, 1, entry()))
    receipts = await peer.answers(6)
    ids = [one.body.message_id for one in receipts]
    (end,) = peer.connection.consumers.values()
    subscription = broker.registry.persistent()[0].subscriptions.get("s")
    assert end.attached is not None and subscription is not None
    told: list[list[int]] = []
    original = Pump.acknowledge

    def watched(self: Pump, consumer: Consumer, ids: Any, **more: Any) -> None:
        told.append([one.entryId for one in ids])
        original(self, consumer, ids, **more)

    monkeypatch.setattr(Pump, "acknowledge", watched)
    peer.send(commands.flow(1, 100), *(commands.ack(1, [one]) for one in (ids[0], ids[2], ids[1])))
    assert told == [[0, 2, 1]]
    assert subscription.mark_delete == commands.position(ids[2])
    peer.send(commands.ack(1, [ids[3]]), commands.redeliver(1), commands.ack(1, [ids[4]]))
    assert told[1:] == [[3], [4]], "who gives back has acknowledged before"
    peer.send(commands.ack(1, [ids[5]]), commands.success(9))
    assert told[3:] == [[5]] and peer.transport.closed, "what came before a mistake counts"


async def test_a_subscribe_that_does_not_want_the_topic_made_gets_none(peer: Client, broker: Broker) -> None:
    topic = f"{TOPIC}-of-nobody"

    def ask(request_id: int, create: bool) -> bytes:
        body = pb.CommandSubscribe(topic=topic, subscription="s", consumer_id=1, request_id=request_id)
        body.subType, body.force_topic_creation = pb.CommandSubscribe.Shared, create
        return commands.subscribe(body)

    peer.send(ask(1, False))
    (answer,) = await peer.answers(1)
    assert (answer.kind, answer.body.error) == (pb.BaseCommand.ERROR, pb.TopicNotFound)  # type: ignore[attr-defined]
    assert topic not in await broker.fan_out.topics("public", "default", "persistent")
    peer.send(ask(2, True))
    assert kinds(await peer.answers(1)) == ["SUCCESS"]
    peer.send(commands.close_consumer(1, 3), ask(4, False))
    assert kinds(await peer.answers(2)) == ["SUCCESS", "SUCCESS"]


async def test_a_forced_unsubscribe_closes_other_connections_consumers(broker: Broker) -> None:
    first, second = Client(broker), Client(broker)
    for client in (first, second):
        await client.connect()
        body = pb.CommandSubscribe(topic=TOPIC, subscription="forced", consumer_id=1, request_id=1)
        body.subType = pb.CommandSubscribe.Shared
        client.send(commands.subscribe(body))
        assert kinds(await client.answers(1)) == ["SUCCESS"]
    for force, expected in ((False, "ERROR"), (True, "SUCCESS")):
        wish = pb.CommandUnsubscribe(consumer_id=1, request_id=2, force=force)
        first.send(commands.frame(pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE, unsubscribe=wish)))
        assert kinds(await first.answers(1)) == [expected]
    assert kinds(await second.answers(1)) == ["CLOSE_CONSUMER"]
