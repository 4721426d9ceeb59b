"""The policies of every topic of this broker, as they are now.

A topic's own policies lie in a record of their own, beside its segment list: any broker may change them without
disturbing the owner, which alone changes that list. Those of a partitioned topic are its parent's and hold for all
partitions. The folder of a namespace is read once, when its first topic is loaded, and followed by watches; so what
holds for a topic is known without asking, and ten thousand topics without policies of their own cost one read. A record
that cannot be understood is an error for its topic alone, never taken for none: retention would delete by the default.
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
    """`default` is what the broker's settings say."""

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
        """What holds for topics without policies of their own, and what that was made of: one object for all."""
        self._folders: dict[tuple[str, str], asyncio.Future[Followed[Policies]]] = {}

    def on_change(self, listener: Changed) -> None:
        """Tell `listener(tenant, namespace)` that topics of the namespace may have got other policies."""
        self._listeners.append(listener)
        self._namespaces.on_change(listener)

    def _changed(self, tenant: str, namespace: str) -> None:
        for listener in self._listeners:
            listener(tenant, namespace)

    async def of(self, name: TopicName) -> TopicPolicies:
        """What holds for a topic. Raises `NotFound` for an unknown namespace, `CorruptionError`, `Unavailable`."""
        followed = await self._follow(name.tenant, name.namespace)
        prescribed = (await self._namespaces.get(name.tenant, name.namespace)).policies
        own = followed.get(_holder(name), NO_POLICIES)  # after the last wait: both are of one moment
        if own is not NO_POLICIES:
            return resolve(self._default, prescribed, own)
        return self._without_own(name.tenant, name.namespace, prescribed)

    async def of_namespace(self, tenant: str, namespace: str) -> TopicPolicies:
        """What holds for its topics without policies of their own. Raises as `of`."""
        prescribed = (await self._namespaces.get(tenant, namespace)).policies
        return self._without_own(tenant, namespace, prescribed)

    def _without_own(self, tenant: str, namespace: str, prescribed: Policies) -> TopicPolicies:
        key = (tenant, namespace)
        made = self._of_namespaces.get(key)
        if made is None or made[0] is not prescribed:
            made = self._of_namespaces[key] = prescribed, resolve(self._default, prescribed)
        return made[1]

    async def own(self, name: TopicName) -> Policies:
        """What the topic itself prescribes."""
        followed = await self._follow(name.tenant, name.namespace)
        return followed.get(_holder(name), NO_POLICIES)

    async def change(self, name: TopicName, change: Callable[[Policies], Policies]) -> None:
        """Replace the topic's own policies by what `change` makes of them.

        Raises `Unavailable` while the topic is being deleted, or when others change them all the time.
        """
        followed = await self._follow(name.tenant, name.namespace)
        for _ in range(CHANGE_ATTEMPTS):
            steps = await topics.while_there(self._store, (name.parent or name).path)
            try:
                await self._store.transact([*steps, await self._changed_policies(name, change)])
            except (VersionConflict, AlreadyExists, NotFound):
                continue
            await followed.refresh(_holder(name))
            return
        raise Unavailable(f"the policies of {name} are being changed by others; try again")

    async def _changed_policies(self, name: TopicName, change: Callable[[Policies], Policies]) -> Step:
        path = _path(name)
        try:
            node = await self._store.get(path)
        except NotFound:
            return Create(path, encode(change(NO_POLICIES)))
        return Put(path, encode(change(decode(Policies, node.value, path))), node.version)

    async def refresh(self, tenant: str, namespace: str, name: TopicName | None = None) -> None:
        """Know what anybody was told holds by now: for the namespace and, if it is given, the topic."""
        await self._store.sync()
        await self._namespaces.refresh(tenant, namespace)
        if name is not None:
            await (await self._follow(tenant, namespace)).refresh(_holder(name))

    async def forget(self, name: TopicName) -> None:
        """The topic is deleted: a later one of its name begins without policies of its own."""
        try:
            await self._store.delete(_path(name))
        except NotFound:
            return
        followed = await self._follow(name.tenant, name.namespace)
        followed.records.pop(_holder(name), None)

    async def removal(self, name: TopicName) -> list[Step]:
        """What a transaction that deletes the topic removes of its policies; `refresh` them afterwards."""
        try:
            return [Delete(_path(name), (await self._store.get(_path(name))).version)]
        except NotFound:
            return []

    async def _follow(self, tenant: str, namespace: str) -> Followed[Policies]:
        key = (tenant, namespace)
        starting = self._folders.get(key)
        if starting is None:
            starting = self._folders[key] = asyncio.ensure_future(self._start(*key))
        try:
            return await asyncio.shield(starting)
        except BaseException:
            if starting.done() and self._folders.get(key) is starting:
                del self._folders[key]
            raise

    async def _start(self, tenant: str, namespace: str) -> Followed[Policies]:
        folder = paths.policies_of(tenant, namespace)
        followed = Followed(
            self._store, folder, Policies, self._tasks, lambda: self._changed(tenant, namespace)
        )
        await followed.start()
        return followed


def _holder(name: TopicName) -> str:
    """The topic whose record a topic's policies are in."""
    return (name.parent or name).local


def _path(name: TopicName) -> str:
    return paths.policies(name.tenant, name.namespace, _holder(name))
