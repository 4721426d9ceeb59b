"""Copies of the metadata store in the archive, from which `quire.rescue` rebuilds a lost metadata store.

    metadata/CLUSTER/NUMBER-TIME-UNIQUE    `sealed`, kind "metadata", version 1: zlib-compressed records, each with its
                                           length (4 bytes) before its msgpack. The first record contains the cluster's
                                           id and the time; a `CopiedNode` for each node follows.

**Order.** Copies are ordered by number (`quire.identity.copies`). The cluster's record contains the last copy's number,
which is increased before a copy is taken and uploaded. If a listed number is greater than the record's, an older backup
of the metadata store was restored. Then the record is marked (`outdated_by`), the process logs an error, and copies up
to that number are kept until an operator decides (`quire rescue accept-older`, or a rescue).

**Schedule.** The coordinator takes a copy every ten minutes, the first one a minute after its election; less often if a
copy takes long. It keeps its cluster's last five copies, and does not delete other clusters' copies.

**Content.** A copy has every persistent node, except two kinds: the queue and progress of repairs, which an audit
restores, and tombstones that wait for the keeper of a write-ahead log. Nodes are read one by one in a running cluster,
so a copy is not a consistent snapshot. `quire.rescue` combines it with newer facts from bookies and segments, whose
labels (`ledger.labels`, `segment_label`) describe each ledger and each segment. Policies, schemas, permissions and
partition counts are only in copies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple
from uuid import uuid4
from zlib import compressobj, decompress

import msgspec
from msgspec.structs import replace

from quire.identity.copies import FOLDER, cluster_of, copy_name, greatest_number, list_copies, number_of
from quire.identity.place import Place
from quire.metadata import paths
from quire.metadata.cluster import change_cluster, find_cluster
from quire.metadata.records import ClusterRecord
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore
from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, CorruptionError, NotFound, QuireError
from quire.runtime.tasks import Tasks
from quire.tiering.sealed import seal, unseal

KEPT: Final = 5
LOOK_S: Final = 15.0
INTERVAL_S: Final = 600.0
"""Interval between two copies, in seconds."""
SETTLED_S: Final = 60.0
"""Delay of the first copy after the election in seconds, so that the brokers can load topics first."""
SHARE: Final = 0.01
"""Maximum share of time that a coordinator spends on copies, including failed copies. For example, if a copy takes a
minute, one is taken every hundred minutes.
"""
AT_ONCE: Final = 32

_KIND: Final = "metadata"
_VERSION: Final = 1
_FOLDERS: Final = {
    paths.BOOKIES: 1,
    paths.WALS: 1,
    paths.SETTINGS: 1,
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
"""Depth of the records below each root, in the order of copying.

Records are copied before the records that they refer to, except ledgers, which come last.
"""

log = logging.getLogger(__name__)


class CopiedNode(msgspec.Struct, frozen=True, array_like=True):
    path: str
    version: int
    value: bytes


class MetadataCopy(NamedTuple):
    """Decoded copy. `cluster` is the cluster's id; `taken_ms` is the time when the copy began."""

    cluster: str
    taken_ms: int
    nodes: tuple[CopiedNode, ...]


class TakenCopy(NamedTuple):
    """Encoded copy, and its number of records."""

    cluster: str
    taken_ms: int
    records: int
    sealed: bytes


async def take(store: MetadataStore, now_ms: int) -> TakenCopy:
    """Take a copy of all records. Raises `Unavailable`, and `ConfigurationError` if the store has no cluster record.

    Records are compressed as they are read, because a large cluster has a million of them.
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
    """Yield all nodes in groups, except ephemeral nodes and nodes that are deleted during the read."""
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
    """Decode a copy. Raises `CorruptionError`."""
    content = unseal(_KIND, _VERSION, sealed, where)
    try:
        first, *others = _unpacked(decompress(content))
        cluster, taken_ms = msgspec.msgpack.decode(first, type=tuple[str, int])
        read = msgspec.msgpack.Decoder(CopiedNode).decode
        return MetadataCopy(cluster, taken_ms, tuple(map(read, others)))
    except Exception as error:
        raise CorruptionError(f"{where} cannot be decoded: {error}") from error


def _unpacked(content: bytes) -> Iterator[memoryview]:
    view, at = memoryview(content), 0
    while at < len(view):
        end = at + 4 + int.from_bytes(view[at : at + 4], "big")
        yield view[at + 4 : end]
        at = end


async def number_copy(store: MetadataStore, objects: ObjectStore, cluster: str) -> ClusterRecord:
    """Increase `copies` in the cluster's record to the number of the next copy. Return the record.

    Set `outdated_by` as well if an older backup of the metadata store was restored. Raises the stores' errors.
    """
    # List the copies before the record is read, because another process may upload a copy in between.
    listed = await list_copies(objects, cluster)
    newest_number, newest_time = greatest_number(listed), max(map(number_of, listed), default=0)

    def raised(record: ClusterRecord) -> ClusterRecord:
        newer = newest_number if newest_number > record.copies else 0
        return replace(
            record,
            copies=max(record.copies, newest_time) + 1,
            outdated_by=max(record.outdated_by, newer),
        )

    return await change_cluster(store, cluster, raised)


async def put(objects: ObjectStore, copy: TakenCopy, record: ClusterRecord) -> str:
    """Upload the copy under the number in `record`, then delete older copies. Return the name of the uploaded copy.

    The last `KEPT` copies, including this one, are kept. So are all copies up to `outdated_by`, because an operator has
    to decide about them. Raises the store's errors.
    """
    name = copy_name(copy.cluster, record.copies, copy.taken_ms, uuid4().hex)
    await objects.put_whole(name, [copy.sealed])
    listed = await list_copies(objects, copy.cluster)
    for older in [one for one in listed if number_of(one) > record.outdated_by][:-KEPT]:
        if older != name:
            await objects.delete(older)
    return name


async def newest(
    objects: ObjectStore, cluster: str = "", number: int = 0
) -> tuple[MetadataCopy | None, list[str]]:
    """Return the newest readable copy, or the copy with `number`, and descriptions of damaged newer copies.

    `cluster` may be empty if only one cluster has copies. Raises `Unavailable`, and `ConfigurationError` if several
    clusters have copies and `cluster` is empty, or if no copy has the number.
    """
    if not cluster:
        clusters = sorted({cluster_of(info.name) for info in await objects.list(FOLDER)})
        if len(clusters) > 1:
            raise ConfigurationError(
                f"{objects.url} has copies of the metadata of clusters {', '.join(clusters)}: name one with --cluster"
            )
        cluster = clusters[0] if clusters else ""
    listed = await list_copies(objects, cluster) if cluster else []
    if number:
        listed = [name for name in listed if number_of(name) == number]
        if not listed:
            raise ConfigurationError(
                f"{objects.url} has no copy {number} of the metadata of cluster {cluster}"
            )
    damaged: list[str] = []
    for name in reversed(listed):
        found = bytes(await objects.get_range(name, 0, await objects.size(name)))
        try:
            return decode(found, f"object {name}"), damaged
        except CorruptionError as error:
            damaged.append(str(error))
    return None, damaged


class MetadataCopies:
    """Scheduler of periodic metadata copies, which are taken while `is_coordinator()` is true."""

    def __init__(self, place: Place, clock: Clock, is_coordinator: Callable[[], bool]) -> None:
        self._place = place
        self._clock = clock
        self._is_coordinator = is_coordinator
        self._tasks = Tasks("metadata copies")
        self._next_s = 0.0
        self._failing = ""
        self._outdated_by = 0

    async def start(self) -> None:
        self._next_s = self._clock.monotonic() + SETTLED_S
        self._tasks.start_every(LOOK_S, self.look, "copy the metadata")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def look(self) -> None:
        """Take a copy if one is due. Log the first of consecutive failures with the same error."""
        if not self._is_coordinator():
            self._next_s = max(self._next_s, self._clock.monotonic() + SETTLED_S)
        if self._clock.monotonic() < self._next_s:
            return
        began_s, wait_s = self._clock.monotonic(), LOOK_S
        try:
            await self._copy()
        except QuireError as error:
            if str(error) != self._failing:
                log.warning("cannot copy the metadata into the archive, trying again: %s", error)
            self._failing = str(error)
        else:
            self._failing, wait_s = "", INTERVAL_S
        ended_s = self._clock.monotonic()
        self._next_s = ended_s + max(wait_s, (ended_s - began_s) / SHARE)

    async def _copy(self) -> None:
        place = self._place
        await place.enter()
        await place.confirm()
        record = await number_copy(place.metadata, place.objects, place.cluster)
        if record.outdated_by != self._outdated_by:
            self._report_outdated(record)
        copy = await take(place.metadata, self._clock.now_ms())
        name = await put(place.objects, copy, record)
        log.info("copied %d records of the metadata into the archive: %s", copy.records, name)

    def _report_outdated(self, record: ClusterRecord) -> None:
        self._outdated_by = record.outdated_by
        if record.outdated_by:
            log.error(
                "the metadata of cluster %s are older than copy %d of them in %s: an older backup was restored, and "
                "later records are missing; rebuild them with `quire rescue metadata`, or accept them as they are with "
                "`quire rescue accept-older`",
                record.uuid,
                record.outdated_by,
                self._place.objects.url,
            )
