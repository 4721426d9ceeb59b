"""The bookie in the metadata store: a persistent record of its identity, and an ephemeral one while it is up.

Writers choose bookies among the ephemeral records, so what they must know stands there: address, rack, whether it
takes new blocks, and how much room it has. It is written again when that changes, and made again when the
store's session was lost: the node served on meanwhile, it had only gone out of sight.

The persistent record says that the bookie exists, whether it is up or not, and what an operator wants of it
(`BookieIntent`). A bookie that is to be drained turns read-only, so writers leave it. When repair has copied all that
it held, its record goes: it is *retired*, leaves the list of those that are up, and only waits to be stopped. A bookie
that drains because it was told to stop (`leave`) says so in the ephemeral record only, so the wish ends with it.

Refused, in one sentence: an address that another bookie has advertised and holds (one that died is waited for until its
session ends), and a bookie that holds ledgers in a store that does not know it: it was retired, or the store is the
wrong one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from quire import __version__
from quire.bookie.storage import Storage
from quire.metadata import paths
from quire.metadata.bookie_states import BookieEvent, after
from quire.metadata.cluster import read_cluster
from quire.metadata.notify import change_and_touch
from quire.metadata.records import BookieIntent, BookieRecord, decode, encode
from quire.metadata.store import ANY_VERSION, MetadataStore, Put, SessionEvent
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    CorruptionError,
    NotFound,
    QuireError,
    Unavailable,
)
from quire.runtime.limits import GIB
from quire.runtime.tasks import Tasks

log = logging.getLogger(__name__)

_REFRESH_S: Final = 5.0
_RETRY_S: Final = 1.0
_GOODBYE_S: Final = 1.0
_ADDRESS_LOOK_S: Final = 0.25
_ADDRESS_GRACE_S: Final = 2.0
"""Beyond the session time-out, until an address that another bookie left behind is free."""

_FREE_STEP_BYTES: Final = 1 * GIB
"""Free space is told in steps of this, or of a 64th of a smaller disk, so that the record rests while nothing important
changes."""


def describe(storage: Storage, address: str = "", rack: str = "", http_url: str = "") -> BookieRecord:
    """What others may know of the bookie now."""
    health, space = storage.health, storage.health.space()
    return BookieRecord(
        uuid=storage.bookie_id.uuid,
        incarnation=storage.bookie_id.incarnation,
        rack=rack,
        address=address,
        read_only=health.is_read_only,
        read_only_why=health.why_read_only,
        takes_priority=health.takes_priority,
        short_of_space=health.is_short_of_space,
        free_bytes=space.free_bytes,
        total_bytes=space.total_bytes,
        http_url=http_url,
        version=__version__,
    )


class Registration:
    """Keeps both records true between `start` and `stop`."""

    def __init__(
        self,
        store: MetadataStore,
        storage: Storage,
        address: str,
        rack: str = "",
        *,
        cluster: str = "",
        tls: bool = False,
        http_url: str = "",
    ) -> None:
        """`cluster` is the id of the store's; it is remembered beside the data once the store knows the bookie."""
        self._store = store
        self._storage = storage
        self._address = address
        self._cluster = cluster
        self._about: Callable[[], BookieRecord] = lambda: replace(
            describe(storage, address, rack, http_url), tls=tls
        )
        self._is_leaving = False
        self._available = _EphemeralRecord(store, paths.bookie_available(storage.bookie_id.uuid))
        self._identity_path = paths.bookie(storage.bookie_id.uuid)
        self._tasks = Tasks("bookie registration")
        self._intent = BookieIntent.STAY
        self._intent_is_old = False
        self._changed = asyncio.Event()
        self._cancels: list[Callable[[], None]] = []
        self.is_retired = False

    async def start(self) -> None:
        """Be seen. Raises `ConfigurationError` (see the top of the file) and what the store raises."""
        await self._wait_for_address()
        await self._tell_identity()
        if self._cluster:
            self._storage.identity.join(self._cluster)
        await self._available.tell(self._describe())
        self._cancels = [
            self._store.on_session(self._on_session),
            self._store.watch(self._identity_path, self._on_identity),
            self._store.watch(self._available.path, self._on_available),
        ]
        # Before the watch, the coordinator may have retired the bookie by the record that its former process left.
        self._on_identity(self._identity_path)
        self._tasks.start(self._follow(), "keep the registration true")

    async def stop(self) -> None:
        """Be gone at once, without waiting for the session to end."""
        for cancel in self._cancels:
            cancel()
        await self._tasks.stop()
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self._available.delete()
        except (QuireError, TimeoutError) as error:
            log.warning("the registration stays until its session ends: %s", str(error) or "no answer")

    def leave(self) -> None:
        """Ask to be drained until this process ends; `is_retired` turns true when it was."""
        self._is_leaving = True
        self._mark()
        self._changed.set()

    # -- before it is seen -------------------------------------------------------------------------------
    async def _wait_for_address(self) -> None:
        """Raises `ConfigurationError` when another bookie still holds the address after its session's time-out.

        A long replay may have cost our own session: then a new one is waited for, as long. Raises `Unavailable`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._store.session_timeout_ms / 1000 + _ADDRESS_GRACE_S
        while True:
            try:
                other = await self._holder_of_address()
            except Unavailable:
                if loop.time() >= deadline:
                    raise
            else:
                if other is None:
                    return
                if loop.time() >= deadline:
                    raise ConfigurationError(
                        f"bookie {other} is up and advertises {self._address} already; give each bookie an address "
                        "of its own with --advertise"
                    )
            await asyncio.sleep(_ADDRESS_LOOK_S)

    async def _holder_of_address(self) -> str | None:
        for uuid in await self._store.children(paths.BOOKIES_AVAILABLE):
            path = paths.bookie_available(uuid)
            try:
                record = decode(BookieRecord, (await self._store.get(path)).value, path)
            except (NotFound, CorruptionError):
                continue
            if record.address == self._address and uuid != self._storage.bookie_id.uuid:
                return uuid
        return None

    async def _tell_identity(self) -> None:
        record = self._describe()
        try:
            node = await self._store.get(self._identity_path)
        except NotFound:
            if self._storage.ledger_ids() and not await self._is_rescued():
                raise ConfigurationError(
                    f"bookie {record.uuid} holds ledgers, but this metadata store does not know it: it was retired "
                    "while it was down (start with empty directories), or --metadata names another store or chroot"
                ) from None
            await self._create_identity(replace(record, intent=after(None, BookieEvent.REGISTERED)))
            return
        before = decode(BookieRecord, node.value, self._identity_path)
        self._obey(after(before.intent, BookieEvent.REGISTERED))
        change = Put(self._identity_path, encode(replace(record, intent=self._intent)), node.version)
        # Repair would take a bookie that was once given up for lost at its next restart, if it did not hear of this.
        await change_and_touch(self._store, change, paths.UNDERREPLICATED)

    async def _is_rescued(self) -> bool:
        """Whether the cluster's metadata is being rebuilt, from what its bookies hold."""
        try:
            record = await read_cluster(self._store)
        except NotFound:
            return False
        return record.rescue_begun_ms > 0 and record.uuid == self._cluster

    async def _create_identity(self, record: BookieRecord) -> None:
        try:
            await self._store.create(self._identity_path, encode(record))
        except AlreadyExists:
            await self._store.put(self._identity_path, encode(record), ANY_VERSION)

    # -- while it is seen --------------------------------------------------------------------------------
    def _describe(self) -> BookieRecord:
        intent = BookieIntent.DRAIN if self._is_leaving else self._intent
        record = self._about()
        step_bytes = max(1, min(_FREE_STEP_BYTES, record.total_bytes // 64))
        return replace(record, intent=intent, free_bytes=record.free_bytes // step_bytes * step_bytes)

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.LOST:
            self._available.forget()
        if event is not SessionEvent.SUSPENDED:
            self._intent_is_old = True
            self._changed.set()

    def _on_identity(self, _path: str) -> None:
        self._intent_is_old = True
        self._changed.set()

    def _on_available(self, _path: str) -> None:
        self._available.is_as_told = False
        self._changed.set()

    async def _follow(self) -> None:
        wait_s = _REFRESH_S
        while not self.is_retired:
            try:
                async with asyncio.timeout(wait_s):  # `wait_for` may swallow a cancellation
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                await self._renew()
                wait_s = _REFRESH_S
            except QuireError as error:
                log.warning("cannot renew the registration, trying again: %s", error)
                wait_s = _RETRY_S

    async def _renew(self) -> None:
        if self._intent_is_old:
            await self._look_at_intent()
        if not self._available.is_as_told:
            await self._available.look()
        if not self.is_retired:
            await self._available.tell(self._describe())

    async def _look_at_intent(self) -> None:
        self._intent_is_old = False
        try:
            value = (await self._store.get(self._identity_path)).value
        except NotFound:
            await self._retire()
            return
        except QuireError:
            self._intent_is_old = True
            raise
        self._obey(decode(BookieRecord, value, self._identity_path).intent)

    def _obey(self, intent: BookieIntent) -> None:
        if intent is not self._intent:
            log.warning("an operator wants of this bookie: %s", intent or "to stay")
        self._intent = intent
        self._mark()

    def _mark(self) -> None:
        drains = self._is_leaving or self._intent is BookieIntent.DRAIN
        self._storage.identity.leave(drains)
        self._storage.health.set_read_only(drains)

    async def _retire(self) -> None:
        log.warning("bookie %s is retired: all it held lies elsewhere; stop it", self._storage.bookie_id)
        self._storage.health.set_read_only(True)
        await self._available.delete()
        self.is_retired = True


class _EphemeralRecord:
    """What others read of a bookie while it is up: a node that goes with the store's session."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self.path = path
        self.is_as_told = True
        """False when somebody changed what others read: a deletion of our own, made late, takes the new node away."""
        self._store = store
        self._told: BookieRecord | None = None
        self._is_in_doubt = False
        """What the store did not answer may be written all the same, so `_told` is not what others read."""

    def forget(self) -> None:
        """The node is gone: the next `tell` makes it again."""
        self._told = None

    async def look(self) -> None:
        """Find out whether it is still there."""
        self.is_as_told = True
        try:
            await self._store.get(self.path)
        except NotFound:
            self.forget()
        except QuireError:
            self.is_as_told = False
            raise

    async def tell(self, record: BookieRecord) -> None:
        """Have others read `record`."""
        if self._told == record and not self._is_in_doubt:
            return
        self._is_in_doubt = True
        if self._told is None:  # what is there was left by a session before ours, and would die with it
            await self.delete()
            await self._store.create(self.path, encode(record), ephemeral=True)
        else:
            try:
                await self._store.put(self.path, encode(record), ANY_VERSION)
            except NotFound:
                self.forget()
                raise
        self._told, self._is_in_doubt = record, False

    async def delete(self) -> None:
        try:
            await self._store.delete(self.path)
        except NotFound:
            pass
