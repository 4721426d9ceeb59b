"""Benchmark of a search over a topic's messages by REST, and of the publish latency beside it.

    python -m bench.search [messages]

A topic gets messages of 100 bytes, one or a hundred in an entry. A search for a text that no message contains reads all
of them, slice by slice, as the console does. The main figure is the server's CPU time. Then messages are published to
another topic at a fixed rate, without and with searches that follow each other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

from bench import server as servers
from bench.report import machine, show, usage

MESSAGES = 1_000_000
SIZE = 100
RATE = 1_000
SECONDS = 8


def load(server: servers.Server, *arguments: object) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "bench.load", "produce", "--port", server.port, "--server-pid", server.pid]
    return subprocess.Popen([str(word) for word in (*words, "--size", SIZE, *arguments)])


def slices(server: servers.Server, topic: str) -> Iterator[dict[str, object]]:
    """Search for a text that no message contains."""
    start = "earliest"
    while True:
        query = f"from={start}&value=nothing-contains-this"
        with urlopen(
            f"{server.http_url}/quire/v1/topics/persistent/public/default/{topic}/search?{query}"
        ) as answer:
            found = json.load(answer)
        yield found
        if found["isEnd"]:
            return
        start = found["next"]


def fill(server: servers.Server, prefix: str, batch: int, messages: int) -> None:
    process = load(server, "--prefix", prefix, "--batch", batch, "--warmup", 0, "--seconds", 3600)
    url = f"{server.http_url}/quire/v1/topics/persistent/public/default/{prefix}-0/search?from=latest"
    try:
        stored = 0
        while stored < messages:
            time.sleep(1)
            try:
                with urlopen(url) as answer:
                    stored = json.load(answer)["endIndex"]
            except HTTPError:
                continue  # the topic does not exist yet
    finally:
        process.kill()
        process.wait()


def search(server: servers.Server, label: str, topic: str) -> None:
    began_s, before = time.perf_counter(), usage(server.pid).cpu_s
    every = list(slices(server, topic))
    cpu_s, messages = usage(server.pid).cpu_s - before, every[-1]["endIndex"]
    assert isinstance(messages, int)
    show(
        label,
        messages=messages,
        slices=len(every),
        seconds=time.perf_counter() - began_s,
        server_cpu_s=cpu_s,
        server_cpu_us_per_message=1e6 * cpu_s / messages,
    )


def beside(server: servers.Server, label: str, topic: str | None) -> None:
    """Publish at a fixed rate, while searches follow each other."""
    process = load(server, "--prefix", label, "--rate", RATE, "--seconds", SECONDS, "--label", label)
    while topic is not None and process.poll() is None:
        for _ in slices(server, topic):
            if process.poll() is not None:
                break
    if process.wait() != 0:
        raise SystemExit("the load generator failed")


def main() -> None:
    messages = int(sys.argv[1]) if sys.argv[1:] else MESSAGES
    show("machine", **machine())
    with servers.fresh() as server:
        for batch, prefix in ((100, "batched"), (1, "single")):
            fill(server, prefix, batch, messages)
            search(server, f"search, {prefix}", f"{prefix}-0")
        beside(server, "published alone", None)
        for prefix in ("single", "batched"):
            beside(server, f"published beside a search, {prefix}", f"{prefix}-0")


if __name__ == "__main__":
    main()
