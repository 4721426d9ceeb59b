"""Object stores of a broker: the archive and write-ahead logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from quire.identity.marker import read_marker
from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.ledger.directory import BookieDirectory
from quire.metadata.cluster import begin_cluster, is_begun
from quire.objects.open import open_for_log, open_store
from quire.objects.store import ObjectStore
from quire.process.parts import Process
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.runtime.limits import WAL_CACHE_BYTES
from quire.tiering.archive import Archive
from quire.wal.settings import WalSettings

if TYPE_CHECKING:
    from quire.wal.directory import WalDirectory

log = logging.getLogger(__name__)

ARCHIVE_ANSWERS_S: Final = 10.0


async def open_archive(process: Process, url: str) -> ObjectStore | None:
    """Open the archive's store, and prepare it for uploads; None without a URL.

    Raises `ConfigurationError` for an unusable store. An unavailable store is only logged, because brokers must start
    anyway.
    """
    if not url:
        return None
    objects = open_store(url)
    process.push_async_callback(objects.close)
    await _if_it_answers(objects, objects.prepare)
    return objects


async def enter_archive(process: Process, objects: ObjectStore | None, cluster: str) -> Archive | None:
    """Verify that the archive belongs to the cluster. If the store is unavailable, the first upload verifies this.

    Raises `WrongCluster`, `ConfigurationError`.
    """
    if objects is None:
        return None
    archive = Archive(Place(process.store, objects, cluster, StoreRole.ARCHIVE), process.clock)
    process.push_async_callback(archive.close)
    await _if_it_answers(objects, archive.place.enter)
    return archive


async def _if_it_answers(objects: ObjectStore, call: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(ARCHIVE_ANSWERS_S):
            await call()
    except Unavailable as error:
        log.warning("archive unavailable, no segments are archived for now: %s", error)
    except TimeoutError:
        log.warning("archive %s unavailable: time-out; uploads wait for it", objects.url)


async def begin_with_wal(process: Process) -> None:
    """Create a cluster with write-ahead logs on object storage, if the metadata store has none.

    Raises `ConfigurationError` if the object store belongs to a cluster, because its metadata may have been lost.
    """
    from quire.wal import wal_object  # imported only by processes without bookies

    store, settings = process.store, process.settings[WalSettings]
    if await is_begun(store):
        return
    objects = open_for_log(settings.wal, settings.threads)
    try:
        await objects.prepare()
        marked = await read_marker(objects)
        remains = marked or await objects.list(wal_object.FOLDER)
    finally:
        await objects.close()
    if remains and not await is_begun(store):  # another broker may have created it meanwhile
        holds = f"belongs to cluster {marked}" if marked else "has write-ahead logs"
        raise ConfigurationError(
            f"{objects.url} {holds}, but the metadata store has no cluster: restore its contents, rebuild them "
            "(quire rescue metadata --wal), or create the new cluster with another prefix"
        )
    await begin_cluster(store, process.clock.now_ms())


async def start_wals(process: Process, cluster: str, owner: str, bookies: BookieDirectory) -> WalDirectory:
    """Open the write-ahead logs of the broker `owner`, and the directory of all logs.

    Raises `ConfigurationError` for a store without the required features, `WrongCluster` for another cluster's store.
    """
    from quire.wal.context import WalContext  # imported only by processes without bookies
    from quire.wal.directory import WalDirectory
    from quire.wal.run_reader import run_cache

    settings = process.settings[WalSettings]
    objects = open_for_log(settings.wal, settings.threads)
    process.push_async_callback(objects.close)
    cache = run_cache(WAL_CACHE_BYTES)
    process.push_async_callback(cache.close)
    place = Place(process.store, objects, cluster, StoreRole.LOGS)
    context = WalContext(place, cache, process.clock, settings, owner)
    return await process.start(WalDirectory(context, bookies))
