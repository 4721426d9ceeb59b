"""Which cluster a metadata store holds: one record, made once, that every process asks for when it starts.

A chroot with a typing error in it is an empty store like that of a cluster that is about to begin. So a cluster is
begun on purpose: by a bookie that is told to (`quire bookie --new-cluster true`), or a broker where there are none
(`quire broker --wal URL --new-cluster true`), whose object store has no logs of another cluster yet. Gateways, and all
other brokers and bookies, refuse to start where no cluster was begun. Where its metadata is being rebuilt
(`quire.rescue`) bookies alone start. A bookie remembers its cluster's id beside its
data (`bookie.identity`), and refuses every other one: what it holds means nothing there.
"""

from __future__ import annotations

from uuid import uuid4

from quire.metadata import paths
from quire.metadata.records import ClusterRecord, decode, encode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound


async def read_cluster(store: MetadataStore) -> ClusterRecord:
    """Raises `NotFound` where no cluster was begun."""
    return decode(ClusterRecord, (await store.get(paths.CLUSTER)).value, paths.CLUSTER)


async def find_cluster(store: MetadataStore, url: str, *, even_rescued: bool = False) -> ClusterRecord:
    """The cluster of the store that `url` names. Raises `ConfigurationError` when there is none.

    And for one that is being rescued, unless `even_rescued`.
    """
    try:
        record = await read_cluster(store)
        if record.rescue_begun_ms and not even_rescued:
            raise ConfigurationError(
                f"the metadata of cluster {record.uuid} at {url} is being rebuilt: let `quire rescue metadata` come to "
                "its end first, with the bookies alone"
            )
        return record
    except NotFound:
        raise ConfigurationError(
            f"there is no cluster at {url}: name the address and chroot that its bookies are started with, or begin a "
            "cluster there with `quire bookie --new-cluster true`"
        ) from None


async def is_begun(store: MetadataStore) -> bool:
    """Whether the store holds a cluster."""
    try:
        await read_cluster(store)
    except NotFound:
        return False
    return True


async def begin_cluster(store: MetadataStore, now_ms: int) -> ClusterRecord:
    """The cluster of the store, begun now when there is none. Several may do so at the same time."""
    try:
        return await read_cluster(store)
    except NotFound:
        record = ClusterRecord(uuid=str(uuid4()), created_ms=now_ms)
    try:
        await store.create(paths.CLUSTER, encode(record))
    except AlreadyExists:
        pass
    return await read_cluster(store)
