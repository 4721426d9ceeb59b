"""Tenants and namespaces: the records, and a cache that every load of a topic may use.

Records are changed by compare-and-set only. Reads fill the cache and watches invalidate it, so another broker's change
is seen without polling. `get` of a cached namespace needs no I/O.

A topic is created in a transaction with a check of its namespace's version (`while_there`), and a namespace is marked
before its deletion. So a namespace that remains marked has no topics, and no topic can be created in it. The records of
its topics' policies and schemas and of its bundles are deleted before its own; a repeated request continues an
interrupted deletion.
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
from quire.serving.names import refuse_dots

DOMAINS: Final = ("persistent", "non-persistent")

_NAME = re.compile(r"[-=:.\w]{1,128}")
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"


class Namespaces:
    """Tenants and namespaces of one cluster.

    `cluster` is the allowed cluster of new tenants, `boundaries` the bundle boundaries of new namespaces;
    `delete_ledger` deletes a ledger of a state log.
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
        """Records of namespaces and the versions of their nodes, by `tenant/namespace`."""
        self._admins: dict[str, tuple[str, ...]] = {}
        """Admin roles by tenant."""
        self._watched: set[str] = set()
        self._changes = 0
        self._listeners: list[Callable[[str, str], None]] = []

    def on_change(self, listener: Callable[[str, str], None]) -> None:
        """Call `listener(tenant, namespace)` after each change of a namespace that was read before.

        After a change of a tenant's admin roles, call `listener(tenant, "")`.
        """
        self._listeners.append(listener)

    async def ensure_defaults(self) -> None:
        """Create `public/default` if it does not exist; do nothing if the limit of tenants or namespaces is reached."""
        with suppress(AlreadyExists, TooMany):
            await self.create_tenant(DEFAULT_TENANT)
        with suppress(AlreadyExists, TooMany, NotFound):
            await self.create(DEFAULT_TENANT, DEFAULT_NAMESPACE)

    # -- tenants ---------------------------------------------------------------------------------------

    async def tenants(self) -> list[str]:
        return [paths.decode(name) for name in await self._store.children(paths.TENANTS)]

    async def tenant(self, name: str) -> TenantRecord:
        """Return the record of a tenant. Raises `NotFound`."""
        path = paths.tenant(name)
        with _called(f"tenant {name}"):
            node = await self._store.get(path)
        return decode(TenantRecord, node.value, path)

    async def admins(self, tenant: str) -> tuple[str, ...]:
        """Return the tenant's admin roles, cached until a watch fires. Raises `NotFound`."""
        known = self._admins.get(tenant)
        if known is not None:
            return known
        path = paths.tenant(tenant)
        if path not in self._watched:
            await self.tenant(
                tenant
            )  # a missing tenant is not watched, because clients can send any number of names
            self._store.watch(path, lambda _: self._drop(tenant, ""))
            self._watched.add(path)
        changes = self._changes
        found = (await self.tenant(tenant)).admin_roles
        if changes == self._changes:
            self._admins[tenant] = found
        return found

    async def create_tenant(self, name: str, record: TenantRecord | None = None) -> None:
        """Create a tenant. Raises `AlreadyExists`, `TooMany`, and `ConfigurationError` for an invalid name."""
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
        """Delete a tenant. Raises `NotFound`, and `NotEmpty` if it has namespaces."""
        if await self.list(name):
            raise NotEmpty(f"tenant {name} still has namespaces; delete them first")
        with _called(f"tenant {name}"):
            await self._store.delete(paths.tenant(name))
        self._drop(name, "")

    # -- namespaces ------------------------------------------------------------------------------------

    async def list(self, tenant: str) -> list[str]:
        """List the tenant's namespaces, as `tenant/namespace`. Raises `NotFound` for an unknown tenant."""
        await self.tenant(tenant)
        names = await self._store.children(paths.namespaces_of(tenant))
        return [f"{tenant}/{paths.decode(name)}" for name in names]

    async def get(self, tenant: str, name: str) -> NamespaceRecord:
        """Return the record of a namespace. Raises `NotFound`, also during its deletion."""
        return (await self._find(tenant, name))[0]

    async def get_unless_strange(self, tenant: str, name: str) -> NamespaceRecord:
        """Return the record of a namespace as `get` does, for untrusted names: a missing one is not watched."""
        if paths.namespace(tenant, name) not in self._watched:
            await self._read(tenant, name)
        return await self.get(tenant, name)

    async def while_there(self, tenant: str, name: str) -> Step:
        """Return a check for a transaction that creates an object in the namespace. Raises the errors of `get`.

        If the transaction raises `VersionConflict`, another broker changed the namespace: call `refresh` and retry.
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
                f"namespace {tenant}/{name} is being deleted; if the deletion was interrupted, delete it again"
            )
        if changes == self._changes:  # otherwise the result may be older than the change
            self._cache[f"{tenant}/{name}"] = found
        return found

    async def _read(self, tenant: str, name: str) -> tuple[NamespaceRecord, int]:
        path = paths.namespace(tenant, name)
        with _called(f"namespace {tenant}/{name}"):
            node = await self._store.get(path)
        return decode(NamespaceRecord, node.value, path), node.version

    async def refresh(self, tenant: str, name: str) -> None:
        """Read the namespace again, even if no watch has fired. Raises `NotFound`."""
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
        """Create a namespace. Raises `AlreadyExists`, `TooMany`, `NotFound` (tenant), `ConfigurationError` (name)."""
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
        """Check that `path` exists or may be added. Raises `TooMany`."""
        folder, _, name = path.rpartition("/")
        there = await self._store.children(folder) if most else ()
        if most and len(there) >= most and name not in there:
            what = limit.partition("_")[0]
            raise TooMany(
                limit,
                f"{of} has {most} {what}, which is the limit: delete some, or raise {limit} under [limits]",
            )

    async def delete(self, tenant: str, name: str) -> None:
        """Delete a namespace. Raises `NotFound`, `NotEmpty` if it has topics, and errors of deleting a ledger.

        After an error, the caller should delete it again.
        """
        while True:
            record, version = await self._read(tenant, name)
            if await self._has_topics(tenant, name):
                if record.deleting:
                    await self._put(replace(record, deleting=False), version)
                raise NotEmpty(f"namespace {tenant}/{name} still has topics; delete them first")
            if record.deleting:
                break
            await self._put(replace(record, deleting=True), version)
        for domain in DOMAINS:
            policies, schemas = (
                paths.policies_of(tenant, name, domain),
                paths.schema_folders(tenant, name, domain),
            )
            for folder in (policies, *schemas):
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
        """Delete the bundles' state logs, whose cursors no topic needs any more."""
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
        """Return the operation that splits the bundle `low_high`; call `refresh` after the transaction.

        Raises `NotFound` if the bundle does not exist or was split.
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
        """Replace the policies by the result of `change`. Raises `NotFound`, `VersionConflict`."""
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
    """Map errors of the store to errors that name the object (`what`) and begin with Pulsar's words."""
    try:
        yield
    except NotFound:
        kind = what.partition(" ")[0].capitalize()
        raise NotFound(f"{kind} does not exist: there is no {what}") from None
    except AlreadyExists:
        raise AlreadyExists(f"{what} already exists") from None


def _check_name(what: str, name: str) -> None:
    """Raise `ConfigurationError` unless `name` is a valid name of a tenant or namespace."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a valid name of a {what}: use only letters, digits and -=:._"
        )
    refuse_dots(what, name)
