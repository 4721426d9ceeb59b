"""Benchmark of TLS against plain connections: throughput, CPU of a handshake, memory, and stalled handshakes.

    python -m bench.tls [throughput|handshakes|memory|stalls …]      (all without arguments; about two minutes)

One server has both ports open, and each figure is measured alternately on both in one run, so that other load of the
machine affects both alike. `quire certs` creates the certificates.
"""

from __future__ import annotations

import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import server as servers
from bench.load import Connection, entry_of
from bench.report import ask, show, usage
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

SIZE = 16 * 1024
ROUNDS = 3
HANDSHAKES = 500
CONNECTIONS = 2_000
FILES = 3 * CONNECTIONS

_HELLO_BEGUN = b"\x16\x03\x01\x02\x00\x01\x00"
"""First bytes of a client's handshake, whose length field announces about five hundred more."""


@dataclass
class Served:
    server: servers.Server
    ports: dict[str, int]
    authority: str

    def connect(self, kind: str) -> Connection:
        return Connection(self.ports[kind], self.authority_of(kind))

    def authority_of(self, kind: str) -> str:
        return self.authority if kind == "tls" else ""


@contextmanager
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as folder:
        quire = [sys.executable, "-m", "quire"]
        subprocess.run([*quire, "certs", "make", folder], check=True, stdout=subprocess.DEVNULL)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        security = Path(folder) / "security.toml"
        ports = f'listen = "127.0.0.1:{port}"\nhttp = "127.0.0.1:0"\n'
        security.write_text(security.read_text() + ports)
        with servers.fresh("--security", str(security)) as server:
            yield Served(server, {"plain": server.port, "tls": port}, f"{folder}/authority.pem")


def throughput() -> None:
    """Measure publishing entries of 16 KiB as fast as the server accepts them, and reading them."""
    with served() as on:
        for turn in range(ROUNDS):
            for kind in on.ports:
                prefix = f"{kind}-{turn}"
                _load(on, "produce", kind, f"published, {kind}", "--prefix", prefix, "--outstanding", 2000)
                _load(on, "consume", kind, f"read, {kind}", "--prefix", prefix, "--seconds", 4)


def _load(on: Served, mode: str, kind: str, label: str, *more: object) -> None:
    words: list[object] = [sys.executable, "-m", "bench.load", mode, "--port", on.ports[kind]]
    words += ["--server-pid", on.server.pid, "--authority", on.authority_of(kind), "--size", SIZE]
    words += ["--label", label, "--warmup", 1, "--seconds", 5, *more]
    subprocess.run([str(word) for word in words], check=True)


def handshakes() -> None:
    """Measure the server's CPU for a connection, from accept to CONNECTED. TLS sessions are not resumed."""
    with served() as on:
        for kind in ("plain", "tls"):
            on.connect(kind).socket.close()
            before, begin = usage(on.server.pid), time.perf_counter()
            for _ in range(HANDSHAKES):
                on.connect(kind).socket.close()
            seconds, after = time.perf_counter() - begin, usage(on.server.pid)
            show(
                f"connections, {kind}",
                server_cpu_ms_each=(after.cpu_s - before.cpu_s) / HANDSHAKES * 1000,
                per_s=HANDSHAKES / seconds,
            )


def memory() -> None:
    """Measure the server's memory per open connection, first after CONNECT, then after one message on each."""
    for kind in ("plain", "tls"):
        with served() as on:
            on.connect(kind)
            before = usage(on.server.pid)
            opened = [on.connect(kind) for _ in range(CONNECTIONS)]
            after = usage(on.server.pid)
            show(
                f"open connections, {kind}",
                kib_each=(after.resident_bytes - before.resident_bytes) / CONNECTIONS / 1024,
            )
            for one in opened:
                one.socket.close()


def stalls() -> None:
    """Measure the latency of single publishes while other connections begin a handshake and stall."""
    with served() as on:
        for kind in ("plain", "tls"):
            _one_at_a_time(on, kind, f"receipts, {kind}", seconds=5)
            begin = time.perf_counter()
            stalled = [_stall(on.ports["tls"], _HELLO_BEGUN) for _ in range(CONNECTIONS)]
            _one_at_a_time(on, kind, f"receipts beside {CONNECTIONS} stalled handshakes, {kind}", seconds=5)
            show("stalled handshakes", seconds=time.perf_counter() - begin)
            for sock in stalled:
                sock.close()


def _stall(port: int, said: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(said)
    return sock


def _one_at_a_time(on: Served, kind: str, label: str, seconds: float) -> None:
    connection = on.connect(kind)
    topic = "persistent://public/default/one-at-a-time"
    connection.look_up([topic])
    connection.ask(commands.producer(pb.CommandProducer(topic=topic, producer_id=1, request_id=1)))
    entry, waits_ms, until, number = entry_of(1024, 1, 7), [], time.perf_counter() + seconds, 0
    while (begin := time.perf_counter()) < until:
        connection.ask(b"".join(commands.send(1, number, 1, entry, 0)))
        waits_ms.append((time.perf_counter() - begin) * 1000)
        number += 1
    connection.socket.close()
    waits_ms.sort()
    show(
        label,
        p50_ms=waits_ms[len(waits_ms) // 2],
        p99_ms=waits_ms[len(waits_ms) * 99 // 100],
        max_ms=waits_ms[-1],
    )


QUESTIONS: dict[str, Callable[[], None]] = {
    "throughput": throughput,
    "handshakes": handshakes,
    "memory": memory,
    "stalls": stalls,
}


if __name__ == "__main__":
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (FILES, max(FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    )
    show("TLS", library=ssl.OPENSSL_VERSION)
    ask(QUESTIONS)
