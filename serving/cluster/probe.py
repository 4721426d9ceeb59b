"""Does another broker take connections? Asked before a client is sent there.

A broker that was killed owns its bundles until its session is over. A client that is sent to it tries again less and
less often, and so comes back long after another broker could have served it. A lookup that waits instead is answered at
the right moment. So the result need not be right: a wrong "no" makes a lookup wait, a wrong "yes" is what every client
copes with.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

VALID_S: Final = 0.5
TIMEOUT_S: Final = 1.0


class Probe:
    """Remembers the result for each URL for `VALID_S`."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[float, asyncio.Task[bool]]] = {}

    async def __call__(self, url: str) -> bool:
        now = asyncio.get_running_loop().time()
        at, task = self._asked.get(url, (-VALID_S, None))
        if task is None or (task.done() and now - at >= VALID_S):
            task = asyncio.ensure_future(takes_connections(url))
            self._asked[url] = now, task
        return await asyncio.shield(task)


async def takes_connections(url: str) -> bool:
    """Connect to the host and port of `url`, and hang up."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True
