"""Tenants and namespaces: the records, and a cache that a topic may ask on every load.

Records change by version only. The cache is filled by reading and emptied by a watch, so another broker's change is
seen without polling. `get` of a namespace that was seen costs no I/O.

A topic is made in a transaction with the version of its namespace's record (`while_there`), and a namespace is marked
before it is deleted: so it has no topics then, and gets none. What is kept for its topics and bundles goes before the
record; a deletion that was interrupted goes on when it is asked for again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.records import NamespaceRecord, Policies, StateLogRecord, TenantRecord, decode, encode
from quire.metadata.store import CHANGE_ATTEMPTS, Check, MetadataStore, NotEmpty, Put, Step
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound, TooMany, VersionConflict
from quire.security.configuration import Limits

DOMAINS: Final = ("persistent", "non-persistent")

_NAME = re.compile(r"[-=:.\w]{1,128}")
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"


class Namespaces:
    """Tenants and namespaces of one cluster.

    `cluster` is the name that new tenants are allowed in, `boundaries` those of a new namespace's bundles;
    `delete_ledger` deletes one of a state log.
    """

    def __init__(
        self,
        store: MetadataStore,
        cluster: str,
        boundaries: tuple[str, ...],
        delete_ledger: Callable[[int], Awaitable[None]],
        limits: Limits = Limits(),  # noqa: B008  frozen
    ) -> None:
        self._store = store
        self._limits = limits
        self._creating = asyncio.Lock()
        self._delete_ledger = delete_ledger
        self._cluster = cluster
        self._boundaries = boundaries
        self._cache: dict[str, tuple[NamespaceRecord, int]] = {}
        """With the versions of their nodes."""
        self._admins: dict[str, tuple[str, ...]] = {}
        """Admin roles, by tenants."""
        self._watched: set[str] = set()
        self._changes = 0
        self._listeners: list[Callable[[str, str], None]] = []

    def on_change(self, listener: Callable[[str, str], None]) -> None:
        """Call `listener(tenant, namespace)` after each change of a namespace that was asked for before.

        And `listener(tenant, "")` after one of a tenant's admin roles.
        """
        self._listeners.append(listener)

    async def ensure_defaults(self) -> None:
        """Make `public/default` where it is not there yet; a cluster that has as many as it may goes without."""
        with suppress(AlreadyExists, TooMany):
            await self.create_tenant(DEFAULT_TENANT)
        with suppress(AlreadyExists, TooMany, NotFound):
            await self.create(DEFAULT_TENANT, DEFAULT_NAMESPACE)

    # -- tenants ---------------------------------------------------------------------------------------

    async def tenants(self) -> list[str]:
        return [paths.decode(name) for name in await self._store.children(paths.TENANTS)]

    async def tenant(self, name: str) -> TenantRecord:
        """Raises `NotFound`."""
        path = paths.tenant(name)
        with _called(f"tenant {name}"):
            node = await self._store.get(path)
        return decode(TenantRecord, node.value, path)

    async def admins(self, tenant: str) -> tuple[str, ...]:
        """The tenant's admin roles, as last told by a watch. Raises `NotFound`."""
        known = self._admins.get(tenant)
        if known is not None:
            return known
        path = paths.tenant(tenant)
        if path not in self._watched:
            await self.tenant(tenant)  # one that is not there is not watched: anybody can name any number
            self._store.watch(path, lambda _: self._drop(tenant, ""))
            self._watched.add(path)
        changes = self._changes
        found = (await self.tenant(tenant)).admin_roles
        if changes == self._changes:
            self._admins[tenant] = found
        return found

    async def create_tenant(self, name: str, record: TenantRecord | None = None) -> None:
        """Raises `AlreadyExists`, `TooMany`, and `ConfigurationError` for a name that is none."""
        _check_name("tenant", name)
        record = record or TenantRecord(name=name, allowed_clusters=(self._cluster,))
        async with self._creating:
            await self._check_number("tenants", self._limits.tenants, "this cluster", paths.tenant(name))
            with _called(f"tenant {name}"):
                await self._store.create(paths.tenant(name), encode(record))

    async def update_tenant(self, name: str, record: TenantRecord) -> None:
        with _called(f"tenant {name}"):
            node = await self._store.get(paths.tenant(name))
            await self._store.put(paths.tenant(name), encode(record), node.version)
        self._drop(name, "")

    async def delete_tenant(self, name: str) -> None:
        """Raises `NotFound`, and `NotEmpty` while it has namespaces."""
        if await self.list(name):
            raise NotEmpty(f"tenant {name} still has namespaces; delete them first")
        with _called(f"tenant {name}"):
            await self._store.delete(paths.tenant(name))
        self._drop(name, "")

    # -- namespaces ------------------------------------------------------------------------------------

    async def list(self, tenant: str) -> list[str]:
        """The tenant's namespaces, as `tenant/namespace`. Raises `NotFound` when there is no such tenant."""
        await self.tenant(tenant)
        names = await self._store.children(paths.namespaces_of(tenant))
        return [f"{tenant}/{paths.decode(name)}" for name in names]

    async def get(self, tenant: str, name: str) -> NamespaceRecord:
        """Raises `NotFound`, also for one that is being deleted."""
        return (await self._find(tenant, name))[0]

    async def get_unless_strange(self, tenant: str, name: str) -> NamespaceRecord:
        """As `get`, for names that anybody may choose: one that is not there is not watched."""
        if paths.namespace(tenant, name) not in self._watched:
            await self._read(tenant, name)
        return await self.get(tenant, name)

    async def while_there(self, tenant: str, name: str) -> Step:
        """What a transaction begins with that makes something in the namespace. Raises as `get`.

        A `VersionConflict` means that others changed it: `refresh` and try again.
        """
        return Check(paths.namespace(tenant, name), (await self._find(tenant, name))[1])

    async def _find(self, tenant: str, name: str) -> tuple[NamespaceRecord, int]:
        cached = self._cache.get(f"{tenant}/{name}")
        if cached is not None:
            return cached
        path = paths.namespace(tenant, name)
        if path not in self._watched:
            self._store.watch(path, lambda _: self._drop(tenant, name))
            self._watched.add(path)
        changes = self._changes
        found = await self._read(tenant, name)
        if found[0].deleting:
            raise NotFound(
                f"namespace {tenant}/{name} is being deleted; if that was cut short, delete it again"
            )
        if changes == self._changes:  # else what was read may be older than the change
            self._cache[f"{tenant}/{name}"] = found
        return found

    async def _read(self, tenant: str, name: str) -> tuple[NamespaceRecord, int]:
        path = paths.namespace(tenant, name)
        with _called(f"namespace {tenant}/{name}"):
            node = await self._store.get(path)
        return decode(NamespaceRecord, node.value, path), node.version

    async def refresh(self, tenant: str, name: str) -> None:
        """Read it now, whether or not a watch has told of a change. Raises `NotFound`."""
        self._cache.pop(f"{tenant}/{name}", None)
        await self.get(tenant, name)

    def _drop(self, tenant: str, name: str) -> None:
        self._changes += 1
        self._cache.pop(f"{tenant}/{name}", None)
        if not name:
            self._admins.pop(tenant, None)
        for listener in self._listeners:
            listener(tenant, name)

    async def create(
        self,
        tenant: str,
        name: str,
        policies: Policies | None = None,
        boundaries: tuple[str, ...] | None = None,
    ) -> None:
        """Raises `AlreadyExists`, `TooMany`, `NotFound` for an unknown tenant, `ConfigurationError` for a bad name."""
        _check_name("namespace", name)
        await self.tenant(tenant)
        record = NamespaceRecord(
            tenant=tenant,
            name=name,
            policies=policies or Policies(),
            boundaries=boundaries or self._boundaries,
        )
        most, path = self._limits.namespaces_per_tenant, paths.namespace(tenant, name)
        async with self._creating:
            await self._check_number("namespaces_per_tenant", most, f"tenant {tenant}", path)
            with _called(f"namespace {tenant}/{name}"):
                await self._store.create(path, encode(record))

    async def _check_number(self, limit: str, most: int, of: str, path: str) -> None:
        """There is room for `path` beside the others, or it is there. Raises `TooMany`."""
        folder, _, name = path.rpartition("/")
        there = await self._store.children(folder) if most else ()
        if most and len(there) >= most and name not in there:
            what = limit.partition("_")[0]
            raise TooMany(
                limit,
                f"{of} has {most} {what}, and takes no more: delete some, or raise {limit} under [limits]",
            )

    async def delete(self, tenant: str, name: str) -> None:
        """Raises `NotFound`, `NotEmpty` while it has topics, and what deleting a ledger raises: delete it again."""
        while True:
            record, version = await self._read(tenant, name)
            if await self._has_topics(tenant, name):
                if record.deleting:
                    await self._put(replace(record, deleting=False), version)
                raise NotEmpty(f"namespace {tenant}/{name} still has topics; delete them first")
            if record.deleting:
                break
            await self._put(replace(record, deleting=True), version)
        for folder in (paths.policies_of(tenant, name), *paths.schema_folders(tenant, name)):
            for child in await self._store.children(folder):
                await _unless_gone(self._store.delete(f"{folder}/{child}"))
        await self._delete_state_logs(paths.state_logs_of(tenant, name))
        with _called(f"namespace {tenant}/{name}"):
            await self._store.delete(paths.namespace(tenant, name), version)
        self._drop(tenant, name)

    async def _has_topics(self, tenant: str, name: str) -> bool:
        folders = [paths.topics_of(tenant, name, domain) for domain in DOMAINS]
        return any([await self._store.children(folder) for folder in folders])

    async def _delete_state_logs(self, folder: str) -> None:
        """Of the bundles: no topic needs its cursors any more."""
        for child in await self._store.children(folder):
            path = f"{folder}/{child}"
            try:
                node = await self._store.get(path)
            except NotFound:
                continue
            for ledger_id in decode(StateLogRecord, node.value, path).ledgers:
                await _unless_gone(self._delete_ledger(ledger_id))
            await _unless_gone(self._store.delete(path))

    async def split(self, tenant: str, name: str, low: str, at: str, high: str) -> Step:
        """What splits the bundle `low_high`, for a transaction; whoever did it has to `refresh`.

        Raises `NotFound` when there is no such bundle, or it was split meanwhile.
        """
        record, version = await self._read(tenant, name)
        if record.deleting or (low, high) not in pairwise(record.boundaries):
            raise NotFound(f"namespace {tenant}/{name} has no bundle {low}_{high}")
        assert low < at < high
        boundaries = tuple(sorted((*record.boundaries, at)))
        return Put(paths.namespace(tenant, name), encode(replace(record, boundaries=boundaries)), version)

    async def _put(self, record: NamespaceRecord, version: int) -> None:
        await self._store.put(paths.namespace(record.tenant, record.name), encode(record), version)
        self._drop(record.tenant, record.name)

    async def change(self, tenant: str, name: str, change: Callable[[Policies], Policies]) -> None:
        """Replace the policies by what `change` makes of them. Raises `NotFound`, `VersionConflict`."""
        for attempt in range(1, CHANGE_ATTEMPTS + 1):
            record, version = await self._read(tenant, name)
            try:
                await self._put(replace(record, policies=change(record.policies)), version)
            except VersionConflict:
                if attempt == CHANGE_ATTEMPTS:
                    raise
            else:
                return


async def _unless_gone(deletion: Awaitable[None]) -> None:
    with suppress(NotFound):
        await deletion


@contextmanager
def _called(what: str) -> Iterator[None]:
    """Errors speak of `what` the user named, not of the node it is kept in."""
    try:
        yield
    except NotFound:
        raise NotFound(f"there is no {what}") from None
    except AlreadyExists:
        raise AlreadyExists(f"{what} exists already") from None


def _check_name(what: str, name: str) -> None:
    """Raise `ConfigurationError` unless `name` may be a tenant's or a namespace's name."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot be the name of a {what}: letters, digits and -=:._ only")
