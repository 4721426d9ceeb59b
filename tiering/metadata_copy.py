"""Copies of the metadata store in the archive: what nobody else has, for the day on which it is lost for good.

    metadata/CLUSTER/TIME-UNIQUE    `sealed`, kind "metadata", version 1: zlib over records, each 4 bytes of length and
                                    msgpack: the cluster's id and the time first, then a `CopiedNode` for each node

The coordinator takes one every ten minutes, the first a minute after it became that, more seldom where taking one takes
long, and the last five of its cluster are kept: who begins another cluster over the same archive, in the hour after the
loss, has not lost them as well. It has every node that outlives its session, but for repair's queue and progress, which
an audit finds again, and the tombstones that wait for write-ahead logs of others. It is read node by node while the
cluster goes on, so it is of no one moment; `quire.rescue` joins it with what bookies and segments say of themselves,
which is newer. Labels there (`ledger.labels`, `segment_label`) know each ledger and each segment; policies, schemas,
permissions and the number of partitions only a copy does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple
from uuid import uuid4
from zlib import compressobj, decompress

import msgspec

from quire.metadata import paths
from quire.metadata.cluster import find_cluster
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore
from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, CorruptionError, NotFound, QuireError
from quire.runtime.tasks import Tasks
from quire.tiering.sealed import seal, unseal

PREFIX: Final = "metadata/"
KEPT: Final = 5
LOOK_S: Final = 15.0
INTERVAL_S: Final = 600.0
"""Between two copies."""
SETTLED_S: Final = 60.0
"""From the start, or from when another process was the coordinator, until a copy: there are topics to load then."""
SHARE: Final = 0.01
"""Of its time a coordinator spends on copies at most, failed ones too: where one takes a minute, there is one in a
hundred."""
AT_ONCE: Final = 32

_KIND: Final = "metadata"
_VERSION: Final = 1
_FOLDERS: Final = {
    paths.BOOKIES: 1,
    paths.WALS: 1,
    paths.TENANTS: 1,
    paths.NAMESPACES: 2,
    paths.POLICIES: 3,
    paths.SCHEMAS: 3,
    paths.SCHEMA_BODIES: 3,
    paths.STATE: 3,
    paths.TOPICS: 4,
    paths.MANIFESTS: 4,
    paths.LEDGERS: 2,
}
"""How deep below each of these its records lie. Records that name others come before these, but for ledgers."""

log = logging.getLogger(__name__)


class CopiedNode(msgspec.Struct, frozen=True, array_like=True):
    path: str
    version: int
    value: bytes


class MetadataCopy(NamedTuple):
    """`cluster` is the id of the cluster, `taken_ms` when taking it began."""

    cluster: str
    taken_ms: int
    nodes: tuple[CopiedNode, ...]


class TakenCopy(NamedTuple):
    """A copy as it is put, and how many records it has."""

    cluster: str
    taken_ms: int
    records: int
    sealed: bytes


async def take(store: MetadataStore, now_ms: int) -> TakenCopy:
    """All records that there are. Raises `Unavailable`, `ConfigurationError` where no cluster was begun.

    They are compressed as they come: a large cluster has a million.
    """
    cluster = await find_cluster(store, "this metadata store")
    packing = compressobj(1)
    packed = [packing.compress(_packed((cluster.uuid, now_ms)))]
    records = 0
    async for some in _all_nodes(store):
        records += len(some)
        packed.append(packing.compress(b"".join(map(_packed, some))))
    packed.append(packing.flush())
    return TakenCopy(cluster.uuid, now_ms, records, seal(_KIND, _VERSION, b"".join(packed)))


def _packed(record: object) -> bytes:
    content = msgspec.msgpack.encode(record)
    return len(content).to_bytes(4, "big") + content


async def _all_nodes(store: MetadataStore) -> AsyncIterator[list[CopiedNode]]:
    """Some at a time, without those that were deleted meanwhile or belong to a session."""
    yield await _get_all(store, [paths.CLUSTER, paths.LEDGER_IDS])
    for folder, depth in _FOLDERS.items():
        async for parent in _parents(store, folder, depth - 1):
            names = await store.children(parent)
            for start in range(0, len(names), AT_ONCE):
                yield await _get_all(store, [f"{parent}/{name}" for name in names[start : start + AT_ONCE]])


async def _parents(store: MetadataStore, folder: str, depth: int) -> AsyncIterator[str]:
    if depth == 0:
        yield folder
        return
    for name in await store.children(folder):
        async for parent in _parents(store, f"{folder}/{name}", depth - 1):
            yield parent


async def _get_all(store: MetadataStore, wanted: list[str]) -> list[CopiedNode]:
    async def get(path: str) -> CopiedNode | None:
        try:
            node = await store.get(path)
        except NotFound:
            return None
        return None if node.ephemeral else CopiedNode(path, node.version, node.value)

    return [node for node in await asyncio.gather(*map(get, wanted)) if node is not None]


def decode(sealed: bytes, where: str) -> MetadataCopy:
    """Raises `CorruptionError`."""
    content = unseal(_KIND, _VERSION, sealed, where)
    try:
        first, *others = _unpacked(decompress(content))
        cluster, taken_ms = msgspec.msgpack.decode(first, type=tuple[str, int])
        read = msgspec.msgpack.Decoder(CopiedNode).decode
        return MetadataCopy(cluster, taken_ms, tuple(map(read, others)))
    except Exception as error:
        raise CorruptionError(f"{where} cannot be read: {error}") from error


def _unpacked(content: bytes) -> Iterator[memoryview]:
    view, at = memoryview(content), 0
    while at < len(view):
        end = at + 4 + int.from_bytes(view[at : at + 4], "big")
        yield view[at + 4 : end]
        at = end


async def put(objects: ObjectStore, copy: TakenCopy) -> str:
    """Put a copy into the archive, then delete all but the newest; returns its name. Raises what the store does."""
    folder = f"{PREFIX}{copy.cluster}/"
    name = f"{folder}{copy.taken_ms:016d}-{uuid4().hex}"
    await objects.put_whole(name, [copy.sealed])
    for older in (await objects.list(folder))[:-KEPT]:
        await objects.delete(older.name)
    return name


async def newest(objects: ObjectStore, cluster: str = "") -> tuple[MetadataCopy | None, list[str]]:
    """The newest copy that can be read, and what is wrong with later ones. `cluster` may be empty where one has copies.

    Raises `Unavailable`, and `ConfigurationError` when several clusters have copies and none is named.
    """
    listed = await objects.list(f"{PREFIX}{cluster}/" if cluster else PREFIX)
    clusters = sorted({info.name.removeprefix(PREFIX).partition("/")[0] for info in listed})
    if len(clusters) > 1:
        raise ConfigurationError(
            f"{objects.url} has copies of the metadata of clusters {', '.join(clusters)}: name one with --cluster"
        )
    damaged: list[str] = []
    for info in reversed(listed):
        found = bytes(await objects.get_range(info.name, 0, info.bytes))
        try:
            return decode(found, f"object {info.name}"), damaged
        except CorruptionError as error:
            damaged.append(str(error))
    return None, damaged


class MetadataCopies:
    """Takes copies as long as this process `is_coordinator`."""

    def __init__(
        self, store: MetadataStore, objects: ObjectStore, clock: Clock, is_coordinator: Callable[[], bool]
    ) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._is_coordinator = is_coordinator
        self._tasks = Tasks("metadata copies")
        self._next_s = 0.0
        self._failing = ""

    async def start(self) -> None:
        self._next_s = self._clock.monotonic() + SETTLED_S
        self._tasks.start_every(LOOK_S, self.look, "copy the metadata")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def look(self) -> None:
        """Take one when it is time. A failure is told once, and tried again as soon as its own cost allows."""
        if not self._is_coordinator():
            self._next_s = max(self._next_s, self._clock.monotonic() + SETTLED_S)
        if self._clock.monotonic() < self._next_s:
            return
        began_s, wait_s = self._clock.monotonic(), LOOK_S
        try:
            copy = await take(self._store, self._clock.now_ms())
            name = await put(self._objects, copy)
        except QuireError as error:
            if str(error) != self._failing:
                log.warning("the metadata cannot be copied into the archive, trying again: %s", error)
            self._failing = str(error)
        else:
            log.info("copied %d records of the metadata into the archive: %s", copy.records, name)
            self._failing, wait_s = "", INTERVAL_S
        ended_s = self._clock.monotonic()
        self._next_s = ended_s + max(wait_s, (ended_s - began_s) / SHARE)
