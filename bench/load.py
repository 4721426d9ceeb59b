"""Load generator for servers with Pulsar's protocol, which uses little CPU compared with the server.

Frames are built once; for each round only their sequence ids are patched, as numpy columns. It publishes to one or many
topics over one connection, and prints one line of JSON. With `--rate`, the load is an open loop, and latencies count
from the scheduled times. Otherwise it publishes as fast as the server accepts, with a bounded number of outstanding
entries.

    python -m bench.load produce --port 6650 --server-pid PID --size 1024 --seconds 10
    python -m bench.load consume --port 6650 --topic t-0 --seconds 10
"""

from __future__ import annotations

import argparse
import select
import socket
import ssl
import time
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import numpy as np

from bench.report import show, usage
from quire.runtime.tls import ClientTls
from quire.wire import commands, message, varint
from quire.wire import pulsar_pb2 as pb

NAMESPACE = "persistent://public/default"
SEQUENCE_BYTES = 4
SEQUENCE_FIRST = 1 << 21
"""First sequence id. From it on, every sequence id is a varint of four bytes, so that frames keep their length."""

SEND_PREFIX_BYTES = 12
"""Bytes of a SEND frame before its producer id and sequence id: two sizes, then type, tag and length."""


class Connection:
    """Blocking connection that performs the handshake and the requests before the load begins.

    It uses TLS if an `authority` is given, and authenticates with `token` if there is one. If the port is a gateway's,
    `proxy_to` is the URL of the broker.
    """

    def __init__(self, port: int, authority: str = "", token: bytes = b"", proxy_to: str = "") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if authority:
            self.socket = ClientTls(authority).context().wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._rest = b""
        self.ask(commands.connect("quire-bench", "token" if token else "none", token, proxy_to))

    def ask(self, frame: bytes) -> bytes:
        """Send a request, and return the raw command of its response."""
        self.socket.sendall(frame)
        return self.answer()

    def look_up(self, topics: list[str]) -> None:
        """Look up the topics, so that a broker of the cluster acquires them."""
        for request_id, topic in enumerate(topics):
            self.socket.sendall(commands.ask_lookup(request_id, topic))
        for _ in topics:
            self.answer()

    def answer(self) -> bytes:
        while len(self._rest) < 4 or len(self._rest) < 4 + unpack_from(">I", self._rest)[0]:
            more = self.socket.recv(1 << 16)
            if not more:
                raise SystemExit("the server closed the connection")
            self._rest += more
        total, size = unpack_from(">II", self._rest)
        raw, self._rest = self._rest[8 : 8 + size], self._rest[4 + total :]
        command = pb.BaseCommand.FromString(raw)
        if command.type in (pb.BaseCommand.ERROR, pb.BaseCommand.CLOSE_PRODUCER):
            raise SystemExit(f"the server refused: {command}")
        return raw


def entry_of(size: int, messages: int, seed: int) -> bytes:
    """Return an entry of `messages` messages of `size` random bytes each; several messages are a batch."""
    payload = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()
    one = message.OutgoingMessage(payload)
    if messages == 1:
        return message.encode_one(one, producer_name="bench", sequence_id=0, publish_time_ms=_now_ms())
    return message.encode_batch(
        [one] * messages, producer_name="bench", first_sequence_id=0, publish_time_ms=_now_ms()
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Round:
    """Concatenated frames of one round; `bytes_at` patches their sequence ids and returns them."""

    def __init__(self, producers: list[int], entry: bytes, messages: int) -> None:
        frames = [_frame(producer, entry, messages) for producer in producers]
        self.sizes = np.array([len(frame) for frame, _ in frames])
        self.ends = np.cumsum(self.sizes)
        starts = self.ends - self.sizes
        self._places = starts + np.array([place for _, place in frames])
        self._bytes = np.frombuffer(bytearray(b"".join(frame for frame, _ in frames)), dtype=np.uint8)
        self.count = len(frames)

    def bytes_at(self, sequences: np.ndarray[Any, Any]) -> memoryview:
        for i in range(SEQUENCE_BYTES):
            more = 0x80 if i < SEQUENCE_BYTES - 1 else 0
            self._bytes[self._places + i] = (sequences >> (7 * i) & 0x7F) | more
        return memoryview(self._bytes.tobytes())


def _frame(producer: int, entry: bytes, messages: int) -> tuple[bytes, int]:
    highest = 0 if messages == 1 else SEQUENCE_FIRST
    frame = b"".join(commands.send(producer, SEQUENCE_FIRST, messages, entry, highest))
    return frame, SEND_PREFIX_BYTES + 1 + len(varint.encode(producer)) + 1


class Producers:
    """Producers of one connection, which publishes to `topics` topics, a round of frames at a time."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._connection = Connection(
            arguments.port, arguments.authority, arguments.token_file, arguments.proxy_to
        )
        producers = list(range(arguments.topics))
        self._connection.look_up([f"{NAMESPACE}/{arguments.prefix}-{producer}" for producer in producers])
        for producer in producers:
            body = pb.CommandProducer(
                topic=f"{NAMESPACE}/{arguments.prefix}-{producer}", producer_id=producer, request_id=producer
            )
            self._connection.socket.sendall(commands.producer(body))
        for _ in producers:
            self._connection.answer()
        entry = entry_of(arguments.size, arguments.batch, 7)
        per_round = producers if len(producers) > 1 else producers * max(1, min(256, (1 << 20) // len(entry)))
        self._round = Round(per_round, entry, arguments.batch)
        self._per_topic = self._round.count if len(producers) == 1 else 1
        self._window = arguments.outstanding
        self._count_max = arguments.count
        self._rate: float = arguments.rate / arguments.batch
        self._sequence = SEQUENCE_FIRST
        self._pending: memoryview = memoryview(b"")
        self._rest = b""
        self.sent = 0
        self.acknowledged = 0
        self.latencies: list[np.ndarray[Any, Any]] = []

    def run(self, until: float, begin: float) -> None:
        """Publish until the time `until`. `begin` is the time at which the schedule of an open loop began."""
        sock = self._connection.socket
        sock.setblocking(False)
        poll = select.poll()
        while (now := time.perf_counter()) < until and not 0 < self._count_max <= self.acknowledged:
            self._fill(now, begin)
            poll.register(sock, select.POLLIN | (select.POLLOUT if self._pending else 0))
            for _, event in poll.poll(self._wait_ms(now, begin)):
                if event & select.POLLIN:
                    self._receipts(begin)
                if event & select.POLLOUT:
                    self._send()

    def _send(self) -> None:
        try:
            self._pending = self._pending[self._connection.socket.send(self._pending[: 1 << 20]) :]
        except ssl.SSLError:
            pass  # TLS must first write to the socket, which is full

    def _read(self) -> bytes:
        """Return the received bytes. With TLS, these include all decrypted bytes, which `poll` does not report."""
        sock = self._connection.socket
        try:
            data = sock.recv(1 << 20)
            while isinstance(sock, ssl.SSLSocket) and sock.pending():
                data += sock.recv(1 << 20)
        except ssl.SSLWantReadError:
            return b""
        return data

    def _fill(self, now: float, begin: float) -> None:
        """Put the next frames that are due, and that the window of outstanding entries allows, into the output."""
        if self._pending:
            return
        room = self._window - (self.sent - self.acknowledged)
        if self._count_max:
            room = min(room, self._count_max - self.sent)
        if self._rate:
            room = min(room, int((now - begin) * self._rate) - self.sent)
        at = self.sent % self._round.count
        count = min(room, self._round.count - at)
        if count <= 0 or (
            not self._rate and count < min(self._window // 4, self._round.count - at, self._left())
        ):
            return
        if at == 0:
            step = (
                np.arange(self._round.count) if self._per_topic > 1 else np.zeros(self._round.count, np.int64)
            )
            self._whole = self._round.bytes_at(self._sequence + step)
            self._sequence += self._per_topic
        ends = self._round.ends
        self._pending = self._whole[0 if at == 0 else int(ends[at - 1]) : int(ends[at + count - 1])]
        self.sent += count

    def _left(self) -> int:
        return self._count_max - self.sent if self._count_max else self._round.count

    def _wait_ms(self, now: float, begin: float) -> float:
        if not self._rate or self._pending:
            return 100.0
        return max(0.0, min(100.0, 1000.0 * (begin + (self.sent + 1) / self._rate - now)))

    def _receipts(self, begin: float) -> None:
        data = self._rest + self._read()
        now = time.perf_counter()
        at, end, count = 0, len(data), 0
        while end - at >= 4:
            total = unpack_from(">I", data, at)[0]
            if end - at < 4 + total:
                break
            if data[at + 9] != pb.BaseCommand.SEND_RECEIPT:
                self._other(data[at + 8 : at + 4 + total])
            else:
                count += 1
            at += 4 + total
        self._rest = data[at:]
        if self._rate and count:
            due = begin + (np.arange(self.acknowledged, self.acknowledged + count) + 1) / self._rate
            self.latencies.append(now - due)
        self.acknowledged += count

    def _other(self, raw: bytes) -> None:
        command = pb.BaseCommand.FromString(raw)
        if command.type == pb.BaseCommand.PING:
            self._connection.socket.setblocking(True)
            self._connection.socket.sendall(pack(">II", 9, 5) + b"\x08\x13\x9a\x01\x00")
            self._connection.socket.setblocking(False)
        else:
            raise SystemExit(f"the server said: {command}")


def produce(arguments: argparse.Namespace) -> None:
    """Publish, and print the rate, the latencies and the server's usage in the measured time."""
    producers = Producers(arguments)
    begin = time.perf_counter()
    producers.run(begin + arguments.warmup, begin)
    producers.latencies.clear()
    before, first, start = usage(arguments.server_pid), producers.acknowledged, time.perf_counter()
    bookies = [usage(pid) for pid in arguments.bookie_pid]
    producers.run(start + arguments.seconds, begin)
    seconds = time.perf_counter() - start
    after, entries = usage(arguments.server_pid), producers.acknowledged - first
    payload = entries * arguments.batch * arguments.size
    figures: dict[str, Any] = {
        "entries_per_s": entries / seconds,
        "messages_per_s": entries * arguments.batch / seconds,
        "mb_per_s": payload / seconds / 1e6,
        "server_cpu_us_per_entry": (after.cpu_s - before.cpu_s) / max(1, entries) * 1e6,
        "server_cpu_share": (after.cpu_s - before.cpu_s) / seconds,
        "server_peak_mb": after.peak_bytes / 1e6,
        "written_per_payload_byte": (after.written_bytes - before.written_bytes) / max(1, payload),
    }
    if bookies:
        used = [
            usage(pid).cpu_s - each.cpu_s for pid, each in zip(arguments.bookie_pid, bookies, strict=True)
        ]
        figures["bookie_cpu_us_per_entry"] = sum(used) / len(used) / max(1, entries) * 1e6
        figures["bookie_peak_mb"] = max(usage(pid).peak_bytes for pid in arguments.bookie_pid) / 1e6
    if producers.latencies:
        all_ms = np.concatenate(producers.latencies) * 1000
        figures |= {f"p{q}_ms": float(np.percentile(all_ms, q)) for q in (50, 99, 99.9)}
        figures["max_ms"] = float(all_ms.max())
    show(
        arguments.label or "produce",
        topics=arguments.topics,
        size=arguments.size,
        batch=arguments.batch,
        **figures,
    )


def consume(arguments: argparse.Namespace) -> None:
    """Read as fast as the server dispatches, from the earliest message, and print the rate."""
    connection = Connection(arguments.port, arguments.authority, arguments.token_file, arguments.proxy_to)
    topic = f"{NAMESPACE}/{arguments.prefix}-0"
    connection.look_up([topic])
    connection.ask(commands.subscribe(_subscription(topic, arguments.subscription)))
    permits = arguments.permits
    connection.socket.sendall(commands.flow(1, permits))
    before, start = usage(arguments.server_pid), time.perf_counter()
    entries, payload = _drain(connection, arguments, start + arguments.seconds, permits)
    seconds, after = time.perf_counter() - start, usage(arguments.server_pid)
    show(
        arguments.label or "consume",
        entries_per_s=entries / seconds,
        mb_per_s=payload / seconds / 1e6,
        entries=entries,
        seconds=seconds,
        server_cpu_us_per_entry=(after.cpu_s - before.cpu_s) / max(1, entries) * 1e6,
        server_peak_mb=after.peak_bytes / 1e6,
        read_mb=(after.read_bytes - before.read_bytes) / 1e6,
    )


def _drain(
    connection: Connection, arguments: argparse.Namespace, until: float, permits: int
) -> tuple[int, int]:
    """Receive until a time, a number of entries, or two seconds without data; return (entries, bytes) received."""
    sock = connection.socket
    sock.settimeout(2.0)
    entries = payload = given = 0
    rest = bytearray()
    buffer = bytearray(4 << 20)
    while time.perf_counter() < until and not (arguments.count and entries >= arguments.count):
        try:
            size = sock.recv_into(buffer)
        except TimeoutError:
            break
        if not size:
            raise SystemExit("the server closed the connection")
        rest += memoryview(buffer)[:size]
        at, end = 0, len(rest)
        while end - at >= 4:
            total = unpack_from(">I", rest, at)[0]
            if end - at < 4 + total:
                break
            if rest[at + 9] == pb.BaseCommand.MESSAGE:
                entries += 1
                payload += total
            at += 4 + total
        del rest[:at]
        if entries * arguments.batch - given >= permits // 2:
            sock.sendall(commands.flow(1, entries * arguments.batch - given))
            given = entries * arguments.batch
    return entries, payload


PERMITS_FOR_GOOD = (1 << 31) - 1


def fan_out(arguments: argparse.Namespace) -> None:
    """Consume one topic by many exclusive subscriptions, each on its own connection. Bytes are counted, not parsed."""
    topic = f"{NAMESPACE}/{arguments.prefix}-0"
    poll = select.poll()
    sockets: dict[int, socket.socket] = {}
    for number in range(arguments.subscriptions):
        connection = Connection(arguments.port, token=arguments.token_file)
        connection.look_up([topic])
        connection.ask(commands.subscribe(_subscription(topic, f"{arguments.subscription}-{number}")))
        connection.socket.sendall(commands.flow(1, PERMITS_FOR_GOOD))
        sockets[connection.socket.fileno()] = connection.socket
        poll.register(connection.socket, select.POLLIN)
    _swallow(poll, sockets, time.perf_counter() + arguments.warmup)
    before, start = usage(arguments.server_pid), time.perf_counter()
    received = _swallow(poll, sockets, start + arguments.seconds)
    seconds, after = time.perf_counter() - start, usage(arguments.server_pid)
    show(
        arguments.label or "fan out",
        subscriptions=arguments.subscriptions,
        mb_per_s=received / seconds / 1e6,
        server_cpu_s_per_gb=(after.cpu_s - before.cpu_s) / max(1, received) * 1e9,
        server_peak_mb=after.peak_bytes / 1e6,
    )


def _swallow(poll: select.poll, sockets: dict[int, socket.socket], until: float) -> int:
    """Discard everything that the sockets receive until the time `until`, and return the number of bytes."""
    buffer = bytearray(4 << 20)
    received = 0
    while time.perf_counter() < until:
        for number, _ in poll.poll(100):
            size = sockets[number].recv_into(buffer)
            if not size:
                raise SystemExit("the server closed a connection")
            received += size
    return received


def _subscription(topic: str, name: str) -> pb.CommandSubscribe:
    body = pb.CommandSubscribe(topic=topic, subscription=name, consumer_id=1, request_id=1)
    body.subType = pb.CommandSubscribe.Exclusive
    body.initialPosition = pb.CommandSubscribe.Earliest
    return body


def _secret(path: str) -> bytes:
    return Path(path).read_bytes().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("produce", "consume", "fan-out"))
    parser.add_argument("--port", type=int, default=6650)
    parser.add_argument("--proxy-to", default="", help="URL of the broker; the port is a gateway's")
    parser.add_argument("--server-pid", type=int, required=True)
    parser.add_argument(
        "--bookie-pid", type=int, action="append", default=[], help="bookies beside the server"
    )
    parser.add_argument("--authority", default="", help="PEM file; the port is one with TLS")
    parser.add_argument("--token-file", type=_secret, default=b"", help="the token to log in with")
    parser.add_argument("--prefix", default=f"bench-{_now_ms()}")
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1, help="messages per entry")
    parser.add_argument("--rate", type=float, default=0, help="messages a second, 0: as fast as possible")
    parser.add_argument("--outstanding", type=int, default=1000, help="entries without a receipt")
    parser.add_argument("--warmup", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--subscription", default="bench")
    parser.add_argument("--subscriptions", type=int, default=10, help="of one topic, to fan out to")
    parser.add_argument("--permits", type=int, default=1000)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--label", default="")
    arguments = parser.parse_args()
    {"produce": produce, "consume": consume, "fan-out": fan_out}[arguments.mode](arguments)


if __name__ == "__main__":
    main()
