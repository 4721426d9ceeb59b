"""Benchmark of authentication and authorization, and of the time until a revoked permission takes effect.

    python -m bench.security [authentication|revocation …]      (both without arguments; three minutes)

`authentication` measures two servers alternately, one with a security file and one without, so that other load of the
machine affects both alike. Its last line has the ratio of the medians.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from struct import unpack_from

from bench import server as servers
from bench.load import NAMESPACE, Connection
from bench.report import ask, show
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

ROUNDS = 7
SIZE = 1024
TOPICS = 10_000
PATIENCE_S = 120.0
PERMISSIONS = "/admin/v2/namespaces/public/default/permissions"


@dataclass
class Secured:
    server: servers.Server
    admin: Path
    app: Path
    """Token files of the roles `admin` and `app`."""

    def allow(self, *permissions: str) -> None:
        """Grant the role `app` these permissions in the namespace; without any, revoke all of them."""
        request = urllib.request.Request(
            f"{self.server.http_url}{PERMISSIONS}/app",
            json.dumps(permissions).encode() if permissions else None,
            {"Authorization": f"Bearer {self.admin.read_text().strip()}", "Content-Type": "application/json"},
            method="POST" if permissions else "DELETE",
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S):
            pass


@contextmanager
def secured() -> Iterator[Secured]:
    """Run a server that requires tokens, and on which the role `app` may produce and consume."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        tokens = [sys.executable, "-m", "quire", "tokens"]
        key = home / "secret.key"
        subprocess.run([*tokens, "create-key", str(key)], check=True, stdout=subprocess.DEVNULL)
        for role in ("admin", "app"):
            made = subprocess.run(
                [*tokens, "create", role, "--secret-key", str(key)], check=True, stdout=subprocess.PIPE
            )
            (home / role).write_bytes(made.stdout)
        (home / "security.toml").write_text(
            '[authentication.token]\nsecret_key = "secret.key"\n'
            '[authorization]\nsuperusers = ["admin"]\n[audit]\nfile = "audit.jsonl"\n'
        )
        with servers.fresh("--security", str(home / "security.toml")) as server:
            found = Secured(server, home / "admin", home / "app")
            found.allow("produce", "consume")
            yield found


def authentication() -> None:
    """Measure publishing entries of 1 KiB, with authentication and permissions, and without."""
    with ExitStack() as stack:
        on, off = stack.enter_context(secured()), stack.enter_context(servers.fresh())
        kinds = {"on": (on.server, ["--token-file", str(on.app)]), "off": (off, [])}
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for turn in range(ROUNDS):
            for kind in kinds if turn % 2 else reversed(kinds):
                server, more = kinds[kind]
                found[kind].append(_published(server, f"{kind}-{turn}", *more))
        for figure in ("server_cpu_us_per_entry", "messages_per_s"):
            middle = {kind: median(one[figure] for one in runs) for kind, runs in found.items()}
            show(f"{figure}, authentication on / off", **middle, ratio=middle["on"] / middle["off"])


def _published(server: servers.Server, prefix: str, *more: str) -> dict[str, float]:
    words: list[object] = [sys.executable, "-m", "bench.load", "produce", "--port", server.port]
    words += ["--server-pid", server.pid, "--size", SIZE, "--prefix", prefix, "--label", prefix]
    words += ["--warmup", 1, "--seconds", 5, *more]
    run = subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True)
    print(run.stdout, end="", flush=True)
    figures: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return figures


def revocation() -> None:
    """Measure the time from a revocation's response until the last of 10,000 producers is closed, one per topic."""
    with secured() as on:
        connection = Connection(on.server.port, token=on.app.read_bytes().strip())
        names = [f"{NAMESPACE}/revoked-{number}" for number in range(TOPICS)]
        for number, name in enumerate(names):
            connection.look_up([name])
            body = pb.CommandProducer(topic=name, producer_id=number, request_id=number)
            connection.ask(commands.producer(body))
        on.allow()
        began = time.perf_counter()
        first, last = _closed(connection.socket, TOPICS)
        show("revocation to effect", topics=TOPICS, first_s=first - began, last_s=last - began)


def _closed(sock: socket.socket, count: int) -> tuple[float, float]:
    """Return the times at which the broker's requests to close the first and the last of `count` producers arrived."""
    sock.settimeout(PATIENCE_S)
    rest, first = b"", 0.0
    while count:
        rest += sock.recv(1 << 16)
        while len(rest) >= 4 and len(rest) >= 4 + unpack_from(">I", rest)[0]:
            total, size = unpack_from(">II", rest)
            command = pb.BaseCommand.FromString(rest[8 : 8 + size])
            rest = rest[4 + total :]
            if command.type == pb.BaseCommand.CLOSE_PRODUCER:
                count -= 1
                first = first or time.perf_counter()
    return first, time.perf_counter()


if __name__ == "__main__":
    ask({"authentication": authentication, "revocation": revocation})
