"""HTTP port of a gateway or a bookie: `python -m tests.chaos.http_port gateway|bookie [BROKER_URL HTTP_URL]`.

It runs the port's production code without a cluster: the gateway's broker is registered in memory, and the bookie
stores nothing. It prints the port's URL, and exits at the end of its input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from random import Random

from quire.gateway.gateway import Gateway
from quire.metadata import paths
from quire.metadata.records import BrokerRecord, encode
from quire.process.bookie import BookieProcessSettings
from quire.process.bookie_http import make_app
from quire.process.listeners import Listeners, listen, url_of
from quire.process.parts import Parts, Process
from quire.process.settings import LoadedSettings
from quire.runtime import log
from quire.runtime.member import Member
from quire.runtime.metrics import Values
from quire.runtime.probes import Scrapes
from quire.testing.metadata import MemoryStore


class Bookie:
    def why_not_ready(self) -> Sequence[str]:
        return []

    def warnings(self) -> Sequence[str]:
        return []

    def metrics(self) -> Values:
        return {"quire_bookie_ledgers": 7}


async def gateway(parts: Parts, service_url: str, http_url: str) -> str:
    store, rest = MemoryStore(), listen("127.0.0.1:0")
    made = Gateway(store.join(), Random(1), 1_000)
    await made.start(None, rest)
    parts.push_async_callback(made.stop)
    record = BrokerRecord(broker_id="only", service_url=service_url, http_url=http_url)
    await store.create(paths.broker("only"), encode(record), ephemeral=True)
    while not made.brokers.all():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return url_of("http", rest)


async def bookie(process: Process) -> str:
    node, sock = Bookie(), listen("127.0.0.1:0")
    app = make_app(node, Scrapes([node.metrics]), Member("bookie", "b:1"), process)
    await process.serve_http(app, Listeners(http=sock))
    return url_of("http", sock)


async def main(kind: str, *urls: str) -> None:
    async with Process(kind, LoadedSettings(()), BookieProcessSettings()) as process:
        url = await (gateway(process, *urls) if kind == "gateway" else bookie(process))
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    log.configure("warning")
    asyncio.run(main(*sys.argv[1:]))
