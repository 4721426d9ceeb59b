"""Registration of a bookie: a persistent record of its identity, and an ephemeral one while it runs.

Writers choose bookies from the ephemeral records, which contain address, rack, free space, and whether the bookie
accepts new blocks. The ephemeral record is written again when these change, and created again after the store's session
was lost. The bookie serves requests meanwhile.

The persistent record exists whether the bookie runs or not, and contains the operator's intent (`BookieIntent`). A
draining bookie is read-only, so writers replace it. When repair has copied all its data, a *retirement* record replaces
its persistent record. Then the bookie removes its ephemeral record, and waits until it is stopped. If neither the
persistent nor the retirement record exists, the store is a wrong, empty or older one, and the bookie changes nothing.
If a bookie drains because it was asked to stop (`leave`), only the ephemeral record contains this intent, so the intent
ends with the process.

A start is refused

- if another running bookie advertises the same address (a dead bookie occupies it until its session ends),
- if the bookie has ledgers, but no record in the store: it was retired, or the store is a wrong or an older one.
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
from quire.metadata.cluster import confirm_cluster, read_cluster
from quire.metadata.notify import change_and_touch
from quire.metadata.records import BookieIntent, BookieRecord, decode, encode
from quire.metadata.retirement import is_retired
from quire.metadata.store import ANY_VERSION, MetadataStore, Put, SessionEvent
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    CorruptionError,
    NotFound,
    QuireError,
    Unavailable,
    WrongCluster,
)
from quire.runtime.limits import GIB
from quire.runtime.tasks import Tasks

log = logging.getLogger(__name__)

_REFRESH_S: Final = 5.0
_RETRY_S: Final = 1.0
_GOODBYE_S: Final = 1.0
_ADDRESS_LOOK_S: Final = 0.25
_ADDRESS_GRACE_S: Final = 2.0
"""Time in seconds after the session time-out for which the bookie waits for the address of a dead bookie."""

_FREE_STEP_BYTES: Final = 1 * GIB
"""Granularity in bytes of the recorded free space, so that small changes cause no write; at most a 64th of the disk."""


def describe(storage: Storage, address: str = "", rack: str = "", http_url: str = "") -> BookieRecord:
    """Return the bookie's current record."""
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
    """Persistent and ephemeral record of a bookie, kept up to date between `start` and `stop`."""

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
        """Prepare a registration.

        `cluster` is the store's cluster id; `start` records it in the bookie's directories after the registration.
        """
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
        """Register the bookie. Raises `ConfigurationError` (see the module), and the store's errors."""
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
        # Before the watch existed, the coordinator may have retired the bookie, because the previous process drained.
        self._on_identity(self._identity_path)
        self._tasks.start(self._follow(), "keep the registration up to date")

    async def stop(self) -> None:
        """Remove the ephemeral record at once, instead of at the end of the session."""
        for cancel in self._cancels:
            cancel()
        await self._tasks.stop()
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self._available.delete()
        except (QuireError, TimeoutError) as error:
            log.warning(
                "cannot remove the registration, it ends with its session: %s", str(error) or "no answer"
            )

    def leave(self) -> None:
        """Request a drain of this bookie. The request ends with the process; a complete drain sets `is_retired`."""
        self._is_leaving = True
        self._mark()
        self._changed.set()

    # -- before the registration -------------------------------------------------------------------------
    async def _wait_for_address(self) -> None:
        """Wait until no other running bookie has the address.

        The session may have expired during a long replay, so also wait for a new one. Raises `ConfigurationError` if
        another bookie still has the address after the session time-out, and `Unavailable` if this process has no
        session by then.
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
                        f"running bookie {other} already advertises {self._address}: give each bookie its own address "
                        "with --advertise"
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
                raise ConfigurationError(await self._why_unknown()) from None
            await self._create_identity(replace(record, intent=after(None, BookieEvent.REGISTERED)))
            return
        before = decode(BookieRecord, node.value, self._identity_path)
        self._obey(after(before.intent, BookieEvent.REGISTERED))
        change = Put(self._identity_path, encode(replace(record, intent=self._intent)), node.version)
        # Repair must see that a given-up bookie is back. Otherwise, the bookie would count as lost at its next restart.
        await change_and_touch(self._store, change, paths.UNDERREPLICATED)

    async def _why_unknown(self) -> str:
        """Return why a bookie with ledgers has no record in the store, and what to do."""
        uuid = self._storage.bookie_id.uuid
        if await is_retired(self._store, uuid):
            return (
                f"bookie {uuid} has ledgers, but was retired while it was down, after all were copied to other "
                "bookies: start with empty directories"
            )
        return (
            f"bookie {uuid} has ledgers, but this metadata store has no record of it or of its retirement: "
            "--metadata names another store or chroot, or an older copy was restored; keep its data, which may be the "
            "only copies, and see `quire rescue metadata`"
        )

    async def _is_rescued(self) -> bool:
        """Return whether the cluster's metadata are being rebuilt from its bookies."""
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

    # -- while it is registered --------------------------------------------------------------------------
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
        wait_s, told = _REFRESH_S, ""
        while not self.is_retired:
            try:
                async with asyncio.timeout(wait_s):  # `wait_for` may swallow a cancellation
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                await self._renew()
                wait_s, told = _REFRESH_S, ""
            except QuireError as error:
                if str(error) != told:
                    log.warning("cannot update the registration, trying again: %s", error)
                wait_s, told = _RETRY_S, str(error)

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
            await self._look_why_unknown()
            return
        except QuireError:
            self._intent_is_old = True
            raise
        self._obey(decode(BookieRecord, value, self._identity_path).intent)

    async def _look_why_unknown(self) -> None:
        """Handle a missing persistent record: retire if there is a retirement record, else raise `WrongCluster`.

        While the cluster's metadata are being rebuilt, create the record again instead.
        """
        self._intent_is_old = True
        if await self._is_rescued():
            await self._tell_identity()
        else:
            if self._cluster:
                await confirm_cluster(self._store, self._cluster)
            if not await is_retired(self._store, self._storage.bookie_id.uuid):
                raise WrongCluster(await self._why_unknown())
            await self._retire()
        self._intent_is_old = False

    def _obey(self, intent: BookieIntent) -> None:
        if intent is not self._intent:
            log.warning("an operator changed the intent for this bookie to: %s", intent or "stay")
        self._intent = intent
        self._mark()

    def _mark(self) -> None:
        drains = self._is_leaving or self._intent is BookieIntent.DRAIN
        self._storage.identity.leave(drains)
        self._storage.health.set_read_only(drains)

    async def _retire(self) -> None:
        log.warning(
            "bookie %s is retired: its data were copied to other bookies; stop it", self._storage.bookie_id
        )
        self._storage.health.set_read_only(True)
        await self._available.delete()
        self.is_retired = True


class _EphemeralRecord:
    """Ephemeral record of a running bookie, which ends with the store's session."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self.path = path
        self.is_as_told = True
        """False if the node may differ from the last written record (`_told`), because a watch reported a change.

        For example, a deletion by this process's last session may be executed late, and remove the new node.
        """
        self._store = store
        self._told: BookieRecord | None = None
        self._is_in_doubt = False
        """Set while a write has an unknown outcome, so that the node may differ from `_told`."""

    def forget(self) -> None:
        """Record that the node does not exist, so that the next `tell` creates it again."""
        self._told = None

    async def look(self) -> None:
        """Check whether the node exists; if not, the next `tell` creates it again."""
        self.is_as_told = True
        try:
            await self._store.get(self.path)
        except NotFound:
            self.forget()
        except QuireError:
            self.is_as_told = False
            raise

    async def tell(self, record: BookieRecord) -> None:
        """Write `record` to the node, unless the node has it already."""
        if self._told == record and not self._is_in_doubt:
            return
        self._is_in_doubt = True
        if self._told is None:  # an existing node belongs to an earlier session, and would end with it
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
