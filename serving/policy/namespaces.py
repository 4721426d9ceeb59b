"""Tenants and namespaces: the records, and a cache that a topic may ask on every load.

Records change by version only. The cache is filled by reading and emptied by a watch, so another broker's change is
seen without polling. `get` of a namespace that was seen costs no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.records import NamespaceRecord, Policies, TenantRecord, decode, encode
from quire.metadata.store import MetadataStore, NotEmpty
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound

_NAME = re.compile(r"[-=:.\w]{1,128}")
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"


class Namespaces:
    """Tenants and namespaces of one cluster.

    `cluster` is the name that new tenants are allowed in, `boundaries` those of a new namespace's bundles.
    """

    def __init__(
        self,
        store: MetadataStore,
        cluster: str = "standalone",
        boundaries: tuple[str, ...] = ("00000000", "ffffffff"),
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._boundaries = boundaries
        self._cache: dict[str, NamespaceRecord] = {}
        self._watched: set[str] = set()
        self._changes = 0
        self._listeners: list[Callable[[str, str], None]] = []

    def on_change(self, listener: Callable[[str, str], None]) -> None:
        """Call `listener(tenant, namespace)` after each change of a namespace that was asked for before."""
        self._listeners.append(listener)

    async def ensure_defaults(self) -> None:
        """Make `public/default` where it is not there yet."""
        try:
            await self.create_tenant(DEFAULT_TENANT)
        except AlreadyExists:
            pass
        try:
            await self.create(DEFAULT_TENANT, DEFAULT_NAMESPACE)
        except AlreadyExists:
            pass

    # -- tenants ---------------------------------------------------------------------------------------

    async def tenants(self) -> list[str]:
        return [paths.decode(name) for name in await self._store.children(paths.TENANTS)]

    async def tenant(self, name: str) -> TenantRecord:
        """Raises `NotFound`."""
        path = paths.tenant(name)
        with _called(f"tenant {name}"):
            node = await self._store.get(path)
        return decode(TenantRecord, node.value, path)

    async def create_tenant(self, name: str, record: TenantRecord | None = None) -> None:
        """Raises `AlreadyExists`, and `ConfigurationError` for a name that is none."""
        check_name("tenant", name)
        record = record or TenantRecord(name=name, allowed_clusters=(self._cluster,))
        with _called(f"tenant {name}"):
            await self._store.create(paths.tenant(name), encode(record))

    async def update_tenant(self, name: str, record: TenantRecord) -> None:
        with _called(f"tenant {name}"):
            node = await self._store.get(paths.tenant(name))
            await self._store.put(paths.tenant(name), encode(record), node.version)

    async def delete_tenant(self, name: str) -> None:
        """Raises `NotFound`, and `NotEmpty` while it has namespaces."""
        if await self.list(name):
            raise NotEmpty(f"tenant {name} still has namespaces; delete them first")
        with _called(f"tenant {name}"):
            await self._store.delete(paths.tenant(name))

    # -- namespaces ------------------------------------------------------------------------------------

    async def list(self, tenant: str) -> list[str]:
        """The tenant's namespaces, as `tenant/namespace`. Raises `NotFound` when there is no such tenant."""
        await self.tenant(tenant)
        names = await self._store.children(paths.namespaces_of(tenant))
        return [f"{tenant}/{paths.decode(name)}" for name in names]

    async def get(self, tenant: str, name: str) -> NamespaceRecord:
        """Raises `NotFound`."""
        cached = self._cache.get(f"{tenant}/{name}")
        if cached is not None:
            return cached
        path = paths.namespace(tenant, name)
        if path not in self._watched:
            self._store.watch(path, self._forget(tenant, name))
            self._watched.add(path)
        changes = self._changes
        with _called(f"namespace {tenant}/{name}"):
            node = await self._store.get(path)
        record = decode(NamespaceRecord, node.value, path)
        if changes == self._changes:  # else what was read may be older than the change
            self._cache[f"{tenant}/{name}"] = record
        return record

    async def refresh(self, tenant: str, name: str) -> None:
        """Read it now, whether or not a watch has told of a change. Raises `NotFound`."""
        self._cache.pop(f"{tenant}/{name}", None)
        await self.get(tenant, name)

    def _forget(self, tenant: str, name: str) -> Callable[[str], None]:
        def changed(_: str) -> None:
            self._drop(tenant, name)

        return changed

    def _drop(self, tenant: str, name: str) -> None:
        self._changes += 1
        self._cache.pop(f"{tenant}/{name}", None)
        for listener in self._listeners:
            listener(tenant, name)

    async def create(self, tenant: str, name: str, policies: Policies | None = None) -> None:
        """Raises `AlreadyExists`, `NotFound` for an unknown tenant, `ConfigurationError` for a bad name."""
        check_name("namespace", name)
        await self.tenant(tenant)
        record = NamespaceRecord(
            tenant=tenant, name=name, policies=policies or Policies(), boundaries=self._boundaries
        )
        with _called(f"namespace {tenant}/{name}"):
            await self._store.create(paths.namespace(tenant, name), encode(record))

    async def delete(self, tenant: str, name: str) -> None:
        """Raises `NotFound`, and `NotEmpty` while it has topics."""
        if await self._store.children(paths.topics_of(tenant, name)):
            raise NotEmpty(f"namespace {tenant}/{name} still has topics; delete them first")
        for folder in paths.schema_folders(tenant, name):  # those of topics that never were
            for child in await self._store.children(folder):
                await self._store.delete(f"{folder}/{child}")
        with _called(f"namespace {tenant}/{name}"):
            await self._store.delete(paths.namespace(tenant, name))
        self._drop(tenant, name)

    async def change(self, tenant: str, name: str, change: Callable[[Policies], Policies]) -> None:
        """Replace the policies by what `change` makes of them. Raises `NotFound`, `VersionConflict`."""
        path = paths.namespace(tenant, name)
        with _called(f"namespace {tenant}/{name}"):
            node = await self._store.get(path)
        record = decode(NamespaceRecord, node.value, path)
        record = replace(record, policies=change(record.policies))
        await self._store.put(path, encode(record), node.version)
        self._drop(tenant, name)


@contextmanager
def _called(what: str) -> Iterator[None]:
    """Errors speak of `what` the user named, not of the node it is kept in."""
    try:
        yield
    except NotFound:
        raise NotFound(f"there is no {what}") from None
    except AlreadyExists:
        raise AlreadyExists(f"{what} exists already") from None


def check_name(what: str, name: str) -> None:
    """Raise `ConfigurationError` unless `name` may be a tenant's or a namespace's name."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot be the name of a {what}: letters, digits and -=:._ only")
