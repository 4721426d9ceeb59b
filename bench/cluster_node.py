"""One process of the smallest cluster that can be measured: a bookie, or a broker over given bookies.

No metadata server is part of it: the bookie prints its record as its `ready` line, the broker is told the records
and keeps everything else in memory. So what is measured is the data path and nothing else.

    python -m bench.cluster_node bookie DIRECTORY [SETTING=VALUE ...]
    python -m bench.cluster_node broker DIRECTORY RECORD [RECORD ...]
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from pathlib import Path
from random import SystemRandom

import uvloop

from quire.bookie.registration import describe
from quire.bookie.server import BookieServer
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.cli.assemble import listen
from quire.ledger.bookie_client import BookieClient
from quire.ledger.directory import ClusterDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata import paths
from quire.metadata.memory import MemoryStore
from quire.metadata.records import BookieRecord, decode, encode
from quire.runtime.clock import SystemClock
from quire.runtime.memory import keep_heap
from quire.serving.broker import Broker
from quire.serving.settings import BrokerSettings
from quire.tiering.archive import Archive
from quire.tiering.open import open_store


async def bookie(root: Path) -> None:
    storage = Storage(BookieSettings(journal=str(root / "journal"), entry_log=str(root / "entries")))
    await storage.start()
    server = BookieServer(storage)
    await server.start()
    print("ready", encode(describe(storage, server.address)).decode(), flush=True)
    keep_heap()
    await _stopped()
    await server.stop()
    await storage.stop()


async def broker(root: Path, *records: str) -> None:
    store, clock = MemoryStore(), SystemClock()
    for raw in records:
        record = decode(BookieRecord, raw.encode(), "argument")
        await store.create(paths.bookie_available(record.uuid), encode(record))
        await store.create(paths.bookie(record.uuid), encode(record))
    directory = ClusterDirectory(store, BookieClient.of)
    await directory.start()
    ledgers = Ledgers(store, directory, clock, SystemRandom(), LedgerSettings())
    archive = Archive(open_store(f"file://{root}/archive"), clock)
    clients = listen("127.0.0.1:0")
    running = Broker(BrokerSettings(), store, ledgers, archive, clock)
    await running.start(clients)
    print("ready", clients.getsockname()[1], flush=True)
    gc.collect()
    keep_heap()
    await _stopped()
    await running.stop()
    await ledgers.stop()
    await directory.stop()


async def _stopped() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


def main() -> None:
    role, directory, *more = sys.argv[1:]
    uvloop.run((bookie if role == "bookie" else broker)(Path(directory), *more))


if __name__ == "__main__":
    main()
