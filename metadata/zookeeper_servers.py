"""Status of each server of a ZooKeeper ensemble; a session proves only that one of them answers.

The status comes from `srvr`, the only one of ZooKeeper's [four-letter
words](https://zookeeper.apache.org/doc/current/zookeeperAdmin.html#sc_zkCommands) that is enabled by default. A server
that has lost the quorum responds that it does not serve.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from ssl import SSLContext
from typing import Final, NamedTuple

from quire.metadata.zookeeper_url import parse_url

ASK_S: Final = 2.0
"""Time-out of one server's answer, in seconds."""
ANSWER_BYTES_MAX: Final = 65_536
_LATENCY: Final = re.compile(r"Latency min/avg/max: [\d.]+/([\d.]+)/[\d.]+")
_WAITING: Final = re.compile(r"Outstanding: (\d+)")


class ServerState(NamedTuple):
    """Status of a server. `problem` is "" if it serves. `mode` is leader, follower, standalone, or "" if unknown."""

    server: str
    problem: str = ""
    mode: str = ""
    latency_ms: float = 0.0
    """Average latency since the server's start."""
    waiting: int = 0
    """Number of requests that it has not answered yet."""


async def look(url: str, tls: Callable[[], SSLContext] | None = None) -> Sequence[ServerState]:
    """Return the status of every server in `url`. Raises `ConfigurationError` for an invalid URL."""
    parsed = parse_url(url)
    context = tls() if parsed.is_tls and tls is not None else None
    return await asyncio.gather(*(_look_at(server, context) for server in parsed.hosts.split(",")))


async def _look_at(server: str, tls: SSLContext | None) -> ServerState:
    try:
        async with asyncio.timeout(ASK_S):
            answer = await _ask(server, tls)
    except TimeoutError:
        return ServerState(server, "it does not answer")
    except (OSError, UnicodeDecodeError) as error:
        return ServerState(server, f"it cannot be reached: {getattr(error, 'strerror', '') or error}")
    if "not currently serving" in answer:
        return ServerState(server, "it is running, but does not serve: it has lost the other servers")
    mode = re.search(r"Mode: (\w+)", answer)
    latency, waiting = _LATENCY.search(answer), _WAITING.search(answer)
    return ServerState(
        server,
        mode=mode[1] if mode else "",
        latency_ms=float(latency[1]) if latency else 0.0,
        waiting=int(waiting[1]) if waiting else 0,
    )


async def _ask(server: str, tls: SSLContext | None) -> str:
    host, _, port = server.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=tls)
    try:
        writer.write(b"srvr")
        return (await reader.read(ANSWER_BYTES_MAX)).decode()
    finally:
        writer.close()
