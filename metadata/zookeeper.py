"""Metadata store of a cluster: ZooKeeper, behind the common interface.

See its [guide](https://zookeeper.apache.org/doc/current/zookeeperProgrammers.html).

    zookeeper_client        one kazoo client; its callbacks on the loop, its exceptions mapped
    zookeeper_session       state of the session (alive, in doubt, over): a core
    zookeeper_connection    calls in flight, watches, and a new client after a session was given up
    this file               nodes, their parents, and transactions

When a session is in doubt, its calls in flight fail: a read with `Unavailable`, a change with `OutcomeUnknown`. One
unknown outcome is resolved here, that of the creation of an ephemeral node. If the session continues, the node was
created if this session owns it. If the session has ended, the node does not exist.

**Parents** are created when the server reports that a parent is missing, in one transaction with the node that needs
them. So the creation of a topic is one request if its namespace exists on the server, and a refused transaction leaves
no parents behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from ssl import SSLContext
from typing import Any, Final

from kazoo.client import KazooClient

from quire.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EphemeralParent,
    Node,
    Put,
    SessionCallback,
    Step,
    WatchCallback,
)
from quire.metadata.tree import ROOT, parent_of
from quire.metadata.zookeeper_client import (
    in_our_words,
    was_rolled_back,
)
from quire.metadata.zookeeper_connection import ZooKeeperConnection
from quire.metadata.zookeeper_session import SessionState
from quire.metadata.zookeeper_url import ZooKeeperUrl, parse_url
from quire.runtime.credentials import NOBODY, Credentials
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    QuireError,
    Unavailable,
)

CONNECT_TIMEOUT_S: Final = 15.0
"""Time in seconds for which `open` waits for a server."""

NODE_BYTES_MAX: Final = 1_000_000
"""Maximum size of a node: ZooKeeper closes the connection of a client that sends more than 1 MiB (`jute.maxbuffer`)."""

PARENT_RACES_MAX: Final = 10
"""Maximum number of attempts of a creation while other processes create or delete the parents concurrently."""

_LOG: Final = logging.getLogger("quire.metadata")


class ZooKeeperStore:
    """`MetadataStore` in ZooKeeper; created by `open`."""

    def __init__(
        self,
        url: ZooKeeperUrl,
        tls: Callable[[], SSLContext] | None = None,
        login: Credentials = NOBODY,
    ) -> None:
        self._connection = ZooKeeperConnection(url, tls, login)
        self.counts = self._connection.counts

    @classmethod
    async def open(
        cls,
        url: str,
        tls: Callable[[], SSLContext] | None = None,
        login: Credentials = NOBODY,
        *,
        create: bool = True,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> ZooKeeperStore:
        """Connect and, if `create` is set, create the chroot; `tls` is for `zk+ssl` URLs.

        Raises `ConfigurationError`, `Unavailable`.
        """
        store = cls(parse_url(url), tls, login)
        try:
            await asyncio.wait_for(asyncio.shield(store._connection.first), connect_timeout_s)
            if create:
                await store._make_chroot()
            if login != NOBODY:
                await store._look_who_may()
        except TimeoutError:
            refused = store._connection.client.refused
            await store.close()
            raise await _why_unreachable(store._connection.url, connect_timeout_s, refused) from None
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session_timeout_ms(self) -> int:
        return int(self._connection.session.timeout_s * 1000)

    async def get(self, path: str) -> Node:
        full = self._connection.full(path)
        self.counts.reads += 1
        value, stat = await self._connection.ask(path, lambda kazoo: kazoo.get_async(full))
        return Node(value or b"", stat.version, stat.ephemeralOwner != 0)

    async def children(self, path: str) -> list[str]:
        full = self._connection.full(path)
        self.counts.reads += 1
        try:
            names = await self._connection.ask(path, lambda kazoo: kazoo.get_children_async(full))
        except NotFound:
            return []
        return sorted(names)

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        _check_size(path, value)
        self.counts.changes += 1
        session_id = self._connection.session.session_id
        try:
            made = await self._create(path, value, ephemeral, sequential)
        except OutcomeUnknown:
            if not ephemeral or sequential:
                raise
            return await self._was_made(path, session_id)
        return made.removeprefix(self._connection.url.chroot)

    async def _create(self, path: str, value: bytes, ephemeral: bool, sequential: bool) -> str:
        full = self._connection.full(path)
        try:
            made: str = await self._connection.change(
                path,
                lambda kazoo: kazoo.create_async(full, value, ephemeral=ephemeral, sequence=sequential),
            )
        except NotFound:
            results = await self._transact([Create(path, value, ephemeral)], sequential=sequential)
            made = results[-1]
        return made

    async def put(self, path: str, value: bytes, version: int) -> int:
        full = self._connection.full(path)
        _check_size(path, value)
        self.counts.changes += 1
        stat = await self._connection.change(path, lambda kazoo: kazoo.set_async(full, value, version))
        return int(stat.version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        full = self._connection.full(path)
        self.counts.changes += 1
        await self._connection.change(path, lambda kazoo: kazoo.delete_async(full, version))

    async def transact(self, steps: Sequence[Step]) -> None:
        self.counts.changes += 1
        if steps:
            await self._transact(list(steps))

    async def sync(self) -> None:
        full = self._connection.full(ROOT)
        self.counts.reads += 1
        await self._connection.ask(ROOT, lambda kazoo: kazoo.sync_async(full))

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        return self._connection.watches.watch(path, callback)

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        return self._connection.watches.on_session(callback)

    def give_up_session(self) -> None:
        """End the session, because the loop is blocked and other processes need its leases. Thread-safe."""
        self._connection.give_up()

    async def close(self) -> None:
        if not self._connection.is_closed:
            await self._connection.close()

    # -- transactions and parents ----------------------------------------------------------------------
    async def _transact(self, steps: list[Step], *, sequential: bool = False) -> list[Any]:
        """Execute steps, and further steps that create missing parents; return the result of each.

        With `sequential`, the last step creates a sequential node.
        """
        for step in steps:
            _check_size(step.path, getattr(step, "value", b""))
        parents: list[Step] = []
        for _ in range(PARENT_RACES_MAX):
            whole = parents + steps
            results = await self._commit(whole, sequential)
            refused = _refused_step(results)
            if refused is None:
                return list(results)
            error = in_our_words(results[refused], whole[refused].path, change=True)
            about_parents = isinstance(error, NotFound) and isinstance(whole[refused], Create)
            if not about_parents and not (isinstance(error, AlreadyExists) and refused < len(parents)):
                raise error
            parents = await self._missing_parents(steps)
        raise Unavailable(
            f"the parents of metadata node {steps[0].path} keep being created and deleted; try again"
        )

    def _commit(self, steps: list[Step], sequential: bool) -> asyncio.Future[Any]:
        return self._connection.change(
            steps[0].path, lambda kazoo: self._filled(kazoo, steps, sequential).commit_async()
        )

    def _filled(self, kazoo: KazooClient, steps: list[Step], sequential: bool) -> Any:
        transaction = kazoo.transaction()
        for step in steps:
            full = self._connection.full(step.path)
            match step:
                case Create(_, value, ephemeral):
                    numbered = sequential and step is steps[-1]
                    transaction.create(full, value, ephemeral=ephemeral, sequence=numbered)
                case Put(_, value, version):
                    transaction.set_data(full, value, version)
                case Delete(_, version):
                    transaction.delete(full, version)
                case Check(_, version):
                    transaction.check(full, version)
        return transaction

    async def _missing_parents(self, steps: list[Step]) -> list[Step]:
        """Return the steps that create the missing parents of `steps`, top down."""
        made = {step.path for step in steps if isinstance(step, Create)} | {ROOT}
        missing: list[Step] = []
        for step in steps:
            above: list[Step] = []
            parent = parent_of(step.path)
            while isinstance(step, Create) and parent not in made:
                made.add(parent)
                if await self._stat(parent) is not None:
                    break
                above.append(Create(parent, b""))
                parent = parent_of(parent)
            missing += reversed(above)
        return missing

    def _stat(self, path: str) -> asyncio.Future[Any]:
        """Request the node's ZooKeeper `Stat`; the result is None if the node does not exist."""
        full = self._connection.full(path)
        self.counts.reads += 1
        return self._connection.ask(path, lambda kazoo: kazoo.exists_async(full))

    async def _was_made(self, path: str, session_id: int) -> str:
        """Determine after an unknown outcome whether this session has created the ephemeral node; return its path."""
        while not self._connection.is_closed:
            await self._connection.decided.wait()
            if (self._connection.session.session_id, self._connection.session.state) != (
                session_id,
                SessionState.CONNECTED,
            ):
                raise Unavailable(f"the session that was to own metadata node {path} is over; try again")
            try:
                stat = await self._stat(path)
            except Unavailable:
                continue  # the session is in doubt again, which it may not have detected yet
            if stat is None:
                raise Unavailable(
                    f"metadata node {path} was not created, because the connection broke; try again"
                )
            if stat.ephemeralOwner != session_id:
                raise AlreadyExists(f"metadata node {path} exists already")
            return path
        raise OutcomeUnknown(
            f"the store was closed before it was known whether metadata node {path} was created"
        )

    async def _make_chroot(self) -> None:
        url, above = self._connection.url, ""
        for part in url.chroot.split("/")[1:]:
            above += f"/{part}"
            try:
                await self._connection.change(above, _creation(above))
            except AlreadyExists:
                continue
            except OutcomeUnknown as error:
                raise Unavailable(f"ZooKeeper at {url.hosts} went away; start again") from error
            except (EphemeralParent, NotFound, ConfigurationError) as error:
                raise ConfigurationError(
                    f"cannot create the chroot {url.chroot} in ZooKeeper at {url.hosts}: {error}"
                ) from error

    async def _look_who_may(self) -> None:
        """Check the chroot's ACL; warn if it allows all clients. Raises `ConfigurationError` if access is denied."""
        try:
            await self.get(ROOT)
        except NotFound:  # not created, because it was not to be
            return
        acls, _ = await self._connection.ask(
            ROOT, lambda kazoo: kazoo.get_acls_async(self._connection.full(ROOT))
        )
        if any(acl.id.scheme == "world" for acl in acls):
            _LOG.warning(
                "%s in ZooKeeper is open to all clients, because it was created without a password: restrict it "
                "with zkCli.sh: addauth digest USER:PASSWORD, then setAcl -R %s auth::cdrwa",
                *(self._connection.full(ROOT),) * 2,
            )


def _creation(full: str) -> Callable[[KazooClient], Any]:
    return lambda kazoo: kazoo.create_async(full, b"")


def _refused_step(results: Sequence[object]) -> int | None:
    """Return the index of the step that made a transaction fail; other steps report only that it was rolled back."""
    failed = [at for at, result in enumerate(results) if isinstance(result, Exception)]
    return next((at for at in failed if not was_rolled_back(results[at])), failed[0] if failed else None)


def _check_size(path: str, value: bytes) -> None:
    if len(value) > NODE_BYTES_MAX:
        raise LimitExceeded(
            f"metadata node {path} would have {len(value)} bytes; ZooKeeper's maximum is {NODE_BYTES_MAX}"
        )


async def _why_unreachable(url: ZooKeeperUrl, waited_s: float, refused: str) -> QuireError:
    names = [host.rpartition(":")[0].strip("[]") for host in url.hosts.split(",")]
    loop = asyncio.get_running_loop()
    found = await asyncio.gather(*(loop.getaddrinfo(name, None) for name in names), return_exceptions=True)
    if all(isinstance(result, OSError) for result in found):
        return ConfigurationError(f"no host of zk://{url.hosts} has an address; correct the metadata URL")
    why = f" ({refused})" if refused else ""
    return Unavailable(
        f"no ZooKeeper answered at {url.hosts} within {waited_s:g} s{why}; start it or correct the metadata URL"
    )
