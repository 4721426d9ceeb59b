"""The stock Python client against our frames: what it sends we cut, what we build it takes.

A server of a few lines on a thread answers one connection from the client's own flow. It keeps the entries that
the client publishes and delivers whatever entries a test gives it.
"""

import socket
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pulsar
import pytest

from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.wire import commands, entry_frames, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.compression import NAMES
from quire.wire.frame import FrameCutter, Send, SendRun
from quire.wire.message import OutgoingMessage

LEDGER = 7


class ScriptedServer:
    """Takes every connection of one client; `published` gets its entries, `to_deliver` goes to its consumer."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self._listener.getsockname()[1]}"
        self.published: SimpleQueue[tuple[bytes, int]] = SimpleQueue()
        self.acked: SimpleQueue[pb.MessageIdData] = SimpleQueue()
        self.to_deliver: list[bytes] = []
        self.cutters: list[FrameCutter] = []
        self._entry_id = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        cutter = FrameCutter()
        self.cutters.append(cutter)
        with connection:
            while count := connection.recv_into(cutter.get_buffer()):
                for cut in cutter.received(count):
                    connection.sendall(b"".join(self._answer(cut)))

    def _answer(self, cut: object) -> list[bytes]:
        if isinstance(cut, SendRun):
            first, self._entry_id = self._entry_id, self._entry_id + len(cut)
            for entry, count in zip(cut.entries, cut.counts or [1] * len(cut), strict=True):
                self.published.put((entry, count))
            return entry_frames.receipt_run(entry_frames.ledger_field(LEDGER), first, cut.heads)
        assert not isinstance(cut, Send)
        assert isinstance(cut, Command)
        match cut.body:
            case pb.CommandConnect() as body:
                return [commands.connected("Quire", body.protocol_version, MESSAGE_BYTES_MAX)]
            case pb.CommandPartitionedTopicMetadata() as body:
                return [commands.partitions(body.request_id, 0)]
            case pb.CommandLookupTopic() as body:
                return [commands.lookup_found(body.request_id, self.url)]
            case pb.CommandProducer() as body:
                return [commands.producer_success(body.request_id, body.producer_name or "made-up")]
            case pb.CommandSubscribe() as body:
                return [commands.success(body.request_id)]
            case pb.CommandFlow() as body:
                return self._deliveries(body.consumer_id)
            case pb.CommandAck() as body:
                for acked in body.message_id:
                    self.acked.put(acked)
                return []
            case pb.CommandGetLastMessageId() as body:
                last = commands.message_id(LEDGER, len(self.to_deliver) - 1)
                return [commands.last_message_id(body.request_id, last)]
            case pb.CommandCloseProducer() | pb.CommandCloseConsumer() as body:
                return [commands.success(body.request_id)]
            case pb.CommandPing():
                return [commands.PONG]
        return []

    def _deliveries(self, consumer_id: int) -> list[bytes]:
        entries, self.to_deliver = self.to_deliver, []
        headers = entry_frames.message_headers(consumer_id, LEDGER, -1, 120, list(map(len, entries)), 2)
        return [part for pair in zip(headers, entries, strict=True) for part in pair]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer()
    yield made
    made.close()


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[pulsar.Client]:
    made = pulsar.Client(
        server.url, operation_timeout_seconds=10, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield made
    made.close()


CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("batching", [False, True])
def test_what_the_stock_client_publishes_is_decoded(
    server: ScriptedServer, client: pulsar.Client, codec: str, batching: bool
) -> None:
    producer = client.create_producer("t", compression_type=CODECS[codec], batching_enabled=batching)
    payloads = [f"message {i} ".encode() * 20 for i in range(300)]
    for i, payload in enumerate(payloads):
        producer.send_async(
            payload, None, properties={"n": str(i)}, partition_key=f"key {i % 7}", event_timestamp=1_000 + i
        )
    producer.flush()
    decoded: list[message.DecodedMessage] = []
    while len(decoded) < len(payloads):
        entry, count = server.published.get(timeout=5)
        messages = message.decode(entry)
        assert message.checksum_ok(entry) and len(messages) == count
        decoded += messages
    assert [m.payload for m in decoded] == payloads
    assert [m.key for m in decoded] == [f"key {i % 7}" for i in range(300)]
    assert [m.properties for m in decoded] == [{"n": str(i)} for i in range(300)]
    assert [m.event_time_ms for m in decoded] == [1_000 + i for i in range(300)]
    cutter = max(server.cutters, key=lambda c: c.fast_sends)
    assert cutter.slow_sends == 0
    assert (cutter.fast_sends == 300) if not batching else (0 < cutter.fast_sends < 300)


@pytest.mark.parametrize("codec", CODECS)
def test_what_we_encode_the_stock_client_receives(
    server: ScriptedServer, client: pulsar.Client, codec: str
) -> None:
    outgoing = [OutgoingMessage(f"m{i}".encode() * 30, f"key {i}", {"n": str(i)}, 500 + i) for i in range(40)]
    server.to_deliver = [
        message.encode_batch(outgoing[:30], "p", 0, 1_000, NAMES[codec]),
        *(message.encode_one(one, "p", 30 + i, 1_000, NAMES[codec]) for i, one in enumerate(outgoing[30:])),
    ]
    consumer = client.subscribe("t", "s", receiver_queue_size=100)
    for expected in outgoing:
        got = consumer.receive(timeout_millis=5_000)
        assert got.data() == expected.payload
        assert (got.partition_key(), got.properties()) == (expected.key, expected.properties)
        assert (got.event_timestamp(), got.publish_timestamp(), got.redelivery_count()) == (
            expected.event_time_ms,
            1_000,
            2,
        )
        assert got.message_id().ledger_id() == LEDGER
        consumer.acknowledge(got)
    assert [server.acked.get(timeout=5).entryId for _ in range(11)] == list(range(120, 131))


def test_receipts_carry_the_message_id(server: ScriptedServer, client: pulsar.Client) -> None:
    producer = client.create_producer("t", batching_enabled=False)
    ids = [producer.send(b"x" * 50) for _ in range(3)]
    assert [(one.ledger_id(), one.entry_id()) for one in ids] == [(LEDGER, 0), (LEDGER, 1), (LEDGER, 2)]
