"""Current policies of every topic of this broker.

A topic's own policies are in a record separate from its segment list, so that any broker may change them without
conflicting with the owner, which alone changes that list. Partitions have the policies of their parent's record. A
non-persistent topic and a persistent one of the same name have separate records, in separate folders.

The folder of a namespace is read once, when its first topic is loaded, and kept current by watches. So policies are
known without a request, and ten thousand topics without own policies cost one read. A malformed record is an error for
its topic only. It is never treated as absent, because retention would then delete messages by the default policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.metadata import paths, topics
from quire.metadata.followed import Followed
from quire.metadata.records import Policies, decode, encode
from quire.metadata.store import CHANGE_ATTEMPTS, Create, Delete, MetadataStore, Put, Step
from quire.runtime.errors import AlreadyExists, NotFound, Unavailable, VersionConflict
from quire.runtime.tasks import Tasks
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.policy.resolved import NO_POLICIES, TopicPolicies, resolve

Changed = Callable[[str, str], None]


class TopicPoliciesService:
    """Policies of the topics of one broker. `default` is derived from the broker's settings."""

    def __init__(
        self,
        store: MetadataStore,
        namespaces: Namespaces,
        tasks: Tasks,
        default: TopicPolicies,
    ) -> None:
        self._store = store
        self._namespaces = namespaces
        self._tasks = tasks
        self._default = default
        self._listeners: list[Changed] = []
        self._of_namespaces: dict[tuple[str, str], tuple[Policies, TopicPolicies]] = {}
        """For each namespace, its own policies and the effective ones of topics without own policies (one object)."""
        self._folders: dict[tuple[str, str, str], asyncio.Future[Followed[Policies]]] = {}
        """Watched folders by tenant, namespace and domain."""

    def set_default(self, default: TopicPolicies) -> None:
        """Replace the broker's defaults; the caller then applies them to loaded topics."""
        self._default = default
        self._of_namespaces.clear()

    def on_change(self, listener: Changed) -> None:
        """Call `listener(tenant, namespace)` when the policies of topics of the namespace may have changed."""
        self._listeners.append(listener)
        self._namespaces.on_change(listener)

    def _changed(self, tenant: str, namespace: str) -> None:
        for listener in self._listeners:
            listener(tenant, namespace)

    async def of(self, name: TopicName) -> TopicPolicies:
        """Return a topic's effective policies.

        Raises `NotFound` for an unknown namespace, `CorruptionError`, `Unavailable`.
        """
        followed = await self._follow(name)
        prescribed = (await self._namespaces.get(name.tenant, name.namespace)).policies
        own = followed.get(
            _holder(name), NO_POLICIES
        )  # read after the last `await`, so that both are consistent
        if own is not NO_POLICIES:
            return resolve(self._default, prescribed, own)
        return self._without_own(name.tenant, name.namespace, prescribed)

    async def of_namespace(self, tenant: str, namespace: str) -> TopicPolicies:
        """Return the effective policies of topics without own policies. Raises the errors of `of`."""
        prescribed = (await self._namespaces.get(tenant, namespace)).policies
        return self._without_own(tenant, namespace, prescribed)

    def _without_own(self, tenant: str, namespace: str, prescribed: Policies) -> TopicPolicies:
        key = (tenant, namespace)
        made = self._of_namespaces.get(key)
        if made is None or made[0] is not prescribed:
            made = self._of_namespaces[key] = prescribed, resolve(self._default, prescribed)
        return made[1]

    async def own(self, name: TopicName) -> Policies:
        """Return the topic's own policies."""
        followed = await self._follow(name)
        return followed.get(_holder(name), NO_POLICIES)

    async def change(self, name: TopicName, change: Callable[[Policies], Policies]) -> None:
        """Replace the topic's own policies by the result of `change`.

        Raises `Unavailable` if the topic is being deleted, or if concurrent changes prevent this one.
        """
        followed = await self._follow(name)
        for _ in range(CHANGE_ATTEMPTS):
            steps = await topics.while_there(self._store, (name.parent or name).path)
            try:
                await self._store.transact([*steps, await self._changed_policies(name, change)])
            except (VersionConflict, AlreadyExists, NotFound):
                continue
            await followed.refresh(_holder(name))
            return
        raise Unavailable(f"the policies of {name} are being changed by other requests; try again")

    async def _changed_policies(self, name: TopicName, change: Callable[[Policies], Policies]) -> Step:
        path = _path(name)
        try:
            node = await self._store.get(path)
        except NotFound:
            return Create(path, encode(change(NO_POLICIES)))
        return Put(path, encode(change(decode(Policies, node.value, path))), node.version)

    async def refresh(self, tenant: str, namespace: str, name: TopicName | None = None) -> None:
        """Read the policies of the namespace and, if given, of the topic again, with all changes confirmed so far."""
        await self._store.sync()
        await self._namespaces.refresh(tenant, namespace)
        if name is not None:
            await (await self._follow(name)).refresh(_holder(name))

    async def forget(self, name: TopicName) -> None:
        """Delete the policies of a deleted topic, so that a later one of its name starts without own policies."""
        try:
            await self._store.delete(_path(name))
        except NotFound:
            return
        followed = await self._follow(name)
        followed.records.pop(_holder(name), None)

    async def removal(self, name: TopicName) -> list[Step]:
        """Return the operations that delete the topic's policies, for its deletion; call `refresh` afterwards."""
        try:
            return [Delete(_path(name), (await self._store.get(_path(name))).version)]
        except NotFound:
            return []

    async def _follow(self, name: TopicName) -> Followed[Policies]:
        """Return the watched folder with the topic's own policies, if it has any."""
        key = (name.tenant, name.namespace, name.domain)
        starting = self._folders.get(key)
        if starting is None:
            starting = self._folders[key] = asyncio.ensure_future(self._start(*key))
        try:
            return await asyncio.shield(starting)
        except BaseException:
            if starting.done() and self._folders.get(key) is starting:
                del self._folders[key]
            raise

    async def _start(self, tenant: str, namespace: str, domain: str) -> Followed[Policies]:
        folder = paths.policies_of(tenant, namespace, domain)
        followed = Followed(
            self._store, folder, Policies, self._tasks, lambda: self._changed(tenant, namespace)
        )
        await followed.start()
        return followed


def _holder(name: TopicName) -> str:
    """Return the local name of the topic whose record contains the policies: a partition's parent, or itself."""
    return (name.parent or name).local


def _path(name: TopicName) -> str:
    return paths.policies(name.tenant, name.namespace, _holder(name), name.domain)
