"""The bookie in the metadata store: a persistent record of its identity, and an ephemeral one while it is up.

Writers choose bookies among the ephemeral records, so what they must know stands there: address, rack, whether it
takes new blocks, and how much room it has. It is written again when that changes, and made again when the
store's session was lost: the node served on meanwhile, it had only gone out of sight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire.bookie.storage import Storage
from quire.metadata import paths
from quire.metadata.records import BookieRecord, encode
from quire.metadata.store import ANY_VERSION, MetadataStore, SessionEvent
from quire.runtime.errors import AlreadyExists, NotFound, QuireError
from quire.runtime.limits import GIB
from quire.runtime.tasks import Tasks

log = logging.getLogger(__name__)

_REFRESH_S: Final = 5.0
_FREE_STEP_BYTES: Final = 1 * GIB
"""Free space is told in steps of this, so that the record rests while nothing important changes."""


def describe(storage: Storage, address: str = "", rack: str = "") -> BookieRecord:
    """What others may know of the bookie now."""
    stats = storage.stats()
    return BookieRecord(
        uuid=storage.bookie_id.uuid,
        incarnation=storage.bookie_id.incarnation,
        rack=rack,
        address=address,
        read_only=stats.read_only,
        free_bytes=stats.free_bytes // _FREE_STEP_BYTES * _FREE_STEP_BYTES,
        total_bytes=stats.total_bytes,
    )


class Registration:
    """Keeps both records true between `start` and `stop`."""

    def __init__(self, store: MetadataStore, storage: Storage, address: str, rack: str = "") -> None:
        self._store = store
        self._describe: Callable[[], BookieRecord] = lambda: describe(storage, address, rack)
        self._path = paths.bookie_available(storage.bookie_id.uuid)
        self._identity_path = paths.bookie(storage.bookie_id.uuid)
        self._tasks = Tasks("bookie registration")
        self._told: BookieRecord | None = None
        self._changed = asyncio.Event()
        self._forget_session: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Be seen. Raises what the store raises."""
        await self._tell_identity()
        await self._tell()
        self._forget_session = self._store.on_session(self._on_session)
        self._tasks.start(self._follow(), "keep the registration true")

    async def stop(self) -> None:
        """Be gone at once, without waiting for the session to end."""
        self._forget_session()
        await self._tasks.stop()
        await self._delete()

    def _on_session(self, event: SessionEvent) -> None:
        if event is not SessionEvent.SUSPENDED:
            self._told = None
            self._changed.set()

    async def _follow(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._changed.wait(), _REFRESH_S)
            except TimeoutError:
                pass
            self._changed.clear()
            if self._told == self._describe():
                continue
            try:
                await self._tell()
            except QuireError as error:
                log.warning("cannot renew the registration, trying again: %s", error)

    async def _tell(self) -> None:
        record = self._describe()
        if self._told is None:  # what is there was left by a session before ours, and would die with it
            await self._delete()
            await self._store.create(self._path, encode(record), ephemeral=True)
        else:
            await self._store.put(self._path, encode(record), ANY_VERSION)
        self._told = record

    async def _delete(self) -> None:
        try:
            await self._store.delete(self._path)
        except NotFound:
            pass

    async def _tell_identity(self) -> None:
        value = encode(self._describe())
        try:
            await self._store.create(self._identity_path, value)
        except AlreadyExists:
            await self._store.put(self._identity_path, value, ANY_VERSION)
